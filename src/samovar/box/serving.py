"""The box's side of the network: does on centers what remote members ask for, each update exactly once.

A member is its (index, incarnation), not its connection: where one breaks, the member comes back over another and goes
on. The answers to its exchanges are kept until they are written over by the next, so a lost one can be given again.
"""

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import Member
from samovar.box.protocol import (
    MOST_TEXT_BYTES,
    ON_CHUNKS,
    Kind,
    Reply,
    Request,
    Shape,
    Welcome,
    status_of,
)
from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed, SamovarError
from samovar.transports.base import Array
from samovar.transports.secure import Channel, ConnectionLost

_FOR_EVER = Deadline(math.inf)


class Seat(Protocol):
    """A center as one remote member's place sees it; arrays cover whole chunks from `first_chunk` on.

    See `samovar.box.base.Center`; one call at a time. `answers`, float32 (N,), is the member's own: what its last
    exchange left of its weights. It lives as long as the center, where the server's death is to cost nothing.
    """

    member: Member
    shape: Shape
    answers: Array

    def read(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions: ...

    def write(self, first_chunk: int, values: Array, deadline: Deadline) -> None: ...

    def accumulate(
        self, first_chunk: int, sequence: int, difference: Array, momentum: float, deadline: Deadline
    ) -> Versions: ...

    def exchange(
        self,
        first_chunk: int,
        sequence: int,
        weights: Array,
        moved: Array,
        moving_rate: float,
        deadline: Deadline,
    ) -> Versions:
        """moved = x - d, before c += d shows; chunks that hold the sequence leave c and `moved` alone."""
        ...

    def close(self) -> None:
        """The member is not there any more; its place is free."""
        ...


class Host(Protocol):
    """The box as its server sees it. Calls may come from several threads at once."""

    def attach(self, name: str, member: Member) -> Seat:
        """The center's place for a new member (NOBODY), or for one that was there before this server.

        Raises InputError where there is no such center, RankFailed where the member's place is another's by now.
        """
        ...

    def drop(self, name: str) -> None:
        """Delete a center; who is attached keeps it. Raises InputError where there is none."""
        ...

    def describe(self) -> str:
        """Buffers, members, speeds, staleness as JSON text."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: the reply, and its bodies."""

    reply: Reply
    versions: Versions | None = None
    body: Array | None = None


def answer(seat: Seat, request: Request, body: Array, deadline: Deadline) -> Answer:
    """Do what the request says with the member's center. Raises SamovarError where it cannot be done.

    `body` is float32, as many as the request says; for READ it is filled.
    """
    if request.member != seat.member:
        raise RankFailed(f"member {request.member} is not {seat.member}: a newer one has its place")
    first = request.first_chunk
    match request.kind:
        case Kind.READ:
            versions = seat.read(first, body, deadline)
        case Kind.WRITE:
            seat.write(first, body, deadline)
            versions = np.zeros(request.num_chunks, np.int64)
        case Kind.ACCUMULATE:
            versions = seat.accumulate(first, request.sequence, body, request.rate, deadline)
        case Kind.EXCHANGE:
            return _exchange(seat, request, body, deadline)
        case _:
            raise AssertionError(request)
    floats = body if request.kind is Kind.READ else None
    return Answer(Reply.to(request, 0 if floats is None else floats.nbytes), versions, floats)


def _exchange(seat: Seat, request: Request, weights: Array, deadline: Deadline) -> Answer:
    """Of a chunk that holds the update already, the kept answer is given again."""
    kept = seat.answers[request.elements(seat.shape)]
    arrays = weights, kept
    versions = seat.exchange(request.first_chunk, request.sequence, *arrays, request.rate, deadline)
    return Answer(Reply.to(request, kept.nbytes), versions, kept)


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """A member without a connection keeps its place for `absent_s`; everything else has `timeout_s`."""

    timeout_s: float = 60.0
    absent_s: float = 120.0
    most_connections: int = 256


@dataclass(slots=True)
class _Place:
    """A seat, and the connection that its member has now."""

    seat: Seat
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while a request is answered
    channel: Channel | None = None
    left_s: float = 0.0


class Service:
    """Serves connections of members, a thread for each; `accept` is for a `Listener`."""

    def __init__(self, host: Host, config: ServingConfig) -> None:
        self._host = host
        self._config = config
        self._lock = threading.Lock()
        self._places: dict[tuple[str, Member], _Place] = {}
        self._threads: dict[Channel, threading.Thread] = {}

    def accept(self, channel: Channel) -> None:
        """Serve it; where too many are there, close it."""
        thread = threading.Thread(target=self.serve, args=(channel,), name="samovar-member", daemon=True)
        with self._lock:
            if len(self._threads) >= self._config.most_connections:
                channel.close()
                return
            self._threads[channel] = thread
        thread.start()

    def serve(self, channel: Channel) -> None:
        """Answer the requests of one connection until it ends, and close it."""
        connection = _Connection(channel, self)
        try:
            while True:
                connection.answer_next()
        except SamovarError:  # lost, or nonsense: neither says what comes next
            pass
        finally:
            connection.leave()
            channel.close()
            with self._lock:
                self._threads.pop(channel, None)

    def close(self) -> None:
        """End all connections, and give up their members' places."""
        with self._lock:
            threads = dict(self._threads)
        for channel, thread in threads.items():
            channel.end()
            thread.join()
        self.expire(math.inf)

    def expire(self, now_s: float | None = None) -> None:
        """Give up the places of members that have been without a connection for long."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            gone = [
                key
                for key, place in self._places.items()
                if place.channel is None and now_s - place.left_s >= self._config.absent_s
            ]
            places = [self._places.pop(key) for key in gone]
        for place in places:
            place.seat.close()

    def attached(self, name: str, member: Member, channel: Channel) -> _Place:
        """The member's place, from now on over this connection; one that it had before ends first."""
        self.expire()
        with self._lock:
            place = self._places.get((name, member))
            if place is None:
                place = _Place(self._host.attach(name, member))
                self._places[name, place.seat.member] = place
            before, place.channel = place.channel, channel
        if before is not None:
            before.end()
        return place

    def left(self, place: _Place, channel: Channel) -> None:
        """The connection is over; the member may come back over another, or has."""
        with self._lock:
            if place.channel is channel:
                place.channel, place.left_s = None, time.monotonic()

    def detached(self, name: str, place: _Place) -> None:
        """Free the place, for good."""
        with self._lock:
            self._places.pop((name, place.seat.member), None)
        place.seat.close()

    @property
    def host(self) -> Host:
        return self._host

    @property
    def config(self) -> ServingConfig:
        return self._config


class _Connection:
    """One connection of a member: its memory is one part, whatever is asked."""

    def __init__(self, channel: Channel, service: Service) -> None:
        self._channel = channel
        self._service = service
        self._name = ""
        self._place: _Place | None = None
        self._buffer = np.empty(0, np.float32)

    def answer_next(self) -> None:
        """Raises SamovarError where the connection is over."""
        request = Request.unpack(self._channel.receive(_FOR_EVER))
        deadline = Deadline.after(self._service.config.timeout_s)
        if request.kind in ON_CHUNKS:
            self._answer_on_chunks(request, deadline)
            return
        body = np.empty(request.body_bytes, np.uint8)
        self._channel.receive_body(body, deadline)
        try:
            text = self._done(request, body.tobytes())
        except ConnectionLost:
            raise
        except SamovarError as error:
            self._refuse(request, error, deadline)
            return
        floats = np.frombuffer(text, np.uint8)
        self._channel.send(Reply.to(request, len(text)).pack(), floats, deadline)

    def leave(self) -> None:
        """The connection is over; the member may come back."""
        place, self._place = self._place, None
        if place is not None:
            self._service.left(place, self._channel)

    def _answer_on_chunks(self, request: Request, deadline: Deadline) -> None:
        if self._place is None:
            raise SamovarError("the first request must be ATTACH")
        place = self._place
        part = request.elements(place.seat.shape)
        if len(self._buffer) < part.stop - part.start:
            self._buffer = np.empty(part.stop - part.start, np.float32)
        floats = self._buffer[: part.stop - part.start]
        if request.body_bytes:
            self._channel.receive_body(floats, deadline)
        with place.lock:
            if place.channel is not self._channel:
                raise ConnectionLost("the member has another connection by now")
            try:
                found = answer(place.seat, request, floats, deadline)
            except SamovarError as error:
                self._refuse(request, error, deadline)
                return
            # Under the lock: what is sent may be the member's kept answer.
            self._send(found, deadline)

    def _send(self, found: Answer, deadline: Deadline) -> None:
        assert found.versions is not None
        self._channel.send(found.reply.pack(), found.versions, deadline)
        if found.body is not None:
            self._channel.send_body(found.body, deadline)

    def _refuse(self, request: Request, error: SamovarError, deadline: Deadline) -> None:
        text = np.frombuffer(str(error).encode(), np.uint8)
        self._channel.send(Reply.to(request, len(text), status_of(error)).pack(), text, deadline)

    def _done(self, request: Request, body: bytes) -> bytes:
        """The answer's text. Raises SamovarError."""
        match request.kind:
            case Kind.ATTACH:
                return self._attach(_name(body), request.member)
            case Kind.DETACH:
                place, self._place = self._place, None
                if place is not None:
                    self._service.detached(self._name, place)
            case Kind.DROP:
                self._service.host.drop(_name(body))
            case Kind.LIST:
                return self._service.host.describe().encode()[:MOST_TEXT_BYTES]
        return b""

    def _attach(self, name: str, member: Member) -> bytes:
        if self._place is not None:
            raise RankFailed(f"this connection is attached to {self._name!r} already; take another")
        self._place = self._service.attached(name, member, self._channel)
        self._name = name
        return Welcome(self._place.seat.shape, self._place.seat.member).pack()


def _name(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RankFailed("a center's name must be text (UTF-8)") from error
