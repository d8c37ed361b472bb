"""Windows of a library whose waits have no deadline: a wait here looks at its own slot again and again.

A call of the library that cannot end by itself is watched by a thread, which ends this process at the deadline.
"""

import os
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.transports.base import Array, Notification, PeerTransport, PeerWindow

_Result = TypeVar("_Result")

WORD_BYTES = 8
WORDS = 2**64
LINE_BYTES = 64
# What ranks tell each other when they open a window: its bytes and its slots.
_SIZES_BYTES = 2 * WORD_BYTES
# A wait sleeps for a tenth of the time that it has taken, so it adds as little, and at most for this.
_LONGEST_SLEEP_S = 0.001
# A wait that takes longer than this looks whether the rank that it waits for still lives.
_LOOK_S = 0.1


class LookingTransport(PeerTransport):
    """A part of transports over such a library. All ranks make it together.

    Windows open, and peers answer, by `deadline_after(timeout_s)`.
    """

    _meeting: "LookingWindow"  # with `meeting_sizes`, where ranks tell each other the sizes of the others

    def __init__(
        self,
        group: Group,
        names: Sequence[str] | None,
        threads: str,
        timeout_s: float,
        deadline_after: Callable[[float], Deadline],
    ) -> None:
        super().__init__(group, names, threads)
        self._timeout_s = timeout_s
        self._deadline_after = deadline_after
        self._watcher: Watcher | None = None
        self._num_met = 0

    @property
    def meeting_sizes(self) -> tuple[int, int]:
        return 2 * self.group.world_size * _SIZES_BYTES, self.group.world_size

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> "LookingWindow":
        """Waits for all ranks. Cost: num_bytes + 8 * num_slots of this rank's memory, two messages to each other rank.

        Raises SamovarError if another rank opened it with other sizes, InputError if memory is short, DeadlineExceeded
        or RankFailed if a rank does not come.
        """
        own = (num_bytes, num_slots)
        for rank, sizes in enumerate(self._met(own)):
            if sizes != own:
                raise SamovarError(
                    f"{self.names[self.group.rank]}: window {name!r}: it has {own[0]} bytes and {own[1]} slots here, "
                    f"{sizes[0]} bytes and {sizes[1]} slots on {self.names[rank]}; do all ranks train one net?"
                )
        return self._opened(name, num_bytes, num_slots)

    @abstractmethod
    def _opened(self, name: str, num_bytes: int, num_slots: int) -> "LookingWindow":
        """The window, zeroed on all ranks, whose sizes are equal."""

    def close(self) -> None:
        """End all threads; waits for no other rank."""
        self._is_closed = True
        self._background.close()
        if self._watcher is not None:
            self._watcher.end()

    @abstractmethod
    def farewell(self) -> None:
        """Wait until every other rank has come to its end, too. The last call; a failed rank does not make it."""

    def progress(self) -> None:
        """Let the library carry out what other ranks ask of this one."""

    def is_broken(self, _peer: int) -> bool:
        """Whether operations on the peer fail, as far as the library tells."""
        return False

    def watched(self, peer: int) -> AbstractContextManager[None]:
        """While this is open, the calling thread waits for the peer in a call that knows no deadline."""
        return nullcontext() if self._watcher is None else self._watcher.over(peer, self.deadline())

    def deadline(self) -> Deadline:
        return self._deadline_after(self._timeout_s)

    def until(
        self, look: Callable[[], _Result | None], is_over: Callable[[], bool], deadline: Deadline
    ) -> _Result | None:
        """The result of `look()`, once there is one; None if the deadline passes, or `is_over`."""
        began_s = time.monotonic()
        next_look_s = began_s + _LOOK_S
        while (found := look()) is None:
            now_s = time.monotonic()
            is_last = deadline.passed()
            if now_s >= next_look_s:
                next_look_s, is_last = now_s + _LOOK_S, is_last or is_over()
            self.progress()
            if is_last:
                return look()  # what came before the end of a peer counts
            time.sleep(min((now_s - began_s) / 10, _LONGEST_SLEEP_S))
        return found

    def _met(self, sizes: tuple[int, int]) -> list[tuple[int, ...]]:
        """The sizes that every rank tells here, when all have. A rank is at most one meeting ahead of another."""
        window, rank, world_size = self._meeting, self.group.rank, self.group.world_size
        self._num_met += 1
        half = self._num_met % 2 * world_size * _SIZES_BYTES
        own, told = np.array(sizes, np.int64), Notification(rank, self._num_met)
        for peer in range(world_size):
            window.put(peer, half + rank * _SIZES_BYTES, own, told)
        for peer in range(world_size):
            window.wait(peer, self._num_met, peer, self.deadline())
        rows = window.local[half : half + world_size * _SIZES_BYTES].view(np.int64).reshape(-1, len(sizes))
        return [tuple(row) for row in rows.tolist()]


class LookingWindow(PeerWindow):
    """A part of their windows. See `samovar.transports.base.Window`."""

    @abstractmethod
    def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None: ...

    @abstractmethod
    def accumulate(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
        """Add float32 or float64 to the peer's memory, then notify if asked.

        Additions of several ranks are complete in the end; their order is not known.
        """

    @abstractmethod
    def fetch_add(self, peer: int, offset: int, value: int) -> int: ...

    @abstractmethod
    def compare_swap(self, peer: int, offset: int, expected: int, desired: int) -> int: ...

    def notify(self, peer: int, notification: Notification) -> None:
        self.put(peer, 0, np.empty(0, np.uint8), notification)

    def _check_word(self, peer: int, offset: int) -> None:
        self._check(peer, offset, WORD_BYTES)
        if offset % WORD_BYTES != 0:
            raise SamovarError(f"an atomic needs an offset divisible by {WORD_BYTES}, got {offset}")


class Watcher:
    """A thread that lets a library work every `period_s`. It ends the process if a peer does not answer in time.

    `end` is how it ends; `tells` says what that does to others.
    """

    def __init__(self, transport: LookingTransport, period_s: float, end: Callable[[], None], tells: str) -> None:
        self._transport, self._period_s = transport, period_s
        self._end_process, self._tells = end, tells
        self._waits: dict[int, tuple[int, Deadline]] = {}  # by thread
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samovar-progress", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self, peer: int, deadline: Deadline) -> Iterator[None]:
        """While this is open, the calling thread waits for the peer."""
        self._waits[threading.get_ident()] = (peer, deadline)
        try:
            yield
        finally:
            del self._waits[threading.get_ident()]

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        names, rank = self._transport.names, self._transport.group.rank
        while not self._ended.wait(self._period_s):
            self._transport.progress()
            for peer, deadline in list(self._waits.values()):
                if deadline.passed() or self._transport.is_broken(peer):
                    self._ended.set()  # the end may return, and come a moment later
                    sys.stderr.write(
                        f"samovar: error: {names[rank]}: {names[peer]} did not answer in time; is it stopped, or is "
                        f"its host or link gone? {self._tells}\n"
                    )
                    sys.stderr.flush()
                    self._end_process()
                    return


def end_at_once() -> None:
    """End this process, so that the others, or their launcher, notice."""
    os._exit(RankFailed.exit_code)


def mpi_windows() -> Any:
    """The module `samovar.transports.mpi`; this starts MPI. Raises InputError if mpi4py finds no library of it."""
    try:
        return import_module("samovar.transports.mpi")
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"transport 'mpi': mpi4py cannot load MPI: {error}; install one, such as by `pip install 'samovar[mpi]'`"
        ) from error
