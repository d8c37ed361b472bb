"""A worker's rounds in an elastic job: an exchange counts on all workers or on none."""

from collections.abc import Mapping
from typing import Any, Protocol

from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.membership.quorum_messages import Admission, Decision, Go, Last

Given = Mapping[str, Any]


class Seat(Protocol):
    """A worker's connection to the quorum. Every call may raise RankFailed, if this worker is given up."""

    def enter(self) -> tuple[Admission, Given]:
        """Wait at the door until this worker is in. The state of a member comes along; empty for the founder."""

    def give(self, state: Given, /) -> None:
        """Hand this worker's state to those that come."""

    def ready(self, num_steps: int, last: Last, /) -> Go:
        """Wait until all have come to the exchange."""

    def go(self) -> Go:
        """Wait for the next attempt, after an exchange that does not count."""

    def vote(self, is_done: bool, /) -> Decision:
        """Say whether this worker has the result, and wait for the others."""


class Trainee(Protocol):
    """The part that a worker trains: weights and the state of its strategy."""

    def regroup(self, go: Go, /) -> None:
        """Exchange among these ranks from now on. Never waits."""

    def kept(self) -> Any:
        """A copy of all that an exchange changes."""

    def restore(self, kept: Any, /) -> None: ...

    def exchange(self) -> None:
        """Raises RankFailed or DeadlineExceeded if another worker does not take part to the end."""

    def committed(self) -> None:
        """The exchange counts."""

    def given(self) -> Given:
        """The state that a worker needs to begin here. Weights are those that all agree on."""


class Rounds:
    """The exchanges of one worker, with those that are present at the time.

    All workers come, exchange, and vote. If one died meanwhile, some may have the result and some not. Then all that
    are left go back to what they had before, and repeat the exchange among themselves. So no sum is applied by half.

    Cost: two round trips to the quorum for an exchange, and a copy of weights and state.
    """

    def __init__(self, seat: Seat, trainee: Trainee, admission: Admission) -> None:
        self.division = admission.division
        self._seat = seat
        self._trainee = trainee
        self._generation = 0
        if admission.gives:
            seat.give(trainee.given())

    def exchange(self, num_steps: int, last: Last = Last.NO) -> bool:
        """One exchange, which counts when this returns. Gives whether it was everybody's last.

        Raises RankFailed if the others continued without this worker.
        """
        go = self._seat.ready(num_steps, last)
        while go.exchanges:
            verdict = self._attempt(go)
            if verdict.is_committed:
                self._commit(verdict)
                break
            go = self._seat.go()
        return go.ends

    def _attempt(self, go: Go) -> Decision:
        if go.generation != self._generation:
            self._trainee.regroup(go)
            self._generation = go.generation
        kept = self._trainee.kept()
        verdict = self._seat.vote(self._has_result())
        if not verdict.is_committed:
            self._trainee.restore(kept)
        return verdict

    def _has_result(self) -> bool:
        try:
            self._trainee.exchange()
        except (RankFailed, DeadlineExceeded):
            return False
        return True

    def _commit(self, verdict: Decision) -> None:
        self._trainee.committed()
        self.division = verdict.division or self.division
        if verdict.gives:
            self._seat.give(self._trainee.given())
