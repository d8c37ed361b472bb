"""The terms that all workers at one buffer of a box share, and the words of the buffer's board that hold them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from samovar.box.board import Rows
from samovar.core.errors import InputError
from samovar.core.layout import Layout
from samovar.strategies.config import StrategyConfig, in_python
from samovar.strategies.traits import KINDS

_PARTS_PER_UNIT = 10**9  # of a momentum as it stands in a word


class BoxWord(IntEnum):
    """The words of a buffer's board; 0 is not set yet."""

    IS_READY = 0  # a Readiness: whether the center holds what the run starts from
    STEPS = 1  # of the run as a whole, so far
    GOAL = 2  # the most steps that anybody who trains here was asked for
    STRATEGY = 3
    MOMENTUM = 4  # of the center
    # 11 says that the box has ended (samovar.box.board)
    # 12 and 13 say which part of a center the buffer is (samovar.box.shards)
    NET = 14  # as `samovar.replicate` says it, too


class Readiness(IntEnum):
    """The values of BoxWord.IS_READY; 0 is not yet."""

    FILLED = 1
    GIVEN_UP = 2  # who was to fill the center is gone for good


def say_filled(board: Rows) -> None:
    """The center holds what a run starts from; with no Terms on the board, nobody's run."""
    board.set_word(BoxWord.IS_READY, Readiness.FILLED)


def raise_goal(board: Rows, steps: int) -> None:
    """The run here has at least this many steps as its goal."""
    if board.word(BoxWord.GOAL) < steps:
        board.set_word(BoxWord.GOAL, steps)


@dataclass(frozen=True, slots=True)
class Terms:
    """Strategy and net of a run, for others to be held against; `momentum` is the center's, 0 where it has none."""

    strategy: str
    net: str
    momentum: float = 0.0

    @classmethod
    def of(cls, strategy: StrategyConfig, layout: Layout) -> "Terms":
        """Of a resolved strategy; the net is its parameters' names, shapes and places."""
        return cls(strategy.name, layout.fingerprint(), strategy.center_momentum or 0.0)

    def say(self, board: Rows) -> None:
        """Write them on the board; the worker that makes the buffer calls this."""
        for word, value in self._words().items():
            board.set_word(word, value)

    def claim(self, board: Rows, where: str) -> None:
        """Write what the board does not say yet, in a torch loop. Raises InputError if others train by other terms."""
        for word, value in self._words().items():
            if value:
                board.claim_word(word, value)
        try:
            self.require_same(board, where)
        except InputError as error:
            raise InputError(in_python(str(error))) from error

    def require_same(self, board: Rows, where: str) -> None:
        """Raises InputError if others train by other terms at `where`."""
        words = self._words()
        different = [word for word, value in words.items() if board.word(word) != value]
        if different:
            raise InputError(f"{where} {self._sentence(different[0], board.word(different[0]))}")

    def _words(self) -> dict[BoxWord, int]:
        return {
            BoxWord.STRATEGY: word_of(self.strategy),
            BoxWord.NET: word_of(self.net),
            BoxWord.MOMENTUM: round(self.momentum * _PARTS_PER_UNIT),
        }

    def _sentence(self, word: BoxWord, found: int) -> str:
        if word is BoxWord.STRATEGY:
            names = [name for name in KINDS if word_of(name) == found]
            if not names:
                who = "is trained with a strategy of another program" if found else "was not made by `samovar train`"
                return f"{who}; give --buffer NAME"
            return f"is trained with {names[0]}, this run has {self.strategy}; give --strategy {names[0]}"
        if word is BoxWord.NET:
            return "holds another net: names or shapes of its parameters differ; train its net, or give --buffer NAME"
        momentum = found / _PARTS_PER_UNIT
        return (
            f"has momentum {momentum:g} at its center, this run {self.momentum:g}; give --center-momentum {momentum:g}"
        )


def word_of(text: str) -> int:
    """A name as a word, which is never 0."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) + 1


MASTER, FIRST, MEAN = "master", "first", "mean"
STOP_RULES: Final = (MEAN, MASTER, FIRST)


def run_steps(rule: str, steps_done: Sequence[int], master: int) -> int:
    """The steps of a run whose workers have done `steps_done`: the master's, the most of any, or their mean.

    The mean is rounded down, and the others do a dead worker's steps. The run is over for all when these steps reach
    the number asked for. Tests, snapshots and learning rates follow them too. Source: Ahn et al. 2018 (ShmCaffe).
    """
    if rule == MASTER:
        return steps_done[master]
    return max(steps_done) if rule == FIRST else sum(steps_done) // len(steps_done)


def described(rule: str, num_steps: int, *, at_box: bool = False) -> str:
    """The rule as text; `at_box` the master is the present member of the lowest number."""
    master = "the member of the lowest number" if at_box else "rank 0"
    who = {MASTER: f"{master} has done", FIRST: "the first worker has done", MEAN: "workers have done, on average,"}[
        rule
    ]
    return f"stop rule {rule}: the run ends when {who} {num_steps:,} steps"
