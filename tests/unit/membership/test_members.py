"""The members at a box, and the count of a run's steps while they come and go."""

import os
from collections.abc import Iterator

import pytest

from samovar.box.board import Board, Member, MemberProgress, create_board
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.core.layout import Layout, ParameterSpec
from samovar.membership.members import BoxMembers, RunSteps
from samovar.membership.ranks import LaunchRanks
from samovar.strategies.box_terms import BoxWord, Terms
from samovar.strategies.config import StrategyConfig
from samovar.transports.shm import ShmTransport, create_segment

A, B, C = Member(0, 1), Member(1, 2), Member(2, 3)


@pytest.fixture
def board() -> Iterator[Board]:
    descriptor = create_board(4)
    yield Board(descriptor)
    os.close(descriptor)


class Launch:
    """Workers that stand on one board, each with a transport of its own."""

    def __init__(
        self, board: Board, workers: int, goal: int, rule: str = "mean", *, counts_ended: bool = False
    ) -> None:
        descriptor = create_segment(workers)
        transports = [ShmTransport(descriptor, Group(rank, workers), oversubscribed=True) for rank in range(workers)]
        self.ranks = [LaunchRanks(transport) for transport in transports]
        os.close(descriptor)
        self.members = []
        steps = board.word(BoxWord.STEPS)
        for ranks in self.ranks:
            member = board.join()
            ranks.take(member, steps)
            run = RunSteps(rule, steps)
            self.members.append(BoxMembers(board, member, ranks.all, run, goal, 0.0, counts_ended=counts_ended))

    def post(self, *steps: int, finished: bool = False) -> None:
        for members, done in zip(self.members, steps, strict=True):
            members.post(MemberProgress(steps=done, finished=finished))


@pytest.mark.parametrize(("rule", "steps"), [("mean", 15), ("master", 10), ("first", 20)])
def test_steps_by_each_rule(rule: str, steps: int) -> None:
    run = RunSteps(rule, 0)
    assert run.take({A: 0, B: 0}, 0) == 0
    assert run.take({A: 10, B: 20}, 0) == steps


def test_steps_go_on_from_where_they_were_when_members_leave_and_come() -> None:
    run = RunSteps("mean", 0)
    run.take({A: 1, B: 1}, 0)
    assert run.take({A: 10, B: 30}, 0) == 20
    assert run.take({A: 10}, 0) == 20  # the fast one has left
    assert run.take({A: 15}, 0) == 25
    assert run.take({A: 15, C: 25}, 0) == 25  # one has joined where the run is
    assert run.take({A: 17, C: 31}, 0) == 29
    assert run.take({}, 0) == 29
    assert run.take({}, 40) == 40  # others have seen more
    assert run.take({B: 3}, 0) == 40
    assert run.take({B: 5}, 0) == 42


def test_a_newcomer_that_was_seen_late_has_its_steps_counted_once() -> None:
    run = RunSteps("mean", 100)
    run.take({A: 100}, 100)
    run.take({A: 104, B: 102}, 100)
    assert run.take({A: 106, B: 104}, 100) == 106


def test_a_goal_that_another_launch_lowered_is_raised_at_the_next_look(board: Board) -> None:
    """Two launches that join at one moment read the same goal, and the shorter one may write last."""
    longer, shorter = Launch(board, 1, goal=100), Launch(board, 1, goal=50)
    longer.post(50)
    shorter.post(50)
    board.set_word(BoxWord.GOAL, 50)
    assert shorter.members[0].wait_for_others(Deadline.after(0.05)) == "member 0"
    assert longer.members[0].num_living == 2  # a look
    assert shorter.members[0].wait_for_others(Deadline.after(5)) == ""


def test_members_of_two_launches_see_each_other(board: Board) -> None:
    first = Launch(board, 2, goal=50)
    first.post(4, 8)
    assert [members.num_living for members in first.members] == [2, 2]
    first.post(10, 14)
    assert first.members[0].run_steps() == 12
    second = Launch(board, 1, goal=50)
    second.post(board.word(BoxWord.STEPS))
    assert [members.num_living for members in (*first.members, *second.members)] == [3, 3, 3]
    assert [members.leads for members in (*first.members, *second.members)] == [True, True, False]
    for ranks in first.ranks:
        assert ranks.own is not None
        board.leave(ranks.own)
    assert second.members[0].leads
    assert second.members[0].num_living == 1


@pytest.mark.parametrize("counts_ended", [False, True])
def test_members_that_ended_in_order_may_count_on_for_the_moving_rate(board: Board, counts_ended: bool) -> None:
    launch = Launch(board, 3, goal=100, counts_ended=counts_ended)
    launch.post(5, 5, 5)
    first, others = launch.members[0], launch.members[1:]
    assert first.num_living == 3
    others[0].post(MemberProgress(steps=6, finished=True))
    board.leave(launch.ranks[2].all()[2])
    assert first.num_living == (3 if counts_ended else 1)


def test_between_two_looks_a_member_knows_its_own_steps(board: Board) -> None:
    """So that one that is alone ends with its last step, however seldom it looks."""
    launch = Launch(board, 1, 100)
    members = launch.members[0]
    members.post(MemberProgress(steps=1))
    members.run_steps()  # its first look
    members._every_s = 1000.0
    for steps in (2, 50, 99, 100):
        members.post(MemberProgress(steps=steps))
        assert members.run_steps() == steps


def test_a_launch_waits_for_others_that_end_with_it_alone(board: Board) -> None:
    first, second = Launch(board, 1, goal=50), Launch(board, 1, goal=50)
    first.post(50, finished=True)
    second.post(49)
    assert first.members[0].wait_for_others(Deadline.after(0.05)) == "member 1"
    board.set_word(BoxWord.GOAL, 60)  # somebody goes on
    assert first.members[0].wait_for_others(Deadline.after(5)) == ""
    board.set_word(BoxWord.GOAL, 50)
    second.post(50, finished=True)
    assert first.members[0].wait_for_others(Deadline.after(5)) == ""


def test_a_program_that_only_changes_the_buffer_neither_leads_nor_is_waited_for(board: Board) -> None:
    """It has the first row, and posts no steps."""
    board.join()
    launch = Launch(board, 1, goal=50)
    launch.post(1)
    members = launch.members[0]
    assert members.leads
    assert members.num_living == 2, "the center is shared with it"
    launch.post(50, finished=True)
    assert members.wait_for_others(Deadline.after(0.05)) == ""


def layout(name: str) -> Layout:
    return Layout.pack([ParameterSpec(name, (3, 4))])


def test_other_terms_are_refused_by_name(board: Board) -> None:
    with pytest.raises(InputError, match=r"the buffer was not made by `samovar train`; give --buffer NAME"):
        Terms.of(StrategyConfig("async-msgd"), layout("a")).require_same(board, "the buffer")
    terms = Terms.of(StrategyConfig("async-msgd", center_momentum=0.6), layout("a"))
    terms.say(board)
    terms.require_same(board, "the buffer")
    for strategy, name, message in [
        (StrategyConfig("async-sgd"), "a", "the buffer is trained with async-msgd, this run has async-sgd; give --str"),
        (StrategyConfig("async-msgd", center_momentum=0.9), "a", "momentum 0.6 at its center, this run 0.9; give --ce"),
        (StrategyConfig("async-msgd", center_momentum=0.6), "b", "the buffer holds another net: names or shapes of it"),
    ]:
        with pytest.raises(InputError, match=message):
            Terms.of(strategy, layout(name)).require_same(board, "the buffer")
