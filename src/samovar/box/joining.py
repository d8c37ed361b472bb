"""Endpoints of boxes, on this host or another: requests to them, and a seat for one member."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.box.base import CenterWithVelocity, SeatCenter
from samovar.box.board import ENDED_WORD, NUM_WORDS, Board, Member, Row, Rows
from samovar.box.buffers import Buffer, BufferShape, new_token
from samovar.box.line import BoxAddress
from samovar.box.local import LocalBox, checked_name
from samovar.box.mapped import MappedCenter
from samovar.box.protocol import Creation, Kind, pack_name
from samovar.box.remote import RemoteBoard, RemoteCenter
from samovar.box.shards import CenterShard
from samovar.core.clock import Deadline
from samovar.core.closing import Closing
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.transports.keys import read_key
from samovar.transports.tcp_listen import HIGHEST_PORT, parse_address

_PATIENCE_S, _PAUSE_S = 5.0, 0.05
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The place of a box: a `name` of this user on this host, or an `address` with a key file."""

    name: str | None
    address: tuple[str, int] | None
    key_file: Path | None

    def __str__(self) -> str:
        if self.address is None:
            return f"box {self.name!r}"
        return f"the box at {self.address[0]}:{self.address[1]}"


class BoxSeat(Closing):
    """One member of a buffer; a context manager, which leaves the box at its end.

    If the box's server dies, a local seat continues. A remote one waits for the next server until its deadlines.
    """

    def __init__(
        self, center: SeatCenter, board: Rows, member: Member, shape: BufferShape, leave: Callable[[], None]
    ) -> None:
        self.center = center
        self.board = board
        self.member = member
        self.shape = shape
        self._leave = leave

    def close(self) -> None:
        """Show the last post, end updates in the background, then free the row."""
        self._leave()


def parse_endpoint(text: str, key_file: Path | None) -> Endpoint:
    """`NAME`, or `HOST:PORT` with a key file ([::1]:4711 for IPv6). Raises InputError, also if no key is in it."""
    if "," in text:
        raise InputError(f"--box {text}: names several boxes; give the one that is meant")
    if ":" not in text:
        if key_file is not None:
            raise InputError(f"--key-file {key_file}: box {text!r} is one of this host; --box HOST:PORT needs a key")
        return Endpoint(checked_name(text), None, None)
    if (address := parse_address(text, lowest_port=1)) is None:
        raise InputError(f"--box {text!r}: give a name, or HOST:PORT with a port from 1 to {HIGHEST_PORT}")
    if key_file is None:
        raise InputError(f"--box {text}: a box of another host wants its key; give --key-file FILE")
    read_key(key_file)
    return Endpoint(None, address, key_file)


def create_buffer(endpoint: Endpoint, name: str, shape: BufferShape, who: str, deadline: Deadline) -> bool:
    """Make a buffer of zeros: True if it was made, False if one of this shape existed.

    `who` begins every error. Raises InputError if one of another shape exists, or nobody serves the box.
    """
    if endpoint.name is None:
        return _address(endpoint).create(Creation(name, shape, new_token()), who, deadline)
    with _said_by(who):
        buffer = LocalBox(endpoint.name).create(name, shape, deadline)
    buffer.close()
    return buffer.is_new


def take_seat(
    endpoint: Endpoint, name: str, who: str, deadline: Deadline, index: int | None = None, timeout_s: float = 60.0
) -> BoxSeat:
    """Become a member of buffer `name`, in row `index` or the first free one.

    Updates in the background, and calls of a remote board, have `timeout_s`.

    Raises InputError if there is no such buffer or row, no room, or no server; RankFailed if row `index` belongs to a
    living process.
    """
    if endpoint.name is None:
        return _remote_seat(_address(endpoint), name, who, deadline, index, timeout_s)
    with _said_by(who), LocalBox(endpoint.name).attach(name, deadline) as buffer:
        return mapped_seat(buffer, index, str(endpoint))


def buffer_names(endpoint: Endpoint, who: str, deadline: Deadline) -> list[str]:
    """The box's buffers, sorted. Raises InputError if nobody serves the box."""
    if endpoint.name is None:
        return _address(endpoint).ask(Kind.NAMES, b"", who, deadline).decode().split()
    with _said_by(who):
        return LocalBox(endpoint.name).names(deadline)


def drop_buffer(endpoint: Endpoint, name: str, who: str, deadline: Deadline) -> None:
    """Delete it; members at work keep theirs. Raises InputError if there is none, or nobody serves the box."""
    if endpoint.name is None:
        _address(endpoint).ask(Kind.DROP, pack_name(name), who, deadline)
        return
    with _said_by(who):
        LocalBox(endpoint.name).drop(name, deadline)


@dataclass(frozen=True, slots=True)
class Look:
    """A buffer: its shape, its members, and its part of a center (None: a whole center)."""

    shape: BufferShape
    rows: list[Row]
    part: CenterShard | None


def look_at(endpoint: Endpoint, name: str, who: str, deadline: Deadline) -> Look:
    """The buffer, seen without being a member. Raises InputError as `take_seat`."""
    if endpoint.name is None:
        board = RemoteBoard(_address(endpoint), name, who, deadline)
        try:
            return Look(board.shape, board.rows(), CenterShard.on(board))
        finally:
            board.close(deadline)
    with _said_by(who), LocalBox(endpoint.name).attach(name, deadline) as buffer:
        mapped = Board(buffer.board)
        return Look(BufferShape.of_center(buffer.center), mapped.rows(), CenterShard.on(mapped))


