"""Which deaths a run outlives: those of workers that wait for nobody."""

import math
from collections.abc import Callable, Mapping, Sequence

from samovar.core.board import BoardWord
from samovar.core.errors import InputError
from samovar.launch.processes import RankEnd
from samovar.report.records import Failed, Notice, Record
from samovar.report.script_wording import how
from samovar.transports.shm import Board

MOST_RESTARTS = 1  # of a rank; one that dies again would do so for ever


class Survivors:
    """The launcher's judgement on ranks that end, where the others can go on without them.

    Where it `may_restart`, a rank that a signal killed is started again, `MOST_RESTARTS` times; one that gave up itself
    or died too often is gone, which `board` tells the others. `failures` are the reasons that ranks told, `show` shows
    a record.
    """

    def __init__(
        self,
        world_size: int,
        may_restart: bool,
        failures: Mapping[int, Failed],
        board: Board,
        show: Callable[[Record], None],
    ) -> None:
        self._most_restarts = MOST_RESTARTS if may_restart else 0
        self._failures = failures
        self._board = board
        self._show = show
        self._num_restarts = [0] * world_size
        self._gone: set[int] = set()

    def is_replaced(self, end: RankEnd) -> bool:
        """Whether the rank is started again; tells what becomes of it."""
        rank = end.rank
        may_come_back = self._num_restarts[rank] < self._most_restarts and not self._is_stopping
        if end.return_code < 0 and may_come_back:
            self._num_restarts[rank] += 1
            self._tell(end, "it starts again from the center")
            return True
        self._gone.add(rank)
        self._board.post(rank, BoardWord.IS_GONE, 1)
        if self._are_left and not self._is_input_wrong:
            self._tell(end, "it does not come back")
        return False

    def patience_s(self, _end: RankEnd) -> float:
        """How long others may go on: for ever, while some are left and what they were given can be used."""
        return math.inf if self._are_left and not self._is_input_wrong else 0.0

    @property
    def _is_stopping(self) -> bool:
        return self._board.read(self._board.launcher_row, BoardWord.STOP_SIGNAL) != 0

    @property
    def _are_left(self) -> bool:
        return len(self._gone) < len(self._num_restarts)

    @property
    def _is_input_wrong(self) -> bool:
        return any(failure.kind == InputError.__name__ for failure in self._failures.values())

    def _tell(self, end: RankEnd, what: str) -> None:
        step = self._board.read(end.rank, BoardWord.STEPS_DONE)
        failure = self._failures.get(end.rank)
        own = f"rank {end.rank}: "
        reason = f" {how(end.return_code)}" if failure is None else f": {failure.message.removeprefix(own)}"
        others = "the others go on" if len(self._num_restarts) > 1 else "the center stays as it is"
        text = f"rank {end.rank}{reason} after step {step}; {others}, and {what}"
        self._show(Notice(level="warning", text=text))


def blamed(ends: Sequence[RankEnd], failures: Mapping[int, Failed]) -> Sequence[RankEnd]:
    """`ends`, those first whose input was wrong: of a run that outlives other failures, these ended it."""
    return sorted(ends, key=lambda end: end.rank not in failures or failures[end.rank].kind != InputError.__name__)
