"""The quorum of an elastic job, event by event."""

import pytest

from samovar.core.errors import InputError
from samovar.membership.quorum import Quorum, QuorumSize
from samovar.membership.quorum_messages import Admission, Decision, Go, Hello, Last, Lost, Refused, Reply, StillWaiting

TIMEOUT_S = 10.0


class Played:
    """A quorum, and what each worker got since it was last asked for."""

    def __init__(self, num_founders: int, min_workers: int = 1, max_workers: int = 9) -> None:
        self._got: dict[int, list[Reply]] = {}
        self.quorum = Quorum(QuorumSize(num_founders, min_workers, max_workers), self._take)

    def _take(self, number: int, reply: Reply) -> None:
        if not isinstance(reply, StillWaiting | Lost):
            self._got.setdefault(number, []).append(reply)

    def got(self, number: int) -> list[Reply]:
        return self._got.pop(number, [])

    def came(self, *numbers: int, job: str = "a net", joins: bool = False) -> None:
        for number in numbers:
            self.quorum.came(number, Hello(number, f"{number}/0/0", job, TIMEOUT_S, (number,), joins), 0.0)

    def begun(self, *numbers: int) -> "Played":
        """The first round has begun, and all have the founder's state."""
        self.came(*numbers)
        self.quorum.gave(numbers[0], 0.0)
        self._got.clear()
        return self

    def ready(self, *numbers: int, last: Last = Last.NO, num_steps: int = 4) -> None:
        for number in numbers:
            self.quorum.ready(number, num_steps, last, 1.0)

    def voted(self, *numbers: int, is_done: bool = True) -> None:
        for number in numbers:
            self.quorum.voted(number, is_done, 2.0)


def test_the_first_round_waits_for_all_founders_and_for_the_state() -> None:
    played = Played(2)
    played.came(7)
    assert played.got(7) == []
    played.came(3)
    (founder,) = played.got(3)
    assert isinstance(founder, Admission)
    assert (founder.is_founder, founder.gives, founder.division.world_size) == (True, True, 2)
    assert played.got(7) == []
    played.quorum.gave(3, 0.0)
    (other,) = played.got(7)
    assert isinstance(other, Admission)
    assert (other.is_founder, other.division.rank) == (False, 1)


def test_an_exchange_begins_when_all_are_ready_and_counts_when_all_have_it() -> None:
    played = Played(2).begun(1, 2)
    played.ready(1)
    assert played.got(1) == []
    played.ready(2)
    (go,) = played.got(1)
    assert isinstance(go, Go)
    assert (go.generation, go.rank, go.marks) == (1, 0, ("1/0/0", "2/0/0"))
    played.voted(1)
    assert played.got(1) == []
    played.voted(2)
    (verdict,) = played.got(1)
    assert isinstance(verdict, Decision)
    assert verdict.is_committed
    assert played.quorum.round == 1
    played.ready(1, 2)
    assert [reply.generation for reply in played.got(1) if isinstance(reply, Go)] == [1]


def test_an_exchange_that_one_does_not_have_is_repeated_by_all_in_a_new_generation() -> None:
    played = Played(3).begun(1, 2, 3)
    played.ready(1, 2, 3)
    played.voted(1)
    played.quorum.gone(3, 2.0)
    played.got(1)
    played.voted(2, is_done=False)
    verdict, go = played.got(1)
    assert verdict == Decision(False)
    assert isinstance(go, Go)
    assert (go.generation, go.marks, go.gone) == (2, ("1/0/0", "2/0/0"), ("worker 3 (process 3)",))
    assert played.quorum.round == 0


def test_one_that_dies_after_all_others_have_the_result_changes_nothing() -> None:
    played = Played(3).begun(1, 2, 3)
    played.ready(1, 2, 3)
    played.voted(1, 2)
    played.got(1)
    played.quorum.gone(3, 2.0)
    (verdict,) = played.got(1)
    assert isinstance(verdict, Decision)
    assert verdict.is_committed
    assert verdict.division is not None
    assert (verdict.division.world_size, verdict.division.version) == (2, 2)


def test_a_worker_comes_in_at_the_end_of_the_round_with_the_state_of_the_first() -> None:
    played = Played(1).begun(1)
    played.came(5, joins=True)
    assert played.got(5) == []
    played.ready(1)
    played.got(1)
    played.voted(1)
    (verdict,) = played.got(1)
    assert isinstance(verdict, Decision)
    assert verdict.gives
    assert played.got(5) == []
    played.quorum.gave(1, 0.0)
    (admission,) = played.got(5)
    assert isinstance(admission, Admission)
    assert (admission.division.round, admission.division.rank, admission.num_rounds_waited) == (1, 1, 1)


def test_if_the_giver_dies_others_wait_for_the_next_round() -> None:
    played = Played(2).begun(1, 2)
    played.came(5, joins=True)
    played.ready(1, 2)
    played.voted(1, 2)
    played.quorum.gone(1, 3.0)
    assert played.got(5) == []
    assert played.quorum.members == (2,)
    played.ready(2)
    played.voted(2)
    played.quorum.gave(2, 0.0)
    assert [type(reply) for reply in played.got(5)] == [Admission]


