"""The box's side of the network: connections of remote members.

A member is its (index, incarnation), not its connections. If one breaks, the member continues over another. It has one
for its center and one for the board, so that neither waits for the other.
"""

import math
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from samovar.box.board import Member, Origin
from samovar.box.protocol import (
    NOBODY,
    ON_CHUNKS,
    Attachment,
    Creation,
    Kind,
    Reply,
    Request,
    Status,
    Welcome,
    pack_word,
    status_of,
    unpack_name,
)
from samovar.box.seats import BufferHost, Seat, answer, answer_on_board
from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import RankFailed, SamovarError
from samovar.transports.secure import ConnectionLost, SecureChannel

_REQUEST_START = struct.Struct("<BB2xI")  # kind, version and call, where every version has them
_MOST_TURNED_AWAY, _TURNING_AWAY_S = 16, 5.0  # connections beyond the most that are told so, and how long it may take


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """A member without a connection is away after `away_s`: it does not count, but may return as the same member.

    Its place is given up after `absent_s`. Everything else has `timeout_s`.
    """

    timeout_s: float = 60.0
    away_s: float = 2.0
    absent_s: float = 120.0
    most_connections: int = 256


class _Lane(Enum):
    """The purpose of a connection."""

    CENTER = 1
    BOARD = 2
    VIEW = 3


@dataclass(slots=True)
class _Place:
    """A seat, and the connections that its member has now; `attempt` is how it came."""

    name: str
    seat: Seat
    attempt: int = 0
    locks: dict[_Lane, threading.Lock] = field(  # held while a request is answered
        default_factory=lambda: {lane: threading.Lock() for lane in _Lane}
    )
    channels: dict[_Lane, SecureChannel] = field(default_factory=dict)
    left_s: float = 0.0
    is_away: bool = False


