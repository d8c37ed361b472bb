"""The knowledge of type checkers about `samovar.replicate`: names of strategies, and their settings."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig
from samovar.strategies.ours import OURS, Settings, StrategyName

HEAD = """\
import samovar, torch
from samovar.strategies.local_sgd import LocalSgd
@samovar.strategy("own")
class Own(LocalSgd): ...
m, o = torch.nn.Linear(1, 1), torch.optim.SGD([], 0.1)
"""
GOOD = (
    'samovar.replicate(m, o, "sync-easgd", moving_rate=0.1, sync_period_steps=4, collective="ring")',
    'samovar.replicate(m, o, strategy="sync", bucket_size="layer", compress_always=True, compress="bf16")',
    'samovar.replicate(m, o, "shm-easgd", sync_period=4, max_staleness=2)',
    "samovar.replicate(m, o, Own, whatever=3, timeout_s=5.0)",
    "samovar.replicate(m, o).finish()",
)
WRONG = (
    'samovar.replicate(m, o, "snyc")',
    'samovar.replicate(m, o, "sync-easgd", moving_rte=0.1)',
    'samovar.replicate(m, o, "sync-easgd", moving_rate="0.1")',
    'samovar.replicate(m, o, "sync-easgd", timeout="1")',
    "samovar.replicate(m, o, torch.nn.Linear)",
)


def test_mypy_accepts_what_is_right_and_reports_each_mistake(tmp_path: Path, repository_root: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HEAD + "\n".join([*GOOD, *WRONG]) + "\n")
    cache = repository_root / ".mypy_cache"
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(program)]
    ended = subprocess.run(
        [*command, "--cache-dir", str(cache)], cwd=repository_root, capture_output=True, text=True, check=False
    )
    assert not ended.stderr
    found = {int(line.split(":")[1]) for line in ended.stdout.splitlines() if ": error:" in line}
    first = HEAD.count("\n") + len(GOOD) + 1
    assert found == set(range(first, first + len(WRONG))), ended.stdout


def test_what_is_written_out_for_type_checkers_is_what_strategies_declare() -> None:
    """Each setting in both spellings, and as a field of the configuration."""
    declared = {setting.name: setting for kind in OURS for setting in kind.traits.settings}
    types = get_type_hints(Settings)
    assert get_args(StrategyName) == STRATEGIES
    assert set(types) == {spelling for setting in declared.values() for spelling in setting.spellings}
    for setting in declared.values():
        for spelling in setting.spellings:
            assert setting.kind in (types[spelling], *get_args(types[spelling])), spelling
    fields = get_type_hints(StrategyConfig)
    assert set(fields) - set(declared) == {"name", "collective", "automatic_buckets", "own", "source"}
    for name, setting in declared.items():
        assert setting.kind in (fields[name], *get_args(fields[name])), name


@pytest.mark.parametrize("kind", OURS)
def test_every_strategy_says_what_travels_and_who_waits(kind: Any) -> None:
    assert kind.traits.exchange
    assert kind.traits.waits_for
    for setting in kind.traits.settings:
        assert setting.help.endswith(".")
        assert setting.default_words, setting.name
