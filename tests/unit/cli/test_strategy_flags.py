"""The flags of `samovar train` are what strategies declare, and a user's own strategy adds its own."""

import inspect
from pathlib import Path

import pytest

from samovar.cli.caffe_command import parse_caffe_flags
from samovar.cli.flags import own_strategy, settings_of_strategies
from samovar.cli.train import train
from samovar.core.errors import InputError
from samovar.strategies.catalog import asked_for
from samovar.strategies.ours import OURS

pytestmark = pytest.mark.usefixtures("strategies_as_before")


def test_every_setting_is_a_flag() -> None:
    declared = {setting.name for kind in OURS for setting in kind.traits.settings}
    flags = {flag.name: flag.annotation.__metadata__[0] for flag in settings_of_strategies()}
    assert set(flags) == declared
    assert flags["sync_period_steps"].default == "--sync-period"
    assert "For all but sync. Default: by strategy." in flags["sync_period_steps"].help
    assert flags["center_momentum"].help.startswith("Momentum of the center. For async-msgd. Default: max(0, ")
    assert set(flags) < set(inspect.signature(train([])).parameters)


@pytest.mark.parametrize("words", ["--strategy {}", "--strategy={}", "--workers 2 --strategy {}"])
def test_a_user_s_own_strategy_brings_its_flags(growing: str, words: str) -> None:
    assert "growth" not in inspect.signature(train([])).parameters
    assert "growth" in inspect.signature(train(words.format(growing).split())).parameters


def test_what_the_flags_ask_for() -> None:
    sharing = asked_for("sync", "ring", {"bucket_size_bytes": "layer", "compress": "none", "overlap": "backward"})
    assert (sharing.collective, sharing.bucket_size_bytes, sharing.automatic_buckets) == ("ring", 1, False)
    assert asked_for("sync", "auto", {"overlap": None}).automatic_buckets
    assert not asked_for("local-sgd", "auto", {"compress": "none"}).automatic_buckets
    with pytest.raises(InputError, match="--bucket: got 'some'; give 'auto', 'model', 'layer' or a number of bytes"):
        asked_for("sync", "auto", {"bucket_size_bytes": "some"})
    with pytest.raises(InputError, match="--strategy: got 'snyc'; did you mean 'sync'\\? Else choose one of: sync"):
        asked_for("snyc", "auto", {})


def test_a_setting_that_is_called_as_another_flag_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seeded.py"
    path.write_text(
        "import samovar\nfrom samovar.strategies.local_sgd import SYNC_PERIOD, LocalSgd\n"
        "@samovar.strategy('seeded', settings=(SYNC_PERIOD, samovar.Setting('seed', int, 'Mine.'),))\n"
        "class Seeded(LocalSgd): ...\n"
    )
    with pytest.raises(InputError, match="--strategy: its setting seed is called as another flag"):
        train(["--strategy", f"{path}:Seeded"])


def test_settings_are_flags_of_caffe_s_command_line(growing: str) -> None:
    own_strategy(["-strategy", growing], ("-strategy",))
    words = ("-strategy", growing, "-sync_period=4", "-growth", "1.5", "-overlap", "step", "-compress_always=true")
    given = parse_caffe_flags(["train", *words])
    assert given.settings == {
        "sync_period_steps": 4,
        "growth": 1.5,
        "overlap": "step",
        "always_compresses": True,
    }
    for wrong, sentence in (
        (("-sync_period", "x"), "-sync_period x: is not a whole number"),
        (("-moving_rate", "x"), "-moving_rate x: is not a number"),
        (("-read_first", "yes"), "-read_first yes: give true or false"),
    ):
        with pytest.raises(InputError, match=sentence):
            parse_caffe_flags(["train", *wrong])
