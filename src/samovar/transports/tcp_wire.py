"""What ranks say to each other over a channel: headers of fixed size, each checked before anything is done."""

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from samovar.core.errors import SamovarError

# verb, dtype, window, slot, offset, size or count, value, expected
_REQUEST = struct.Struct("<BB2xIqqqQQ")
_HELLO = struct.Struct("<8sIIIH2x16s")
_MAGIC = b"samovarW"
_VERSION = 1
_MOST_BYTES = 1 << 46
_MOST_SLOTS = 1 << 24
_DTYPES: tuple[type[np.generic], ...] = (np.uint8, np.float32, np.float64)
NO_SLOT = -1


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
class Request:
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

    @classmethod
    def unpack(cls, header: bytes) -> "Request":
        """Raises SamovarError where no rank of this version sends it."""
        verb, dtype, window, slot, offset, size, value, expected = _REQUEST.unpack_from(header)
        if verb not in _VERBS or dtype >= len(_DTYPES):
            raise SamovarError(f"no such request: verb {verb}, type {dtype}")
        if not (0 <= size <= _MOST_BYTES and 0 <= offset <= _MOST_BYTES and NO_SLOT <= slot <= _MOST_SLOTS):
            raise SamovarError(f"no such request: {size} bytes at {offset}, slot {slot}")
        if size % np.dtype(_DTYPES[dtype]).itemsize != 0:
            raise SamovarError(f"no such request: {size} bytes are no whole elements")
        return cls(Verb(verb), window, offset, size, slot, value, expected, _DTYPES[dtype])


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a rank to a peer: who speaks to whom, in which job."""

    job: str
    rank: int
    peer: int
    world_size: int

    def pack(self) -> bytes:
        return _HELLO.pack(_MAGIC, self.rank, self.peer, self.world_size, _VERSION, _digest(self.job))

    def is_packed_in(self, header: bytes) -> bool:
        return header.startswith(self.pack())


def speaker(header: bytes) -> int:
    """The rank that a Hello says it comes from; anything at all where it is none."""
    return int(_HELLO.unpack_from(header)[1])


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]