def test_with_fewer_than_the_least_number_the_rest_waits_and_then_gives_up() -> None:
    played = Played(2, min_workers=2).begun(1, 2)
    played.quorum.gone(2, 0.0)
    played.ready(1)
    played.got(1)
    played.voted(1)
    assert played.got(1) == []
    played.quorum.look(2.0 + TIMEOUT_S + 0.1)
    (refused,) = played.got(1)
    assert isinstance(refused, Refused)
    assert "--min-workers" in refused.why


def test_more_than_the_largest_number_wait_as_spares() -> None:
    played = Played(2, max_workers=2).begun(1, 2)
    played.came(5, joins=True)
    played.ready(1, 2)
    played.voted(1, 2)
    assert played.quorum.members == (1, 2)
    played.ready(1)
    played.quorum.gone(2, 3.0)
    played.voted(1)
    assert played.quorum.members == (1, 5)


@pytest.mark.parametrize("num_steps", [4, 0])
def test_the_last_one_that_leaves_gives_its_state_to_those_that_wait(num_steps: int) -> None:
    """A spare takes its place, and also one that came while it trained."""
    played = Played(2, max_workers=2).begun(1, 2)
    played.came(5, 6, 7, joins=True)
    played.ready(1, 2, last=Last.LEAVE, num_steps=num_steps)
    played.voted(1, 2)
    found = {number: played.got(number)[-1] for number in (1, 2)}
    assert [reply.gives for reply in found.values() if isinstance(reply, Decision)] == [True, False]
    played.quorum.gave(1, 3.0)
    played.quorum.gone(1, 3.0)
    admissions = [reply for number in (5, 6, 7) for reply in played.got(number) if isinstance(reply, Admission)]
    assert [(one.division.rank, one.division.world_size) for one in admissions] == [(0, 2), (1, 2)], "all of the data"
    assert played.quorum.members == (5, 6)


def test_a_silent_worker_is_given_up() -> None:
    played = Played(2).begun(1, 2)
    played.ready(1)
    played.quorum.look(1.0 + TIMEOUT_S - 0.1)
    assert played.got(2) == []
    played.quorum.look(1.0 + TIMEOUT_S + 0.1)
    (refused,) = played.got(2)
    assert isinstance(refused, Refused)
    assert "silent" in refused.why
    assert [type(reply) for reply in played.got(1)] == [Go]


def test_if_the_giver_is_silent_those_at_the_door_are_not_given_up_with_it() -> None:
    played = Played(2).begun(1, 2)
    played.came(5, joins=True)
    played.ready(1, 2)
    played.voted(1, 2)
    played.ready(2)
    played.quorum.look(2.0 + 2 * TIMEOUT_S)
    assert [type(reply) for reply in played.got(1)[-1:]] == [Refused]
    assert played.got(5) == []
    assert played.quorum.members == (2,)


def test_a_giver_that_is_silent_is_given_up_even_if_nobody_else_is_ready() -> None:
    """Stopped before it gave its state: those that come wait for it alone."""
    founding = Played(2)
    founding.came(1, 2)
    founding.quorum.look(TIMEOUT_S - 0.1)
    assert founding.quorum.members == (1, 2)
    founding.quorum.look(TIMEOUT_S + 0.1)
    assert [type(reply) for reply in founding.got(1)] == [Admission, Refused]
    (admission,) = founding.got(2)
    assert isinstance(admission, Admission)
    assert admission.is_founder
    played = Played(2).begun(1, 2)
    played.came(5, joins=True)
    played.ready(1, 2)
    played.voted(1, 2)
    played.quorum.look(2.0 + TIMEOUT_S + 0.1)
    assert played.quorum.members == (2,)


def test_the_shortest_limit_at_the_door_counts_also_if_it_comes_later() -> None:
    founding = Played(3)
    founding.came(0)
    founding.quorum.look(0.5)
    founding.quorum.came(1, Hello(1, "1/0/0", "a net", 1.0, (1,)), 1.0)
    founding.quorum.look(1.9)
    assert founding.got(0) == []
    founding.quorum.look(2.1)
    assert isinstance(founding.got(0)[0], Admission)


def test_a_worker_that_got_its_state_late_has_its_own_time() -> None:
    played = Played(2).begun(1, 2)
    played.came(5, joins=True)
    played.ready(1, 2)
    played.voted(1, 2)
    played.quorum.ready(2, 4, Last.NO, 2.0)
    played.quorum.gave(1, 1.5 + TIMEOUT_S)
    played.quorum.ready(1, 4, Last.NO, 1.5 + TIMEOUT_S)
    played.quorum.look(2.5 + TIMEOUT_S)
    assert played.quorum.members == (1, 2, 5)
    played.quorum.look(2.0 + 2 * TIMEOUT_S)
    assert played.quorum.members == (1, 2)


