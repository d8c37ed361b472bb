"""A worker's rounds in an elastic job: an exchange counts on all workers or on none."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.membership.quorum_messages import Admission, Decision, Go, Last

Given = Mapping[str, Any]

# The same workers fail so often only if some of them never reach each other.
MOST_ATTEMPTS: Final = 30


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
    `tell` gets a sentence if those that repeat it are the same as before.

    Cost: two round trips to the quorum for an exchange, and a copy of weights and state.
    """

    def __init__(
        self, seat: Seat, trainee: Trainee, admission: Admission, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.division = admission.division
        self._tell = tell
        self._reason = ""
        self._seat = seat
        self._trainee = trainee
        self._generation = 0
        if admission.gives:
            seat.give(trainee.given())

    def exchange(self, num_steps: int, last: Last = Last.NO) -> bool:
        """One exchange, which counts when this returns. Gives whether it was everybody's last.

        Raises RankFailed if the others continued without this worker, or the same workers fail MOST_ATTEMPTS times.
        """
        go, num_alike = self._seat.ready(num_steps, last), 1
        while go.exchanges:
            verdict = self._attempt(go)
            if verdict.is_committed:
                self._commit(verdict)
                break
            before, go = go, self._seat.go()
            num_alike = num_alike + 1 if go.marks == before.marks else 1
            if num_alike > 1:
                self._note_repeated(num_alike)
        return go.ends

    def _note_repeated(self, num_alike: int) -> None:
        reason = self._reason or "another worker did not have the result; see its output"
        if num_alike > MOST_ATTEMPTS:
            raise RankFailed(f"the same workers failed {MOST_ATTEMPTS} times to exchange: {reason}")
        self._tell(f"the same workers try an exchange for the {num_alike}. time: {reason}")

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
        self._reason = ""
        try:
            self._trainee.exchange()
        except (RankFailed, DeadlineExceeded) as error:
            self._reason = str(error)
            return False
        return True

    def _commit(self, verdict: Decision) -> None:
        self._trainee.committed()
        self.division = verdict.division or self.division
        if verdict.gives:
            self._seat.give(self._trainee.given())
