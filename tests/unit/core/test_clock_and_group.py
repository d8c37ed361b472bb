"""Deadlines, groups, and exit codes."""

import math

import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, ReplicasDiffer, SamovarError
from samovar.core.group import Group


def test_deadlines_pass_and_never_go_below_zero() -> None:
    past, future = Deadline.after(-1.0), Deadline.after(3600.0)
    assert past.passed()
    assert past.remaining_s() == 0.0
    assert not future.passed()
    assert 0.0 < future.remaining_s() <= 3600.0


@pytest.mark.parametrize(("at_s", "timeout_s"), [(0.0, 0.001), (math.inf, 1e6)])
def test_the_system_is_given_neither_nothing_nor_infinity(at_s: float, timeout_s: float) -> None:
    assert Deadline(at_s).timeout_s() == timeout_s


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_group_holds_its_rank(rank: int, world_size: int) -> None:
    with pytest.raises(AssertionError):
        Group(rank, world_size)
    assert Group(1, 2).rank == 1


def test_exit_codes() -> None:
    assert InputError.exit_code == 2
    for error in (SamovarError, DeadlineExceeded, RankFailed, ReplicasDiffer):
        assert error.exit_code == 3
        assert issubclass(error, SamovarError)
