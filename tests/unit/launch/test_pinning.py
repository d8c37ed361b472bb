"""Runs that share a machine pin their ranks to cores of their own, while there are any."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from samovar.launch.numa import apart, least_taken

FOUR = ((0, 1, 2, 3),)

# A run with one rank on one core; it lasts until its standard input ends.
PROGRAM = """
import sys
from samovar.launch.numa import apart
with apart(((0,),), sys.argv[1], ((0, 1, 2, 3),)) as cpus:
    print(cpus[0][0], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def prefix() -> str:
    """A name under which no other run of this machine takes cores."""
    return f"test-{uuid.uuid4().hex}"


@contextmanager
def run(prefix: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM, prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def core_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_runs_that_start_at_once_take_cores_of_their_own_until_they_are_killed(prefix: str) -> None:
    with ExitStack() as stack:
        runs = [stack.enter_context(run(prefix)) for _ in range(4)]
        cores = [core_of(process) for process in runs]
        assert sorted(cores) == [0, 1, 2, 3]
        with apart(((0,), (1,)), prefix, FOUR) as fifth:
            assert fifth == ((0,), (1,))  # all have one by now
        runs[2].kill()
        runs[2].wait()
        with apart(((0,),), prefix, FOUR) as next_one:
            assert next_one == ((cores[2],),)


def test_cores_are_free_after_the_block_and_ranks_have_as_many_as_planned(prefix: str) -> None:
    with run(prefix) as process:
        assert core_of(process) == 0
        for _ in range(2):
            with apart(((0, 1), (2, 3)), prefix, ((0, 1, 2, 3), (4, 5, 6, 7))) as cpus:
                assert cpus == ((1, 2), (4, 5))
        with apart(((0,), (1,), (2,)), prefix, FOUR) as cpus:
            assert cpus == ((1,), (2,), (3,))
        with apart(((0, 1), (2, 3)), prefix, FOUR) as cpus:
            assert cpus == ((1, 2), (3, 0))


@pytest.mark.parametrize("planned", [(), ((), ()), ((0, 1),) * 3])
def test_who_shares_cores_or_is_not_pinned_takes_none(prefix: str, planned: tuple[tuple[int, ...], ...]) -> None:
    with apart(planned, prefix, FOUR) as cpus, apart(((0,),), prefix, FOUR) as other:
        assert cpus == planned
        assert other == ((0,),)


@pytest.mark.parametrize(
    ("num_runs", "num_cores", "wanted"),
    [
        ({}, 3, ((0, 1), (2, 3))),
        ({0: 1, 9: 1}, 3, ((1,), (2, 3))),
        ({0: 1, 2: 1}, 3, ((1, 0), (3, 2))),
        ({0: 2, 1: 1, 2: 1, 3: 1}, 1, ((1,), (2, 3))),
        ({0: 2, 1: 1, 2: 1, 3: 1}, 4, ((1, 0), (2, 3))),
    ],
)
def test_least_taken(num_runs: dict[int, int], num_cores: int, wanted: tuple[tuple[int, ...], ...]) -> None:
    assert least_taken(((0, 1), (2, 3)), num_runs, num_cores) == wanted


def test_of_cores_that_are_as_free_the_planned_come_first(prefix: str) -> None:
    """A plan leaves out cores on which other programs compute."""
    with apart(((1, 2, 3),), prefix, FOUR) as cpus:
        assert cpus == ((1, 2, 3),)
