"""Before an exchange each rank tells the others its place in the script, and whether it still has data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

import numpy as np
import numpy.typing as npt

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.errors import ReplicasDiffer

_NUM_OF_CALL = 6  # 1 + the loops that an active rank is in, or 0; replica, event, step, detail, digest of weights
NO_FIGURES = (0.0,) * 4  # a rank's steps since its last figures, their samples, mean loss, and its last arrival
_NUM_FIELDS = _NUM_OF_CALL + len(NO_FIGURES)

Rows = npt.NDArray[np.float64]


class Event(IntEnum):
    """A rank's next call together with the others. Records hold its value."""

    BACKWARD = 0
    STEP = 1
    EVALUATING = 2
    SHARD = 3
    DATA_END = 4
    EVEN_OUT = 5
    LOADING = 6
    FINISHING = 7
    REDUCING = 8
    SAVING = 9
    STATE = 10


_NAMES = {
    Event.BACKWARD: "backward()",
    Event.STEP: "step()",
    Event.EVALUATING: "evaluating() or finish()",
    Event.SHARD: "the start of shard()",
    Event.DATA_END: "the end of its data",
    Event.EVEN_OUT: "the end of everybody's data",
    Event.LOADING: "load_state_dict()",
    Event.FINISHING: "finish()",
    Event.REDUCING: "mean(), sum(), max(), gather() or barrier()",
    Event.SAVING: "save()",
    Event.STATE: "state_dict()",
}
_WITHOUT_STEP = (Event.SHARD, Event.LOADING, Event.REDUCING, Event.SAVING)  # theirs is 0, an epoch or an operation
# If ranks make the same call with other details: the difference, and the next step.
_DIFFERING = {
    Event.LOADING: (
        "the states that ranks {ranks} load are of another run, step or strategy than that of rank {first}; give every "
        "rank the file that it saved, all of one save"
    ),
    Event.SAVING: "ranks {ranks} save to another path than rank {first}; give all ranks the same path",
    Event.BACKWARD: (
        "ranks {ranks} exchange gradients more or less often in a step than rank {first}; all ranks call backward() "
        "equally often before step(): add losses up, and call it once"
    ),
    Event.REDUCING: "ranks {ranks} gave a value of another size than rank {first}; give all ranks the same shape",
}
_DIFFERING_ORDER = (
    "the samples, their order, or the batch size, on ranks {ranks} differs from that of rank {first}. Give all ranks "
    "one batch_size, and seed random_split, or a sampler's own generator, in the same way"
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a replica. All active ranks must have the same `detail`."""

    replica: int
    event: Event
    step: int
    detail: float = 0.0

    def __str__(self) -> str:
        step = "" if self.event in _WITHOUT_STEP else f", step {self.step}"
        return f"{_NAMES[self.event]} of replica {self.replica}{step}"


class Leaving(Enum):
    """How a rank without data continues if no rank is active: it waits for inner loops, or leaves its loop."""

    NOT_YET = auto()
    SOME = auto()
    ALL = auto()


class UnevenInputs:
    """The messages of ranks that step together before each exchange, for all replicas of the process.

    As in torch's Join, a rank whose data ended shadows the calls of the others, without data. An active rank announces
    a call when its exchange comes next, and asks for the answers when that begins. A rank whose data ended answers
    every call of the others until no rank is active.

    Figures of a replica travel in the messages of its calls.

    Cost per call: P-1 messages of 80 bytes per rank, awaited only when the answers are asked for.
    """

    def __init__(self, collectives: Collectives, first_rank: int = 0) -> None:
        self.last_active: tuple[int, ...] = (0,)  # the ranks that took part in the last answered call
        self._group = collectives.group
        self.first_rank = first_rank
        self.depth = 0  # the number of loops over data that this rank is in
        self._records = collectives.records(_NUM_FIELDS) if self._group.world_size > 1 else None
        self._pending: Call | None = None
        self._known: dict[Call, int] = {}
        self._digest = 0.0
        self._figures: dict[int, Sequence[float]] = {}
        self._hearers: dict[int, Callable[[Rows], None]] = {}

    @property
    def has_others(self) -> bool:
        """Whether there are other ranks to tell."""
        return self._records is not None

    def listen(self, replica: int, hear: Callable[[Rows], None]) -> None:
        """Give `hear` the figures of all ranks, shape (P, 4), with each call of the replica."""
        self._hearers[replica] = hear

    def show_figures(self, replica: int, figures: Sequence[float]) -> None:
        """Send these figures with the next call of the replica. A process that is alone hears them immediately."""
        if self._records is None:
            self._hearers[replica](np.array([figures]))
        else:
            self._figures[replica] = figures

    def forget(self, replica: int) -> None:
        """Drop the figures of a replica that is closed."""
        self._figures.pop(replica, None)
        self._hearers.pop(replica, None)

    def show_digest(self, digest: float) -> None:
        """Send the digest of weights that must be equal with the next call, which fails if ranks differ."""
        self._digest = digest

    def announce(self, call: Call, deadline: Callable[[], Deadline]) -> None:
        """Tell the others. Waits only if nothing has asked for the call before this one."""
        if self._records is None:
            return
        self._answer_pending(deadline)
        figures = self._figures.pop(call.replica, NO_FIGURES)
        self._records.post([1.0 + self.depth, call.replica, call.event, call.step, call.detail, self._digest, *figures])
        self._digest = 0.0
        self._pending = call

    def num_active(self, call: Call, deadline: Callable[[], Deadline]) -> int:
        """The number of ranks that take part in the announced call with data of their own.

        Waits for every rank. Raises ReplicasDiffer if another active rank is at another call, and DeadlineExceeded.
        """
        if self._records is None:
            return 1
        if call in self._known:
            return self._known.pop(call)
        assert self._pending == call, f"{call} was not announced, {self._pending} was"
        return self._collect(call, deadline())

    def shadow(self, deadline: Callable[[], Deadline]) -> "Call | Leaving":
        """The next call of the active ranks, for a rank whose data ended. If no rank is active, how to continue.

        A rank in an inner loop leaves it before those whose outer loop has ended.
        """
        number, figures = self._figures.popitem() if self._figures else (0, NO_FIGURES)
        rows = self.gather(Call(number, Event.DATA_END, self.depth), deadline, figures)
        self._pass_figures(rows)
        active = _active(rows)
        if active:
            self._digest = 0.0  # of an earlier step than theirs
            self.last_active = active
            call = _call(rows[active[0]])
            self._require_agreement(call, rows)
            return call
        if self.depth < rows[:, 3].max():
            return Leaving.NOT_YET
        return Leaving.ALL if self.depth == rows[:, 3].min() else Leaving.SOME

    def gather(self, call: Call, deadline: Callable[[], Deadline], figures: Sequence[float] = NO_FIGURES) -> Rows:
        """The records of all ranks for a call of ranks without data, shape (P, 10)."""
        row = [0.0, call.replica, call.event, call.step, call.detail, 0.0, *figures]
        if self._records is None:
            return np.array([row])
        self._answer_pending(deadline)  # announced, but the loop ended before its exchange
        self._records.post(row)
        return self._records.collect(deadline())

    def _answer_pending(self, deadline: Callable[[], Deadline]) -> None:
        if (call := self._pending) is not None:
            self._known[call] = self._collect(call, deadline())

    def _collect(self, call: Call, deadline: Deadline) -> int:
        assert self._records is not None
        self._pending = None
        rows = self._records.collect(deadline)
        self._require_agreement(call, rows)
        self._pass_figures(rows)
        self.last_active = _active(rows)
        return len(self.last_active)

    def _pass_figures(self, rows: Rows) -> None:
        """Give each replica its own figures of all ranks, and zeros for the others."""
        for replica in set(rows[:, 1].tolist()):
            if (hear := self._hearers.get(int(replica))) is not None:
                hear(np.where(rows[:, 1:2] == replica, rows[:, _NUM_OF_CALL:], 0.0))

    def _require_agreement(self, call: Call, rows: Rows) -> None:
        calls = {rank: _call(row) for rank, row in enumerate(rows, self.first_rank) if row[0] > 0}
        own_rank = self.first_rank + self._group.rank
        if all(other == call for other in calls.values()):
            self._require_same_loops(rows)
            self._require_same_weights(rows)
            return
        if len({(other.replica, other.event, other.step) for other in calls.values()}) == 1:
            first = min(calls)
            differing = [rank for rank, other in calls.items() if other != calls[first]]
            sentence = _DIFFERING.get(call.event, _DIFFERING_ORDER).format(ranks=differing, first=first)
            raise ReplicasDiffer(f"rank {own_rank}: {sentence}")
        places = "; ".join(f"rank {rank} is at {other}" for rank, other in calls.items())
        raise ReplicasDiffer(
            f"rank {own_rank}: ranks are at different places: {places}. All ranks must make the same calls in "
            "the same order, and leave loops over shard() at the same step or at their end"
        )

    def _require_same_loops(self, rows: Rows) -> None:
        left = rows[rows[:, 0] > 0, 0].min() - 1
        if waiting := [rank for rank, row in enumerate(rows, self.first_rank) if not row[0] and row[3] > left]:
            raise ReplicasDiffer(
                f"rank {self.first_rank + self._group.rank}: ranks {waiting} have no more data, but wait in a loop "
                "over shard() that others left by break; break while all have data, or let it end"
            )

    def _require_same_weights(self, rows: Rows) -> None:
        shown = {rank: row[5] for rank, row in enumerate(rows, self.first_rank) if row[5]}
        first = min(shown, default=0)
        if differing := [rank for rank, digest in shown.items() if digest != shown[first]]:
            raise ReplicasDiffer(
                f"rank {self.first_rank + self._group.rank}: the weights of ranks {differing} differ from those of "
                f"rank {first}, and this strategy keeps them equal. Do ranks have other learning rates or optimizer "
                "states, clip gradients of parameters in no optimizer, or change weights themselves? Start again "
                "from a checkpoint"
            )


def _active(rows: Rows) -> tuple[int, ...]:
    return tuple(np.flatnonzero(rows[:, 0] > 0).tolist())


def _call(row: npt.NDArray[np.float64]) -> Call:
    return Call(int(row[1]), Event(int(row[2])), int(row[3]), float(row[4]))