def view_center(endpoint: Endpoint, name: str, who: str, deadline: Deadline) -> tuple[SeatCenter, Callable[[], None]]:
    """The buffer's center, to be read only, and what ends that. Raises InputError as `take_seat`."""
    if endpoint.name is None:
        far = RemoteCenter(_address(endpoint), name, who, deadline, is_viewer=True)
        return far, far.close
    with _said_by(who), LocalBox(endpoint.name).attach(name, deadline) as buffer:
        mapped = MappedCenter(buffer.center, board=Board(buffer.board), box=str(endpoint))
        return mapped, mapped.close


def describe(name: str, found: Look) -> dict[str, Any]:
    """A buffer and its members as JSON holds them: sizes, hosts, processes, steps, speeds, staleness."""
    members = [
        {
            "member": row.member.index,
            "incarnation": row.member.incarnation,
            "process_id": row.process_id,
            "host": row.host,
            "is_alive": row.is_alive,
            **{key: value if math.isfinite(value) else None for key, value in asdict(row.progress).items()},
        }
        for row in found.rows
    ]
    which = (None, None) if found.part is None else (found.part.index + 1, found.part.count)
    return {"name": name, **asdict(found.shape), "part": which[0], "parts": which[1], "members": members}


def read_buffer(endpoint: Endpoint, name: str, who: str, deadline: Deadline) -> tuple[BufferShape, dict[str, Array]]:
    """The buffer's shape, and copies of `center`, `velocity` (where it has one), `versions` and `words` (of the board).

    Others may change it meanwhile: each chunk is whole, and the words are not newer than the center. Cost: 4 bytes an
    element, 8 with velocity. Raises InputError as `take_seat`.
    """
    if endpoint.name is None:
        return _read_remote(_address(endpoint), name, who, deadline)
    with _said_by(who), LocalBox(endpoint.name).attach(name, deadline) as buffer:
        return read_mapped(buffer, deadline)


def read_mapped(buffer: Buffer, deadline: Deadline) -> tuple[BufferShape, dict[str, Array]]:
    """As `read_buffer`."""
    words, shape = _words(Board(buffer.board)), BufferShape.of_center(buffer.center)
    return shape, words | _arrays(MappedCenter(buffer.center), shape, deadline)


def _read_remote(box: BoxAddress, name: str, who: str, deadline: Deadline) -> tuple[BufferShape, dict[str, Array]]:
    with ExitStack() as stack:
        board = RemoteBoard(box, name, who, deadline)
        stack.callback(board.close)
        words = _words(board)
        center = RemoteCenter(box, name, who, deadline, is_viewer=True)
        stack.callback(center.close)
        return center.welcome.shape, words | _arrays(center, center.welcome.shape, deadline)


def _words(board: Rows) -> dict[str, Array]:
    words = [0 if index == ENDED_WORD else board.word(index) for index in range(NUM_WORDS)]
    return {"words": np.array(words, np.uint64)}


def _arrays(center: CenterWithVelocity, shape: BufferShape, deadline: Deadline) -> dict[str, Array]:
    arrays: dict[str, Array] = {"center": np.empty(shape.num_elements, np.float32)}
    arrays["versions"] = center.read(arrays["center"], deadline)
    if shape.with_velocity:
        arrays["velocity"] = np.empty_like(arrays["center"])
        center.read_velocity(arrays["velocity"], deadline)
    return arrays


def mapped_seat(buffer: Buffer, index: int | None = None, box: str = "the box") -> BoxSeat:
    """A member of a buffer whose files this process has, and may close afterwards. Raises as `take_seat`."""
    board = Board(buffer.board)
    member = board.join(index)
    try:
        center = MappedCenter(buffer.center, member, board, box)
    except BaseException:
        board.leave(member)
        raise

    def leave() -> None:
        center.close()
        board.leave(member)

    return BoxSeat(center, board, member, BufferShape.of_mapped(center), leave)


def _remote_seat(
    box: BoxAddress, name: str, who: str, deadline: Deadline, index: int | None, timeout_s: float
) -> BoxSeat:
    center = _remote_center(box, name, who, deadline, index, timeout_s)
    try:
        board = RemoteBoard(box, name, who, deadline, center.member, center.welcome.token, timeout_s)
    except BaseException:
        center.close()
        raise

    def leave() -> None:
        try:
            board.close()
        finally:
            center.close()

    return BoxSeat(center, board, center.member, center.welcome.shape, leave)


def _remote_center(
    box: BoxAddress, name: str, who: str, deadline: Deadline, index: int | None, timeout_s: float
) -> RemoteCenter:
    """A member that was just killed keeps its row until the box notices."""
    patience = Deadline.after(min(_PATIENCE_S, deadline.remaining_s()))
    while True:
        try:
            return RemoteCenter(box, name, who, deadline, timeout_s, index)
        except RankFailed:
            if patience.passed():
                raise
        time.sleep(_PAUSE_S)


def _address(endpoint: Endpoint) -> BoxAddress:
    assert endpoint.address is not None, endpoint
    assert endpoint.key_file is not None, endpoint
    return BoxAddress(endpoint.address, read_key(endpoint.key_file))


@contextmanager
def _said_by(who: str) -> Iterator[None]:
    """Errors begin with `who`."""
    try:
        yield
    except SamovarError as error:
        raise type(error)(f"{who}: {error}") from error
