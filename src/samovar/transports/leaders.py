"""Collectives among the first ranks of hosts, in the words of a library that has its own."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed, SamovarError
from samovar.core.group import Group, Host
from samovar.core.layout import rounded_up
from samovar.transports.base import Array
from samovar.transports.rendezvous import first_line, within

_PEER = re.compile(r"\[([^\[\]/ ]+)\]:[0-9]+")
# How long a wait continues after `close`.
_SLICE_S = 0.1
_MAX_SEGMENT_BYTES = 1 << 20  # of gloo's ring


@dataclass(frozen=True, slots=True)
class Leader:
    """A host as the others see it: its ranks, of which the first speaks for all, and the address of that one."""

    host: Host
    address: str

    def __str__(self) -> str:
        return str(self.host)


class Operation(Protocol):
    """An operation of a library that is under way."""

    def is_over(self) -> bool:
        """Whether it is done here, or failed."""

    def wait(self, limit_s: float) -> None:
        """Return when its arrays are complete; its outcome may be asked again.

        Raises RuntimeError with the library's reason, or if it is not over after `limit_s`.
        """


class Library(Protocol):
    """Collectives of a connected library. A call never waits for other ranks; operations run in the order of calls."""

    def all_reduce(self, array: Array) -> Operation: ...
    def broadcast(self, array: Array) -> Operation: ...
    def all_gather(self, own: Array, gathered: Array) -> Operation: ...

    def close(self, left: Sequence[Operation]) -> None:
        """Let go of the connections, although the operations in `left` are not over."""


class LeaderCollectives:
    """`samovar.transports.base.NativeCollectives` among the first ranks of hosts, by a library.

    Ranks are numbers of hosts here. Sums are made in the library's order, the same at every run, so all get the same
    bits. An operation fails by itself where nothing moves for as long as the library was told.

    Cost: `samovar.transports.leaders`. A library with other algorithms sends other numbers of bytes than are counted.
    """

    def __init__(self, library: Library, number: int, leaders: Sequence[Leader]) -> None:
        self.group = Group(number, len(leaders))
        self.bytes_sent = 0
        self._library = library
        self._leaders = leaders
        self._under_way: list[Operation] = []  # and those that have ended since the last one began
        self._lock = threading.Lock()
        self._closing = threading.Event()

    @classmethod
    def connect(
        cls, make: Callable[[], Library], number: int, leaders: Sequence[Leader], advice: str, deadline: Deadline
    ) -> "LeaderCollectives":
        """`make` connects this rank with the others; `advice` is the next step for the user if that fails.

        Raises DeadlineExceeded or RankFailed if not all hosts can be reached, naming addresses.
        """
        others = ", ".join(f"{other} at {other.address}" for k, other in enumerate(leaders) if k != number)
        who = f"{leaders[number]} at {leaders[number].address}: connecting to {others}"
        waiting_s = deadline.remaining_s()
        try:
            library = within(make, deadline)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{who}: not done within {waiting_s:.1f} s; do the hosts reach each other at these addresses, any "
                f"port? {advice[0].upper()}{advice[1:]}"
            ) from error
        except RuntimeError as error:
            raise RankFailed(f"{who}: {first_line(error)}; {advice}") from error
        return cls(library, number, leaders)

    def all_reduce(self, what: str, array: Array) -> "_Pending":
        number, world_size = self.group.rank, self.group.world_size
        self.bytes_sent += ring_all_reduce_bytes(number, world_size, array.nbytes, array.itemsize)
        return self._begun(f"all-reduce {what!r}", lambda: self._library.all_reduce(array))

    def broadcast(self, what: str, array: Array) -> "_Pending":
        self.bytes_sent += broadcast_bytes(self.group.rank, self.group.world_size, array.nbytes)
        return self._begun(f"broadcast {what!r}", lambda: self._library.broadcast(array))

    def all_gather(self, what: str, own: Array, gathered: Array) -> "_Pending":
        assert gathered.shape == (self.group.world_size, *own.shape), (gathered.shape, own.shape)
        self.bytes_sent += all_gather_bytes(self.group.world_size, own.nbytes)
        return self._begun(f"all-gather {what!r}", lambda: self._library.all_gather(own, gathered))

    def close(self) -> None:
        """Let go of the connections; where an operation still hangs, they go with the process instead.

        Waits for operations end at once. Twice is as good as once.
        """
        if not self._closing.is_set():
            self._closing.set()
            with self._lock:
                left, self._under_way = self._not_over(), []
            self._library.close(left)

    def _not_over(self) -> list[Operation]:
        return [operation for operation in self._under_way if not operation.is_over()]

    def _begun(self, what: str, begin: Callable[[], Operation]) -> "_Pending":
        others = [leader for k, leader in enumerate(self._leaders) if k != self.group.rank]
        own = self._leaders[self.group.rank].host
        who = f"rank {own.ranks[0]} on {own.name}: {what} between hosts"
        try:
            operation = begin()
        except RuntimeError as error:
            raise RankFailed(f"{who}: it cannot begin ({_reason(error)}); see the logs of {_any_of(others)}") from error
        with self._lock:
            self._under_way = [*self._not_over(), operation]
        return _Pending(who, others, operation, self._closing.is_set)


class _Pending:
    """See `samovar.transports.base.Pending`; `who` begins every error."""

    def __init__(
        self, who: str, others: Sequence[Leader], operation: Operation, is_called_off: Callable[[], bool]
    ) -> None:
        self._who = who
        self._others = others
        self._operation = operation
        self._is_called_off = is_called_off
        self._began_s = time.monotonic()

    def is_over(self) -> bool:
        return self._operation.is_over()

    def wait(self, deadline: Deadline) -> None:
        while True:
            # An operation that ends while a slice of this wait gives up is asked again how it ended.
            was_over = self.is_over()
            try:
                self._operation.wait(min(deadline.timeout_s(), _SLICE_S))
                return
            except RuntimeError as error:
                if was_over or deadline.passed() or self._is_called_off():
                    raise self._failure(error) from error

    def _failure(self, error: RuntimeError) -> SamovarError:
        """Gloo tells a closed connection by the peer's address, and a silent peer not at all."""
        after_s = time.monotonic() - self._began_s
        if not self.is_over() or "imed out" in str(error):
            return DeadlineExceeded(
                f"{self._who}: {_any_of(self._others)} did not answer within {after_s:.1f} s; is it stopped, cut off "
                "or much slower? See its log, or raise timeout_s"
            )
        found = _PEER.search(str(error))
        gone = [leader for leader in self._others if found is not None and leader.address == found[1]] or self._others
        return RankFailed(
            f"{self._who}: {_any_of(gone)} closed the connection after {after_s:.1f} s ({_reason(error)}); see its log"
        )


