"""What messages about buffers and boards hold, byte by byte; what has another size, or no sense, is refused."""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

from samovar.box.board import PROGRESS_BYTES, Member, MemberProgress, Origin, Row
from samovar.box.buffers import BufferShape
from samovar.core.errors import InputError, SamovarError

MOST_NAME_BYTES: Final = 128
_ATTACHMENT = struct.Struct("<qqI")  # token, attempt, process
_SHAPE = struct.Struct("<qIBBqB")  # elements, members, velocity, locks, chunk elements, any numbers
_WELCOME = struct.Struct("<iqq")  # member, token
_CREATION = struct.Struct("<q")
_WORD = struct.Struct("<Q")
_ROW = struct.Struct("<iqIB")  # member, process, is it alive
_ORIGIN_BYTES = 20
_ROW_BYTES = _ROW.size + PROGRESS_BYTES + _ORIGIN_BYTES
MOST_ATTACHMENT_BYTES: Final = _ATTACHMENT.size + MOST_NAME_BYTES
MOST_CREATION_BYTES: Final = _CREATION.size + _SHAPE.size + MOST_NAME_BYTES
WORD_BYTES: Final = _WORD.size


def pack_name(name: str) -> bytes:
    """Raises InputError where no buffer can be called so."""
    encoded = name.encode()
    if not 1 <= len(encoded) <= MOST_NAME_BYTES:
        raise InputError(f"the name of a center has 1 to {MOST_NAME_BYTES} bytes, got {name!r}")
    return encoded


def unpack_name(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise SamovarError("a center's name must be text (UTF-8)") from error


@dataclass(frozen=True, slots=True)
class Attachment:
    """Which buffer a connection is for; `token` is its board's, 0 for whichever has the name now.

    `attempt` is a number of this attachment, so that one whose answer was lost makes no second member.
    """

    name: str
    process_id: int
    token: int = 0
    attempt: int = 0

    def pack(self) -> bytes:
        return _ATTACHMENT.pack(self.token, self.attempt, self.process_id) + pack_name(self.name)

    @classmethod
    def unpack(cls, body: bytes) -> "Attachment":
        _check(len(body) > _ATTACHMENT.size, "an attachment", body)
        token, attempt, process_id = _ATTACHMENT.unpack_from(body)
        _check(token >= 0 and attempt >= 0, "an attachment", body)
        return cls(unpack_name(body[_ATTACHMENT.size :]), process_id, token, attempt)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to an attachment: the buffer's shape, who the member is from now on, and the board's token."""

    shape: BufferShape
    member: Member
    token: int

    def pack(self) -> bytes:
        return _WELCOME.pack(self.member.index, self.member.incarnation, self.token) + _pack_shape(self.shape)

    @classmethod
    def unpack(cls, body: bytes) -> "Welcome":
        _check(len(body) == _WELCOME.size + _SHAPE.size, "a welcome", body)
        index, incarnation, token = _WELCOME.unpack_from(body)
        return cls(_unpack_shape(body[_WELCOME.size :]), Member(index, incarnation), token)


@dataclass(frozen=True, slots=True)
class Creation:
    """A buffer to make; `attempt` tells a second try from another who wants the same."""

    name: str
    shape: BufferShape
    attempt: int

    def pack(self) -> bytes:
        return _CREATION.pack(self.attempt) + _pack_shape(self.shape) + pack_name(self.name)

    @classmethod
    def unpack(cls, body: bytes) -> "Creation":
        start = _CREATION.size + _SHAPE.size
        _check(len(body) > start, "a creation", body)
        (attempt,) = _CREATION.unpack_from(body)
        _check(attempt > 0, "a creation", body)
        return cls(unpack_name(body[start:]), _unpack_shape(body[_CREATION.size : start]), attempt)


def pack_word(value: int) -> bytes:
    return _WORD.pack(value)


def unpack_word(body: bytes) -> int:
    _check(len(body) == _WORD.size, "a word", body)
    return int(_WORD.unpack(body)[0])


def unpack_progress(body: bytes) -> MemberProgress:
    _check(len(body) == PROGRESS_BYTES, "a post", body)
    return MemberProgress.unpack(body)


def pack_rows(rows: Sequence[Row]) -> bytes:
    return b"".join(map(_pack_row, rows))


def unpack_rows(body: bytes) -> list[Row]:
    _check(len(body) % _ROW_BYTES == 0, "rows", body)
    return [_unpack_row(body[start : start + _ROW_BYTES]) for start in range(0, len(body), _ROW_BYTES)]


def _pack_row(row: Row) -> bytes:
    head = _ROW.pack(row.member.index, row.member.incarnation, row.process_id, row.is_alive)
    origin = Origin(row.host, 0).pack() if row.host else bytes(_ORIGIN_BYTES)
    return head + row.progress.pack() + origin


def _unpack_row(data: bytes) -> Row:
    index, incarnation, process_id, is_alive = _ROW.unpack_from(data)
    progress = MemberProgress.unpack(data[_ROW.size :])
    origin = Origin.unpack(data[_ROW.size + PROGRESS_BYTES :])
    host = "" if origin is None else origin.host
    return Row(Member(index, incarnation), process_id, bool(is_alive), progress, host)


def _pack_shape(shape: BufferShape) -> bytes:
    try:
        return _SHAPE.pack(*astuple(shape))
    except struct.error as error:
        raise InputError(f"no buffer has the shape {shape}") from error


def _unpack_shape(data: bytes) -> BufferShape:
    """Raises InputError where no buffer has it."""
    return BufferShape.of_sizes(_SHAPE.unpack(data))


def _check(is_right: bool, what: str, body: bytes) -> None:
    if not is_right:
        raise SamovarError(f"{len(body)} bytes are not {what}")