def test_a_busy_worker_is_awaited_while_it_beats_and_then_has_its_time_to_come_to_the_exchange() -> None:
    played = Played(2).begun(1, 2)
    played.ready(1)
    for beat in range(6):
        played.quorum.busy(2, beat * TIMEOUT_S)
        played.quorum.look((beat + 0.9) * TIMEOUT_S)
    assert played.got(2) == []
    played.quorum.look(6.1 * TIMEOUT_S)
    assert [type(reply) for reply in played.got(2)] == [Refused]


def test_all_end_together_and_without_steps_nothing_is_exchanged() -> None:
    played = Played(2).begun(1, 2)
    played.came(5, joins=True)
    played.ready(1, 2, last=Last.FINISH, num_steps=0)
    (go,) = played.got(1)
    assert isinstance(go, Go)
    assert (go.ends, go.exchanges) == (True, False)
    (refused,) = played.got(5)
    assert isinstance(refused, Refused)
    assert "ended" in refused.why
    assert played.quorum.members == ()


def test_one_that_finishes_takes_part_in_the_exchanges_of_the_others() -> None:
    played = Played(2).begun(1, 2)
    played.ready(1, last=Last.FINISH, num_steps=0)
    played.ready(2)
    (go,) = played.got(1)
    assert isinstance(go, Go)
    assert (go.ends, go.exchanges) == (False, True)
    played.got(2)
    played.voted(1, 2)
    (finished,), (training,) = played.got(1), played.got(2)
    assert isinstance(finished, Decision)
    assert isinstance(training, Decision)
    assert finished.division is None, "its share goes to the one that trains"
    assert training.division is not None
    assert (training.division.rank, training.division.world_size, training.division.version) == (0, 1, 2)


def test_another_net_is_refused() -> None:
    played = Played(2).begun(1, 2)
    played.came(5, job="another net", joins=True)
    (refused,) = played.got(5)
    assert isinstance(refused, Refused)
    assert refused.is_input
    assert "settings differ" in refused.why


def test_a_joiner_with_another_net_that_comes_first_gives_way_to_the_founders() -> None:
    played = Played(2)
    played.came(5, 6, job="another net", joins=True)
    played.came(1, 2)
    assert [type(reply) for reply in played.got(5) + played.got(6)] == [Refused, Refused]
    assert [type(reply) for reply in played.got(1)] == [Admission]
    played.quorum.gone(5, 0.0)
    played.quorum.gave(1, 0.0)
    assert played.quorum.members == (1, 2)


def test_founders_with_another_net_than_the_first_are_refused() -> None:
    played = Played(2)
    played.came(1)
    played.came(2, job="another net")
    assert [type(reply) for reply in played.got(2)] == [Refused]


def test_founders_that_do_not_come_are_not_waited_for_for_ever() -> None:
    played = Played(3)
    played.came(1, 2)
    played.quorum.look(TIMEOUT_S + 0.1)
    assert played.quorum.members == (1, 2)
    ended = Played(3)
    ended.came(1, 2)
    ended.quorum.founder_ended(0.0)
    assert ended.quorum.members == (1, 2)


def test_if_all_die_those_at_the_door_are_refused() -> None:
    played = Played(1).begun(1)
    played.ready(1)
    played.voted(1)
    played.came(5, joins=True)
    played.quorum.gone(1, 3.0)
    (refused,) = played.got(5)
    assert isinstance(refused, Refused)
    assert "nobody has its weights" in refused.why


def test_if_all_die_before_anything_was_exchanged_another_one_begins() -> None:
    played = Played(1).begun(1)
    played.came(5, joins=True)
    played.quorum.gone(1, 1.0)
    (admission,) = played.got(5)
    assert isinstance(admission, Admission)
    assert admission.is_founder


@pytest.mark.parametrize(("founders", "least", "most"), [(2, 0, 9), (2, 5, 4), (5, 1, 4)])
def test_impossible_sizes_are_refused(founders: int, least: int, most: int) -> None:
    with pytest.raises(InputError, match=r"--m(in|ax)-workers"):
        QuorumSize(founders, least, most)


def test_those_that_come_divide_the_data_as_those_that_stay_if_one_dies_meanwhile() -> None:
    played = Played(3)
    played.came(1, 2, 3)
    played.quorum.gone(3, 0.0)
    played.quorum.gave(1, 0.0)
    (founder,), (other,) = played.got(1), played.got(2)
    assert isinstance(founder, Admission)
    assert isinstance(other, Admission)
    assert (founder.division.rank, founder.division.world_size) == (0, 3)
    assert (other.division.rank, other.division.world_size) == (1, 3)


def test_one_that_still_trains_gives_its_state() -> None:
    played = Played(2).begun(1, 2)
    played.came(5, joins=True)
    played.ready(1, last=Last.FINISH, num_steps=0)
    played.ready(2)
    for number in (1, 2):
        played.got(number)
    played.voted(1, 2)
    found = [reply.gives for number in (1, 2) for reply in played.got(number) if isinstance(reply, Decision)]
    assert found == [False, True]
