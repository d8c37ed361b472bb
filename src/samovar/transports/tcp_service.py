"""Requests of peers to a rank's windows over TCP, and the threads that carry them out."""

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import sha256

import numpy as np

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.core.group import Group
from samovar.transports.base import Array
from samovar.transports.secure import PIECE_BYTES, ConnectionLost, SecureChannel
from samovar.transports.tcp_memory import WindowMemory, WindowTable

# verb, dtype, window, slot, offset, size or count, value, expected
_REQUEST = struct.Struct("<BB2xIqqqQQ")
_HELLO = struct.Struct("<8sIIIH2x16s")
_MAGIC = b"samovarW"
_VERSION = 1
_MOST_BYTES = 1 << 46
_MOST_SLOTS = 1 << 24
_DTYPES: tuple[type[np.generic], ...] = (np.uint8, np.float32, np.float64)
NO_SLOT = -1
# At 100 Mbit/s a part takes 0.17 s, which is how long another thread's small message waits.
PART_BYTES = 4 * PIECE_BYTES


class Verb(IntEnum):
    OPEN = 1  # window, size: bytes, slot: number of slots
    PUT = 2
    GET = 3  # answered by the bytes
    ADD = 4
    FETCH_ADD = 5  # answered by the old value
    COMPARE_SWAP = 6  # likewise
    NOTIFY = 7


_VERBS = frozenset(Verb)


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """One verb; its body, where it has one, has `size` bytes. `slot`, unless NO_SLOT, is notified after it."""

    verb: Verb
    window: int
    offset: int = 0
    size: int = 0
    slot: int = NO_SLOT
    value: int = 0
    expected: int = 0
    dtype: type[np.generic] = np.uint8

    def pack(self) -> bytes:
        dtype = _DTYPES.index(self.dtype)
        words = self.value % 2**64, self.expected % 2**64
        return _REQUEST.pack(self.verb, dtype, self.window, self.slot, self.offset, self.size, *words)

    def in_parts(self, body: Array | None) -> Iterator[tuple["PeerRequest", Array | None]]:
        """Requests of at most PART_BYTES that do the same together; the last one notifies."""
        if body is None or body.nbytes <= PART_BYTES:
            yield self, body
            return
        whole = body.reshape(-1).view(np.uint8)
        for start in range(0, self.size, PART_BYTES):
            part = whole[start : start + PART_BYTES]
            slot = self.slot if start + len(part) == self.size else NO_SLOT
            yield replace(self, offset=self.offset + start, size=len(part), slot=slot), part

    @classmethod
    def unpack(cls, header: bytes) -> "PeerRequest":
        """Raises SamovarError if no rank of this version sends it."""
        verb, dtype, window, slot, offset, size, value, expected = _REQUEST.unpack_from(header)
        if verb not in _VERBS or dtype >= len(_DTYPES):
            raise SamovarError(f"no such request: verb {verb}, type {dtype}")
        if not (0 <= size <= _MOST_BYTES and 0 <= offset <= _MOST_BYTES and NO_SLOT <= slot <= _MOST_SLOTS):
            raise SamovarError(f"no such request: {size} bytes at {offset}, slot {slot}")
        if size % np.dtype(_DTYPES[dtype]).itemsize != 0:
            raise SamovarError(f"no such request: {size} bytes are not whole elements")
        return cls(Verb(verb), window, offset, size, slot, value, expected, _DTYPES[dtype])


@dataclass(frozen=True, slots=True)
class PeerHello:
    """The first message of a rank to a peer: both ranks and the job."""

    job: str
    rank: int
    peer: int
    world_size: int

    def pack(self) -> bytes:
        job = sha256(self.job.encode()).digest()[:16]
        return _HELLO.pack(_MAGIC, self.rank, self.peer, self.world_size, _VERSION, job)


def speaker(header: bytes) -> int:
    """The rank that a PeerHello says it comes from; anything at all where it is none."""
    return int(_HELLO.unpack_from(header)[1])


@dataclass(frozen=True, slots=True)
class TcpConfig:
    """`job` tells runs with one key apart; every request to a peer ends by `deadline_after(timeout_s)`.

    If `peers_return`, a peer may connect again, in a new process: its newest connection counts.
    """

    job: str
    timeout_s: float = 60.0
    deadline_after: Callable[[float], Deadline] = Deadline.after
    peers_return: bool = False

    def deadline(self) -> Deadline:
        return self.deadline_after(self.timeout_s)


