"""The memory of a replica goes back to the system, on all ranks, when these have closed it."""

from pathlib import Path

import pytest

from tests.multiproc.command import Command

PROGRAM = Path(__file__).with_name("replicate_memory_program.py")
MOST_BYTES = 1 << 20
TIMEOUT_S = 200.0
LONG_TIMEOUT_S = 3000.0
IN_STEP = ("sync", "local-sgd", "sync-easgd", "diloco")
OWN_SPEED = ("shm-easgd", "async-easgd", "async-sgd", "hogwild-sgd")


def grown_bytes(
    folder: Path, num_ranks: int, what: str, count: int, *strategies: str, timeout_s: float = TIMEOUT_S
) -> list[int]:
    """By how much the memory of each rank grew in the second half."""
    with Command("run", "-n", num_ranks, PROGRAM, what, count, *strategies, folder=folder) as command:
        ended = command.wait(timeout_s)
    assert ended.return_code == 0, ended.errors
    return [int((folder / f"grown-{rank}").read_text()) for rank in range(num_ranks)]


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_hundred_replicas_of_4_mb_leave_no_memory(tmp_path: Path, num_ranks: int) -> None:
    assert max(grown_bytes(tmp_path, num_ranks, "train", 100, "sync")) < MOST_BYTES


@pytest.mark.parametrize(
    "strategies",
    [pytest.param(IN_STEP, id="in step"), pytest.param(OWN_SPEED, id="own speed", marks=pytest.mark.slow)],
)
def test_24_switches_of_strategy_leave_no_memory(tmp_path: Path, strategies: tuple[str, ...]) -> None:
    assert max(grown_bytes(tmp_path, 2, "train", 24, *strategies)) < MOST_BYTES


@pytest.mark.parametrize("strategy", ["sync", "local-sgd", pytest.param("shm-easgd", marks=pytest.mark.slow)])
def test_errors_in_between_leave_no_memory(tmp_path: Path, strategy: str) -> None:
    assert max(grown_bytes(tmp_path, 2, "errors", 20, strategy)) < MOST_BYTES


@pytest.mark.slow
@pytest.mark.timeout(LONG_TIMEOUT_S)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ten_thousand_replicas_of_4_mb_leave_no_memory(tmp_path: Path, num_ranks: int) -> None:
    grown = grown_bytes(tmp_path, num_ranks, "train", 10_000, "sync", timeout_s=LONG_TIMEOUT_S)
    assert max(grown) < MOST_BYTES
