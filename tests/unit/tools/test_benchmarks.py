"""Every benchmark runs in its shortest form: its rank programs start, make steps, and find what they made right."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.multihost.namespaces import reason_against

SLOW = (
    "box",
    "collectives-network",
    "collectives-pair",
    "collectives-sweep",
    "convergence",
    "convergence-sync",
    "crowded",
    "data",
    "emulated",
    "faults",
    "foreseen",
    "learning",
    "nets",
    "predicted",
    "remote",
    "round-trips",
    "sync",
    "torch",
)
BETWEEN_HOSTS = (
    "elastic-plain",
    "elastic-turns",
    "faults-hosts",
    "streaming",
    "streaming-loss",
    "two-hosts",
    "two-hosts-accuracy",
    "two-hosts-box",
    "two-hosts-gradients",
    "two-hosts-overlap",
    "two-hosts-scaling",
    "two-hosts-train",
)
TIMEOUT_S = 600.0


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize(
    "name", ["times", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lenet", *SLOW, *BETWEEN_HOSTS))]
)
def test_a_benchmark_runs(repository_root: Path, name: str) -> None:
    if name in BETWEEN_HOSTS and (reason := reason_against()):
        pytest.skip(reason)
    program = repository_root / "benchmarks" / "run.py"
    ended = subprocess.run(
        [sys.executable, program, name, "--short"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert ended.returncode == 0, ended.stderr
    assert "ratio (median)" in ended.stdout


@pytest.fixture
def ranks(repository_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository_root / "benchmarks")
    return importlib.import_module("ranks")


def test_a_rank_that_fails_ends_the_benchmark(ranks: ModuleType) -> None:
    """This program imports and ends without a word; the leak check sees that no process is left."""
    with pytest.raises(SystemExit, match=r"ranks\.py failed"), ranks.Ranks("ranks.py", [{}, {}]) as processes:
        processes.answers()


def test_sides_take_turns_in_changing_order_and_warm_up_does_not_count(ranks: ModuleType) -> None:
    order = []

    def turn(name: str, seconds: float) -> object:
        def run() -> tuple[float, float]:
            order.append(name)
            return (1e9, 1e9) if order.count(name) <= ranks.WARM_UP_BLOCKS else (seconds, seconds / 2)

        return ranks.Turn(run, num_samples=10)

    rates = ranks.take_turns({"one": turn("one", 1.0), "other": turn("other", 2.0)}, num_blocks=20)
    assert rates["one"].wall == [10.0] * 20
    assert rates["other"].wall == [5.0] * 20
    assert rates["other"].cpu == [10.0] * 20
    assert len({tuple(order[start : start + 2]) for start in range(0, len(order), 2)}) == 2