class PeerService:
    """Carries out requests of peers, a thread for each; `lost` says which peers went, and why."""

    def __init__(self, group: Group, names: Sequence[str], config: TcpConfig, windows: WindowTable) -> None:
        self.lost: dict[int, str] = {}
        self._group = group
        self._names = names
        self._config = config
        self._windows = windows
        self._lock = threading.Lock()
        self._channels: dict[SecureChannel, threading.Thread] = {}
        self._present: dict[int, SecureChannel] = {}

    def accept(self, channel: SecureChannel) -> None:
        thread = threading.Thread(target=self._serve, args=(channel,), name="samovar-peer", daemon=True)
        with self._lock:
            if len(self._channels) >= 2 * self._group.world_size:
                channel.close()
                return
            thread.start()  # under the lock: who ends meanwhile may join it
            self._channels[channel] = thread

    def linger(self, deadline: Deadline) -> None:
        """Return when all peers have gone, or the deadline passes."""
        for thread in self._served().values():
            thread.join(deadline.remaining_s())

    def close(self) -> None:
        for channel, thread in self._served().items():
            channel.end()
            thread.join()

    def _served(self) -> dict[SecureChannel, threading.Thread]:
        with self._lock:
            return dict(self._channels)

    def _serve(self, channel: SecureChannel) -> None:
        peer = None
        try:
            peer = self._greeted(channel)
            while True:
                self._do(channel, PeerRequest.unpack(channel.receive(FOR_EVER)))
        except SamovarError as error:
            if peer is not None:
                is_cut = isinstance(error, ConnectionLost | DeadlineExceeded)
                self.lost[peer] = str(error) if is_cut else f"it asked wrongly: {error}; see its log"
                self._windows.wake()
        finally:
            channel.close()
            with self._lock:
                del self._channels[channel]

    def _greeted(self, channel: SecureChannel) -> int:
        """The rank at the other end. Raises SamovarError if it is none that belongs here."""
        header = channel.receive(self._config.deadline())
        peer, group = speaker(header), self._group
        if not header.startswith(PeerHello(self._config.job, peer, group.rank, group.world_size).pack()):
            raise SamovarError(f"rank {group.rank}: {channel.peer} belongs to another job")
        with self._lock:
            before = self._present.get(peer)
            is_taken = before is not None and not self._config.peers_return
            if peer >= group.world_size or peer == group.rank or is_taken:
                raise SamovarError(f"rank {group.rank}: {channel.peer} says that it is rank {peer}, which is taken")
            self._present[peer] = channel
        if before is not None:
            before.end()
        channel.peer = self._names[peer]
        return peer

    def _do(self, channel: SecureChannel, request: PeerRequest) -> None:
        if request.verb is Verb.OPEN:
            self._windows.open_by_peer(request.window, request.size, request.slot)
            return
        window = self._windows.window(request.window)
        if request.slot != NO_SLOT:
            window.check_slot(request.slot)
        match request.verb:
            case Verb.PUT:
                channel.receive_body(window.region(request.offset, request.size), self._config.deadline())
            case Verb.ADD:
                self._add(channel, window, request)
            case Verb.GET:
                channel.send_body(window.region(request.offset, request.size), self._config.deadline())
            case Verb.FETCH_ADD:
                self._answer(channel, window.fetch_add(request.offset, request.value))
            case Verb.COMPARE_SWAP:
                self._answer(channel, window.compare_swap(request.offset, request.expected, request.value))
        if request.slot != NO_SLOT:
            window.set_slot(request.slot, request.value)

    def _add(self, channel: SecureChannel, window: WindowMemory, request: PeerRequest) -> None:
        """Piece by piece, so that it takes little memory; each is added as a whole."""
        window.region(request.offset, request.size)
        piece = np.empty(PIECE_BYTES, np.uint8)
        for start in range(0, request.size, PIECE_BYTES):
            part = piece[: min(PIECE_BYTES, request.size - start)]
            channel.receive_body(part, self._config.deadline())
            window.add(request.offset + start, part.view(request.dtype))

    def _answer(self, channel: SecureChannel, word: int) -> None:
        channel.send_body(np.array([word], np.uint64), self._config.deadline())