class Service:
    """Serves connections of members, a thread for each; `accept` is for a `Listener`."""

    def __init__(self, host: BufferHost, config: ServingConfig) -> None:
        self.host = host
        self.config = config
        self._lock = threading.Lock()
        self._places: list[_Place] = []
        self._threads: dict[SecureChannel, threading.Thread] = {}

    def accept(self, channel: SecureChannel) -> None:
        """Serve the connection. If there are too many, say so, and close it."""
        with self._lock:
            count, most = len(self._threads), self.config.most_connections
            if count >= most + _MOST_TURNED_AWAY:
                channel.close()
                return
            serve = self._serve if count < most else self._turn_away
            thread = threading.Thread(target=self._until_end, args=(serve, channel), name="samovar-member", daemon=True)
            thread.start()  # under the lock: who ends meanwhile may join it
            self._threads[channel] = thread

    def _until_end(self, serve: Callable[[SecureChannel], None], channel: SecureChannel) -> None:
        """Serve the connection until it is lost or says nonsense, which tells nothing of what comes next."""
        try:
            with suppress(SamovarError):
                serve(channel)
        finally:
            channel.close()
            with self._lock:
                self._threads.pop(channel, None)

    def _serve(self, channel: SecureChannel) -> None:
        """Answer the requests of one connection."""
        connection = _Connection(channel, self)
        channel.heed_silence()
        try:
            while True:
                connection.answer_next()
        finally:
            connection.leave()

    def _turn_away(self, channel: SecureChannel) -> None:
        """Answer one request, by the reason."""
        deadline = Deadline.after(_TURNING_AWAY_S)
        request = Request.unpack(channel.receive(deadline))
        channel.receive_body(np.empty(request.body_bytes, np.uint8), deadline)
        why = f"it has {self.config.most_connections} connections, which is the most it takes; end a member first"
        _refuse(channel, request, why, Status.FULL, deadline)

    def close(self) -> None:
        """End all connections, and give up their members' places."""
        with self._lock:
            threads = dict(self._threads)
        for channel, thread in threads.items():
            channel.end()
            thread.join()
        self.expire(math.inf)

    def expire(self, now_s: float | None = None) -> None:
        """Mark members that are away, and give up the places of those that were away for long."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            for place in self._places:
                if not (place.channels or place.is_away) and now_s - place.left_s >= self.config.away_s:
                    _show_away(place, is_away=True)
        self._give_up(lambda place: now_s - place.left_s >= self.config.absent_s)

    def attached(self, attachment: Attachment, member: Member, lane: _Lane, channel: SecureChannel) -> _Place:
        """The member's place, from now on over this connection too; one of its kind that it had before ends first."""
        self.expire()
        if member.index >= 0 and member.incarnation == 0:  # a new one asks for this row: an absent one loses it
            self._give_up(
                lambda place: (
                    (place.name, place.seat.member.index) == (attachment.name, member.index)
                    and place.attempt != attachment.attempt
                )
            )
        with self._lock:
            place = self._found(attachment, member)
            if place is None:
                origin = Origin(channel.others_address, attachment.process_id)
                seat = self.host.attach(attachment, member, origin)
                place = _Place(attachment.name, seat, attachment.attempt)
                self._places.append(place)
            before = place.channels.get(lane)
            place.channels[lane] = channel
            if place.is_away:
                _show_away(place, is_away=False)
        if before is not None:
            before.end()
        return place

    def left(self, place: _Place, lane: _Lane, channel: SecureChannel) -> None:
        """The connection is over; the member may come back over another, or has."""
        with self._lock:
            if place.channels.get(lane) is channel:
                del place.channels[lane]
                place.left_s = time.monotonic()

    def detached(self, place: _Place) -> None:
        """Free the place, for good."""
        with self._lock:
            if place not in self._places:
                return
            self._places.remove(place)
            channels = list(place.channels.values())
        place.seat.close()
        for channel in channels[1:]:
            channel.end()

    def _found(self, attachment: Attachment, member: Member) -> _Place | None:
        """The place of a known member, or of one that lost the answer to its first attachment."""
        for place in self._places:
            if member.incarnation == 0:
                is_its_own = place.attempt == attachment.attempt
            else:
                is_its_own = (place.seat.member, place.seat.token) == (member, attachment.token)
            if is_its_own and place.name == attachment.name:
                return place
        return None

    def _give_up(self, condition: Callable[[_Place], bool]) -> None:
        with self._lock:
            gone = [place for place in self._places if not place.channels and condition(place)]
            self._places = [place for place in self._places if place not in gone]
        for place in gone:
            place.seat.close()

    @property
    def has_members(self) -> bool:
        """Whether any member has a place."""
        with self._lock:
            return bool(self._places)


def _show_away(place: _Place, *, is_away: bool) -> None:
    """The caller has the service's lock."""
    place.is_away = is_away
    with suppress(RankFailed):  # the row has another member by now
        place.seat.show_away(is_away=is_away)


