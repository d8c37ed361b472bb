"""The effect of a rank's end on its run: the run ends, or the others continue."""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed
from samovar.core.group import Host, rank_names
from samovar.launch.processes import RankEnd
from samovar.launch.watch import Consequence, EndPolicy
from samovar.report.records import Failed, Notice, Record
from samovar.report.result import RunResult
from samovar.report.script_output import how
from samovar.report.wording import ranges
from samovar.transports.shm import BoardWord, RunBoard

# A rank that fails so waited for another, which may be the cause.
_WAITED = (DeadlineExceeded.__name__, RankFailed.__name__)
MOST_FRUITLESS_LIVES = 2  # of a rank in a row; one that dies without a step once more would do so for ever
STOPPED_SHARE = 0.8  # of the timeout: before those of its group give up, who can only say whom they waited for
_LEAST_PATIENCE_S = 3.0  # on a busy machine those that wait in vain do not give up in the same second


class InStepPolicy(EndPolicy):
    """Ranks wait for each other: the first failure ends the run, as soon as it is clear which rank caused it.

    If a rank is stopped, the ranks that wait for it report it within `timeout_s`. `failures` are the reasons of ranks,
    and `ranks` are those of this host.
    """

    def __init__(
        self, failures: Mapping[int, Failed], timeout_s: float, board: RunBoard, ranks: Sequence[int] = ()
    ) -> None:
        self._failures = failures
        self._timeout_s = timeout_s
        self._board = board
        self._ranks = ranks

    def patience_s(self, end: RankEnd) -> float:
        """A rank that waited without success, or lost a connection, did not cause the failure: others give up too.

        Nor did a rank whose weights are not finite, if it had them from one that is a step behind with its report.
        """
        if not is_cause(end, self._failures):
            return max(_LEAST_PATIENCE_S, 0.1 * self._timeout_s)  # for the others to give up too
        failure = self._failures.get(end.rank)
        may_be_told = failure is not None and failure.kind == NotFinite.__name__ and self._are_behind(end.rank)
        return _LEAST_PATIENCE_S if may_be_told else 0.0

    def _are_behind(self, rank: int) -> bool:
        steps, others = self._steps_of(rank), [other for other in self._ranks if other not in self._failures]
        return any(self._steps_of(other) < steps for other in others)

    def _steps_of(self, rank: int) -> int:
        return self._board.read(rank, BoardWord.STEPS_DONE)

    def how(self, end: RankEnd) -> str:
        """How the rank ended, for people."""
        return how(end.return_code)

    def life(self, _rank: int) -> int:
        """How often the rank was restarted."""
        return 0

    def counted(self, result: RunResult) -> RunResult:
        """`result` with the number of restarts of each worker."""
        return result


def is_cause(end: RankEnd, failures: Mapping[int, Failed]) -> bool:
    """Whether the failed rank did not only wait for another one. MPI aborts a rank that loses another one."""
    failure = failures.get(end.rank)
    return end.return_code != -signal.SIGABRT if failure is None else failure.kind not in _WAITED


