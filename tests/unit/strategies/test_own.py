"""A strategy in a user's own file: found, declared, checked, and trained with as ours are."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import samovar
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.strategies.base import Strategy, kind_of
from samovar.strategies.config import StrategyConfig, declared_as
from samovar.strategies.defaults import described, resolved
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.slowmo import SlowMo
from samovar.strategies.sync import Sync
from samovar.strategies.traits import KINDS
from tests.unit.strategies.harness import RATE, Job, on_shm, on_sim, resume, same
from tests.unit.strategies.test_definitions import distance, gradient, start

NUM_STEPS, WORLD_SIZE = 14, 3
pytestmark = pytest.mark.usefixtures("strategies_as_before")


def test_the_example_is_its_definition_the_same_bits_twice_and_where_it_is_resumed(growing: str) -> None:
    """Against a plain loop: the mean after 2 steps, 3 more, 4.5 more and so on."""
    job = Job(StrategyConfig(growing, "ring"), gradient, NUM_STEPS, start())
    ranks = on_shm(job, WORLD_SIZE)
    x = np.tile(start().astype(float), (WORLD_SIZE, 1))
    for step in range(NUM_STEPS):
        x -= RATE * np.stack([gradient(rank, step, x[rank]) for rank in range(WORLD_SIZE)])
        if step + 1 in (2, 5, 10):  # the first steps from 2, 5 and 9.5 on
            x[:] = x.mean(axis=0)
        assert max(distance(left.trace[step], x[rank]) for rank, left in enumerate(ranks)) < 1e-6, step
    assert same(ranks, on_shm(job, WORLD_SIZE))
    assert same(ranks, on_sim(job, WORLD_SIZE, seed=7))
    early = on_shm(replace(job, num_steps=6), WORLD_SIZE)
    late = on_shm(resume(replace(job, num_steps=6), early, NUM_STEPS), WORLD_SIZE)
    assert [left.weights.tobytes() for left in late] == [left.weights.tobytes() for left in ranks]


def test_its_settings_have_defaults_ranges_and_words_as_ours_have(growing: str) -> None:
    config = resolved(StrategyConfig(growing), 2)
    assert (config.name, config.sync_period_steps, config["growth"]) == ("growing-sgd", 2, 1.5)
    assert described(config) == "growing-sgd: an exchange every 2 steps, growth 1.5"
    assert resolved(config, 2) == config
    with pytest.raises(InputError, match="--growth: got 1; give more than 1"):
        StrategyConfig.given(growing, {"growth": 1.0})
    with pytest.raises(InputError, match=r"--growth is not a setting of --strategy local-sgd: .* choose growing-sgd$"):
        StrategyConfig.given("local-sgd", {"growth": 2.0})
    with pytest.raises(InputError, match="--moving-rate is not a setting of --strategy growing-sgd"):
        StrategyConfig(growing, moving_rate=0.1)


def test_settings_that_are_numbers_of_numpy_are_kept_as_python_has_them(growing: str) -> None:
    given = {"sync_period_steps": np.int64(4), "growth": np.float32(2.0)}
    kept = json.loads(json.dumps(asdict(StrategyConfig.given(growing, given))))
    assert (kept["sync_period_steps"], kept["own"]) == (4, {"growth": 2.0})


def test_a_class_in_a_module_of_the_working_folder_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, growing: str
) -> None:
    text = Path(growing.removesuffix(":GrowingSgd")).read_text()
    (tmp_path / "my_rules.py").write_text(text.replace('"growing-sgd"', '"my-sgd"'))
    monkeypatch.chdir(tmp_path)
    assert declared_as("my_rules:GrowingSgd") == ("my_rules:GrowingSgd", "my-sgd")
    assert declared_as("my_rules.py:GrowingSgd") == (f"{tmp_path}/my_rules.py:GrowingSgd", "my-sgd")


def test_a_file_that_was_edited_is_imported_again(tmp_path: Path, growing: str) -> None:
    """As between two runs of a notebook, whose ranks read the file as it is."""
    text = Path(growing.removesuffix(":GrowingSgd")).read_text().replace("growing-sgd", "my-sgd")
    for default in ("1.5", "1.25"):
        (tmp_path / "mine.py").write_text(text.replace("default=1.5", f"default={default}"))
        declared_as(f"{tmp_path}/mine.py:GrowingSgd")
        assert resolved(StrategyConfig("my-sgd"), 2)["growth"] == float(default)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere:Rule", "there is no module 'nowhere'; give MODULE:NAME of a module in the working folder, or"),
        ("nowhere.py:Rule", "no such file: nowhere.py"),
        ("rules:Missing", "rules has no Missing"),
        ("rules:", "give MODULE:NAME"),
        ("rules:Plain", "is not a strategy; decorate a class of samovar.strategies by @samovar.strategy"),
        ("broken.py:Rule", "broken.py fails with ZeroDivisionError: division by zero"),
        ("taken.py:Rule", "strategy 'sync': there is one of this name, in samovar.strategies.sync; give another"),
        ("named.py:Rule", "strategy 'A/B': a name is made of small letters, digits and hyphens"),
        ("setting.py:Rule", "'growth' is not a setting; give samovar.Setting"),
        ("seldom.py:Rule", "strategy 'seldom': exchanges weights, so it needs the setting SYNC_PERIOD; add that"),
        ("option.py:Rule", "strategy 'option': Setting.*name='collective'.* is not a setting"),
    ],
)
def test_what_is_no_strategy_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, sentence: str
) -> None:
    head = "import samovar\nfrom samovar.strategies.local_sgd import LocalSgd\n"
    rule = "class Rule(LocalSgd):\n    pass\n"
    option = "samovar.Setting('collective', str, 'Mine.')"
    for name, text in {
        "rules": "class Plain:\n    pass\n",
        "broken": "1 / 0\n",
        "taken": f"{head}@samovar.strategy('sync')\n{rule}",
        "named": f"{head}@samovar.strategy('A/B')\n{rule}",
        "setting": f"{head}@samovar.strategy('setting', settings=('growth',))\n{rule}",
        "seldom": f"{head}@samovar.strategy('seldom', settings=())\n{rule}",
        "option": f"{head}@samovar.strategy('option', settings=({option},))\n{rule}",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    before = dict(KINDS)
    with pytest.raises(InputError, match=sentence) as refused:
        declared_as(source)
    assert str(refused.value).startswith(("--strategy", "strategy"))
    assert "\n" not in str(refused.value)
    assert before == KINDS


def test_what_is_not_said_is_the_base_class_s() -> None:
    @samovar.strategy("two-steps", exchange="weights, twice")
    class TwoSteps(LocalSgd):
        pass

    assert issubclass(TwoSteps, Strategy)
    assert TwoSteps.traits.settings == LocalSgd.traits.settings
    assert (TwoSteps.traits.name, LocalSgd.traits.name) == ("two-steps", "local-sgd")
    assert StrategyConfig("two-steps").kind is TwoSteps


def test_a_class_on_sync_is_the_one_that_trains() -> None:
    @samovar.strategy("half-sync")
    class HalfSync(Sync):
        def reduced(self, step: int) -> Iterator[tuple[Bucket, float]]:
            for bucket, scale in super().reduced(step):
                yield bucket, scale / 2

    own, plain = (
        on_shm(Job(StrategyConfig(name, "ring"), gradient, 3, start()), 2)[0].weights for name in ("half-sync", "sync")
    )
    assert HalfSync.traits.name == "half-sync"
    assert not np.array_equal(own, plain)
    compressed = StrategyConfig("half-sync", "ring", compress="bf16", always_compresses=True)
    with pytest.raises(InputError, match="its base class makes a CompressedSync, which has nothing of HalfSync"):
        on_shm(Job(compressed, gradient, 3, start()), 2)


def test_who_may_come_and_go_is_not_the_base_class_s(growing: str) -> None:
    with pytest.raises(InputError, match="growing-sgd"):
        kind_of(StrategyConfig(growing).name).regrouped(StrategyConfig(growing))
    assert SlowMo.traits.regroups