class _Connection:
    """One connection of a member; its memory is one part for any request."""

    def __init__(self, channel: SecureChannel, service: Service) -> None:
        self._channel = channel
        self._service = service
        self._place: _Place | None = None
        self._lane = _Lane.CENTER
        self._buffer = np.empty(0, np.float32)

    def answer_next(self) -> None:
        """Raises SamovarError if the connection is over."""
        header = self._channel.receive(FOR_EVER)
        deadline = Deadline.after(self._service.config.timeout_s)
        try:
            request = Request.unpack(header)
        except SamovarError as error:
            told = np.frombuffer(str(error).encode(), np.uint8)
            kind, _version, call = _REQUEST_START.unpack_from(header)
            self._channel.send(Reply(kind, Status.REFUSED, call, body_bytes=len(told)).pack(), told, deadline)
            raise
        if request.kind in ON_CHUNKS:
            self._answer_on_chunks(request, deadline)
            return
        body = np.empty(request.body_bytes, np.uint8)
        self._channel.receive_body(body, deadline)
        try:
            text = self._done(request, body.tobytes())
        except ConnectionLost:
            raise
        except (SamovarError, OSError) as error:  # no descriptor is free, say
            _refuse(self._channel, request, str(error), status_of(error), deadline)
            return
        floats = np.frombuffer(text, np.uint8)
        self._channel.send(Reply.to(request, len(text)).pack(), floats, deadline)

    def leave(self) -> None:
        """The connection is over; the member may come back."""
        place, self._place = self._place, None
        if place is not None and self._lane is _Lane.VIEW:
            place.seat.close()
        elif place is not None:
            self._service.left(place, self._lane, self._channel)

    def _answer_on_chunks(self, request: Request, deadline: Deadline) -> None:
        place = self._place
        if place is None or self._lane is _Lane.BOARD:
            raise SamovarError("the first request must be ATTACH")
        part = request.elements(place.seat.shape)
        if len(self._buffer) < part.stop - part.start:
            self._buffer = np.empty(part.stop - part.start, np.float32)
        floats = self._buffer[: part.stop - part.start]
        if request.body_bytes:
            self._channel.receive_body(floats, deadline)
        with self._its_turn(place):
            try:
                found = answer(place.seat, request, floats, deadline)
            except SamovarError as error:
                _refuse(self._channel, request, str(error), status_of(error), deadline)
                return
            # In its turn: what is sent may be the member's kept answer.
            self._channel.send(found.reply.pack(), found.versions, deadline, found.body)

    @contextmanager
    def _its_turn(self, place: _Place) -> Iterator[None]:
        """Nothing else of this member is answered; raises ConnectionLost if it has another connection by now."""
        with place.locks[self._lane]:
            if place.channels.get(self._lane) is not self._channel:
                raise ConnectionLost("the member has another connection by now")
            yield

    def _done(self, request: Request, body: bytes) -> bytes:
        """The answer's text. Raises SamovarError."""
        host = self._service.host
        match request.kind:
            case Kind.ATTACH | Kind.WATCH:
                return self._attach(Attachment.unpack(body), request)
            case Kind.DETACH:
                place, self._place = self._place, None
                if place is not None:
                    self._service.detached(place)
            case Kind.CREATE:
                wanted = Creation.unpack(body)
                return pack_word(host.buffers.create(wanted.name, wanted.shape, wanted.attempt).is_new)
            case Kind.DROP:
                host.buffers.drop(unpack_name(body))
            case Kind.NAMES:
                return "\n".join(host.buffers.names()).encode()
            case _:
                return self._on_board(request, body)
        return b""

    def _on_board(self, request: Request, body: bytes) -> bytes:
        if self._place is None or self._lane is _Lane.CENTER:
            raise SamovarError("the first request must be WATCH")
        with self._its_turn(self._place):
            return answer_on_board(self._place.seat, request, body)

    def _attach(self, attachment: Attachment, request: Request) -> bytes:
        if self._place is not None:
            raise RankFailed(f"this connection is attached to {self._place.name!r} already; take another")
        if request.kind is Kind.WATCH and request.member == NOBODY:
            self._lane = _Lane.VIEW
            viewed = self._service.host.view(attachment.name)
            if attachment.token not in (0, viewed.token):
                raise RankFailed(f"buffer {attachment.name!r} was made again, and is another one; open it again")
            self._place = _Place(attachment.name, viewed)
            self._place.channels[self._lane] = self._channel
        else:
            self._lane = _Lane.CENTER if request.kind is Kind.ATTACH else _Lane.BOARD
            self._place = self._service.attached(attachment, request.member, self._lane, self._channel)
        seat = self._place.seat
        return Welcome(seat.shape, seat.member, seat.token).pack()


def _refuse(channel: SecureChannel, request: Request, reason: str, status: Status, deadline: Deadline) -> None:
    text = np.frombuffer(reason.encode(), np.uint8)
    channel.send(Reply.to(request, len(text), status).pack(), text, deadline)