def _any_of(leaders: Sequence[Leader]) -> str:
    return " or ".join(map(str, leaders))


def _reason(error: RuntimeError) -> str:
    """Torch's message, without the place in its source and the advice."""
    return re.sub(r"^\[[^]]*\] ?", "", first_line(error)).partition(". This is")[0]


def ring_all_reduce_bytes(rank: int, world_size: int, num_bytes: int, element_bytes: int) -> int:
    """Bytes that `rank` sends: 2(P-1)/P of `num_bytes`, up to rounding.

    The buffer is cut into equal segments of whole elements, at most 1 MiB and at least two a rank. P chunks have
    equally many segments; the last may be shorter or empty. First every chunk except `rank` goes around to be added,
    then every complete chunk except `rank` - 1.
    """
    if world_size == 1 or num_bytes == 0:
        return 0
    num_segments = rounded_up(max(-(-num_bytes // _MAX_SEGMENT_BYTES), 2 * world_size), world_size)
    segment_bytes = rounded_up(-(-num_bytes // num_segments), element_bytes)
    chunk_bytes = num_segments // world_size * segment_bytes

    def chunk(number: int) -> int:
        return max(0, min(chunk_bytes, num_bytes - number * chunk_bytes))

    return 2 * num_bytes - chunk(rank) - chunk((rank - 1) % world_size)


def broadcast_bytes(rank: int, world_size: int, num_bytes: int) -> int:
    """Bytes that `rank` sends down rank 0's binomial tree: in round i, ranks below 2^i each reach one 2^i above."""
    rounds = range((world_size - 1).bit_length())
    return num_bytes * sum(rank < 1 << i and rank + (1 << i) < world_size for i in rounds)


def all_gather_bytes(world_size: int, num_bytes: int) -> int:
    """Bytes that every rank sends: its own part and all but one of the others', around a ring."""
    return (world_size - 1) * num_bytes