class RestartPolicy(InStepPolicy):
    """Workers do not wait for each other: most deaths affect no other rank.

    If it `may_restart`, a rank that a signal killed is restarted, unless it made no step in two lives in a row. A rank
    that gave up, or that makes no progress, is gone, and `board` tells the others. The `group_size` ranks of a group
    step together: they come back together, when all have ended, or not at all. `show` shows a record.

    If ranks are on several `hosts`, each launcher starts its own again, and `tells` the others which come back or are
    gone. Such a run needs a rank of host 0, which tests and saves.
    """

    def __init__(
        self,
        world_size: int,
        may_restart: bool,
        failures: Mapping[int, Failed],
        board: RunBoard,
        show: Callable[[Record], None],
        group_size: int = 1,
        timeout_s: float = math.inf,
        hosts: Sequence[Host] = (),
        tells: Callable[[Sequence[int], bool], None] = lambda _ranks, _are_gone: None,
    ) -> None:
        super().__init__(failures, timeout_s, board)
        self._may_restart = may_restart
        self._show = show
        self._group_size = group_size
        self._names = rank_names(hosts) if hosts else [f"rank {rank}" for rank in range(world_size)]
        self._needed = set(hosts[0].ranks if hosts else range(world_size))
        self._tells_others = tells
        self._num_restarts = [0] * world_size
        self._num_fruitless_lives = [0] * world_size
        self._steps_at_start = [0] * world_size
        self._gone: set[int] = set()
        self._stopped: set[int] = set()
        self._finished: set[int] = set()
        self._awaited: dict[range, set[int]] = {}  # of groups that come back: whose ends are still to come
        self.stopped_s = STOPPED_SHARE * timeout_s

    def how(self, end: RankEnd) -> str:
        return how(-signal.SIGSTOP if end.rank in self._stopped else end.return_code)

    def stood_still(self, rank: int) -> None:
        """It was stopped for too long, and is about to be ended."""
        self._stopped.add(rank)

    def consequence(self, end: RankEnd) -> Consequence:
        """Whether the rank comes back, at once or with its group; shows a notice about it."""
        group = self._group_of(end.rank)
        if group in self._awaited:
            self._awaited[group].discard(end.rank)
            return self._awaiting(group)
        if end.return_code == 0:
            self._finished.add(end.rank)
        if end.return_code == 0 or end.rank in self._gone:  # gone with its group
            return Consequence(ended=self._others_gone(end))
        if end.return_code < 0 and end.rank not in self._stopped and self._may_come_back(group):
            self._decide(group, are_gone=False)
            self._awaited[group] = set(group) - {end.rank}
            self._tell(end, "starts again from the center")
            return self._awaiting(group)
        self._decide(group, are_gone=True)
        if self._are_left and not self._is_input_wrong:
            self._tell(end, "does not come back")
        return Consequence(ended=self._others_gone(end))

    def changed(self, ranks: Sequence[int], *, are_gone: bool) -> None:
        """Ranks come back, or are gone for good."""
        for rank in ranks:
            if are_gone:
                self._gone.add(rank)
                self._board.post(rank, BoardWord.IS_GONE, 1)
            else:
                self._num_restarts[rank] += 1

    def _decide(self, group: range, *, are_gone: bool) -> None:
        self.changed(group, are_gone=are_gone)
        self._tells_others(group, are_gone)

    def _awaiting(self, group: range) -> Consequence:
        """The ranks of a group that comes back start when the last of them has ended."""
        if left := sorted(self._awaited[group]):
            return Consequence(counts=False, ended=left)
        del self._awaited[group]
        return Consequence(counts=False, started=group)

    def _others_gone(self, end: RankEnd) -> Sequence[int]:
        """The ranks of its group that cannot continue without it."""
        return [rank for rank in self._group_of(end.rank) if rank != end.rank and end.rank in self._gone]

    def life(self, rank: int) -> int:
        return self._num_restarts[rank]

    def counted(self, result: RunResult) -> RunResult:
        workers = zip(result.by_worker, self._num_restarts, strict=False)
        return replace(result, by_worker=tuple(replace(worker, restarts=count) for worker, count in workers))

    def patience_s(self, _end: RankEnd) -> float:
        """How long the others may continue: without limit, while one that is needed is left, and the center works."""
        return math.inf if self._are_left and not self._is_input_wrong else 0.0

    def _may_come_back(self, group: range) -> bool:
        """Whether its group has no rank that has finished."""
        is_whole, board = self._finished.isdisjoint(group), self._board
        is_stopping = board.read(board.launcher_row, BoardWord.STOP_SIGNAL) != 0
        return self._may_restart and is_whole and not is_stopping and self._gets_on(group)

    def _gets_on(self, group: range) -> bool:
        first, steps = group.start, max(map(self._steps_of, group))
        is_fruitless = steps <= self._steps_at_start[first]
        self._num_fruitless_lives[first] = self._num_fruitless_lives[first] + 1 if is_fruitless else 0
        self._steps_at_start[first] = steps
        return self._num_fruitless_lives[first] < MOST_FRUITLESS_LIVES

    def _group_of(self, rank: int) -> range:
        first = rank // self._group_size * self._group_size
        return range(first, first + self._group_size)

    @property
    def _are_left(self) -> bool:
        return not self._needed <= self._gone

    @property
    def _is_input_wrong(self) -> bool:
        return any(failure.kind == InputError.__name__ for failure in self._failures.values())

    def _tell(self, end: RankEnd, what: str) -> None:
        step = self._steps_of(end.rank)
        failure = self._failures.get(end.rank)
        name = self._names[end.rank]
        reason = f" {self.how(end)}"
        if failure is not None:
            reason = f": {failure.message.removeprefix(f'rank {end.rank}: ').removeprefix(f'{name}: ')}"
        has_weights = end.rank not in self._gone or self._has_begun(end)
        go_on = "continue" if has_weights else "continue if the center has its first weights"
        if self._group_size > 1:
            consequence = f"the other groups {go_on}, and its own, ranks {ranges(self._group_of(end.rank))}, {what}"
        else:
            others = f"the others {go_on}" if len(self._num_restarts) > 1 else "the center stays as it is"
            consequence = f"{others}, and it {what}"
        when = "" if failure is not None and failure.kind == NotFinite.__name__ else f" after step {step}"
        self._show(Notice(level="warning", text=f"{name}{reason}{when}; {consequence}"))

    def _has_begun(self, end: RankEnd) -> bool:
        """Whether the others can continue without the rank: its group may still owe the center its first weights."""
        steps = map(self._steps_of, range(len(self._num_restarts)))
        return any(steps) or 0 not in self._group_of(end.rank)


def blamed(
    ends: Sequence[RankEnd], failures: Mapping[int, Failed], steps_of: Callable[[int], int]
) -> Sequence[RankEnd]:
    """`ends`, with the rank first that caused the run's end: wrong input first, then weights that were not finite.

    Of these the rank with the fewest steps counts, because others can have its weights from an exchange; then the
    earliest report. One that has told why may not have ended yet.
    """
    kinds = {InputError.__name__: 0, NotFinite.__name__: 1}
    found = [rank for rank, failure in failures.items() if failure.kind in kinds]
    found.sort(key=lambda rank: (kind := kinds[failures[rank].kind], steps_of(rank) if kind else 0))
    told = [RankEnd(rank, failures[rank].exit_code) for rank in found if all(end.rank != rank for end in ends)]

    def order(end: RankEnd) -> tuple[int, bool, bool]:
        place = found.index(end.rank) if end.rank in found else len(found)
        return place, end.return_code == 0, not is_cause(end, failures)

    return sorted([*ends, *told], key=order)
