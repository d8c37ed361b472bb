"""The spans of a rank's work, kept in memory while a few steps run."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from samovar.core.errors import InputError

MAX_SPANS_PER_RANK: Final = 100_000
_WINDOW = re.compile(r"steps=(\d+)-(\d+)")


class Span(NamedTuple):
    """Work on a stream, in seconds of the monotonic clock, which all ranks of a host share.

    `sends` and `takes` name an exchange, equally on all ranks: data leaves for it as the span begins, or has come
    from it as the span ends.
    """

    stream: str
    name: str
    start_s: float
    stop_s: float
    sends: str | None = None
    takes: str | None = None


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """The steps to be traced, the first and the last, counted from 1 as everywhere where steps are shown."""

    first_step: int
    last_step: int

    @classmethod
    def parse(cls, written: str, what: str = "--trace") -> "TraceWindow":
        """Of "steps=A-B"; InputError about `what` for anything else."""
        match = _WINDOW.fullmatch(written)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"{what} {written!r}: give the first and the last step, from 1, as in steps=20-30")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.first_step}-{self.last_step}"


class Trace:
    """Takes a rank's spans while `is_active`: `capacity` of them, the rest is only counted. Cost: 0.3 us a span.

    `clock_offset_s` is to be added to this rank's clock to get rank 0's: 0 on one host.
    """

    def __init__(
        self, rank: int, capacity: int = MAX_SPANS_PER_RANK, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.rank = rank
        self.is_active = False
        self.clock_offset_s = 0.0
        self.num_left_out = 0
        self.now_s = clock_s
        self._capacity = capacity
        self._spans: list[Span] = []

    def add(self, span: Span) -> None:
        if not self.is_active:
            return
        if len(self._spans) == self._capacity:
            self.num_left_out += 1
        else:
            self._spans.append(span)

    def take(self) -> list[Span]:
        """All spans so far, in the order of their ends; their memory is given back."""
        spans, self._spans = self._spans, []
        return spans
