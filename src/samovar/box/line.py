"""A member's connection to a box on another host, made again where it breaks."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from samovar.box.board import Member
from samovar.box.protocol import (
    MOST_TEXT_BYTES,
    Attachment,
    Creation,
    Kind,
    Reply,
    Request,
    Status,
    Welcome,
    unpack_word,
)
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.transports.keys import Key
from samovar.transports.secure import Address, ConnectionLost, SecureChannel, connect

_Answer = TypeVar("_Answer")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class BoxAddress:
    """Where a box listens, and the key that it shares with its members."""

    address: Address
    key: Key

    def __str__(self) -> str:
        return f"the box at {self.address[0]}:{self.address[1]}"

    def connect(self, who: str, deadline: Deadline, lost: Callable[[], str | None] = lambda: None) -> SecureChannel:
        return connect(self.address, self.key, who, f"{who}: {self}", deadline, lost)

    def ask(self, kind: Kind, body: bytes, who: str, deadline: Deadline) -> bytes:
        """One question, over a connection of its own."""
        channel = self.connect(who, deadline)
        try:
            return ask(channel, Request(kind, 1), body, deadline)
        finally:
            channel.close()

    def create(self, wanted: Creation, who: str, deadline: Deadline) -> bool:
        """Whether this call made the buffer; where one of this shape was there, False. Raises InputError."""
        while True:
            try:
                return unpack_word(self.ask(Kind.CREATE, wanted.pack(), who, deadline)) == 1
            except ConnectionLost as error:  # it may be made by now: the same number says that it was this call
                if deadline.passed():
                    raise DeadlineExceeded(f"{error}, and it did not come back in time") from error


class Line:
    """A connection of one `kind` (ATTACH or WATCH) to one buffer, as one member; `who` begins every error.

    At first `attachment` and `member` are a request; afterwards they are the box's answer.
    """

    def __init__(
        self, box: BoxAddress, kind: Kind, attachment: Attachment, member: Member, who: str, deadline: Deadline
    ) -> None:
        self.who = who
        self.num_reconnects = -1
        self.lost_s = 0.0  # to other members, as the box counted it
        self.member = member
        self._box = box
        self._kind = kind
        self._attachment = replace(attachment, attempt=secrets.randbits(62) + 1)
        self._lock = threading.Lock()  # of the connection: one operation at a time
        self._channel: SecureChannel | None = None
        self._has_answered = False  # with an error, which ended the connection
        self._is_closed = False
        self._calls = 0
        with self.locked(deadline):
            self.welcome: Welcome = self.insist(self._connected, deadline)

    def next_call(self) -> int:
        self._calls = (self._calls + 1) % 2**32
        return self._calls

    @contextmanager
    def locked(self, deadline: Deadline) -> Iterator[None]:
        if not self._lock.acquire(timeout=deadline.timeout_s()):
            raise DeadlineExceeded(
                f"{self.who}: an earlier operation with {self._box} is not over yet; raise --timeout"
            )
        try:
            yield
        finally:
            self._lock.release()

    def insist(self, attempt: Callable[[Deadline], _Answer], deadline: Deadline) -> _Answer:
        """The result of attempt(deadline), repeated after every lost connection. Raises DeadlineExceeded.

        The caller has it `locked`.
        """
        pause_s, lost = _FIRST_PAUSE_S, ""
        while True:
            try:
                return attempt(deadline)
            except ConnectionLost as error:
                self.disconnect()
                self._has_answered, lost = False, f"; before, {error}"
                if deadline.remaining_s() <= pause_s or self._is_closed:
                    raise DeadlineExceeded(f"{self.who}: {error}, and {self._box} did not come back in time") from error
            except BaseException as error:
                self.disconnect()  # where in a message it stopped is not known
                self._has_answered = True
                if lost and isinstance(error, DeadlineExceeded):
                    raise DeadlineExceeded(f"{error}{lost}") from error
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def channel(self, deadline: Deadline) -> SecureChannel:
        """The open connection, as the member that this was before."""
        self._connected(deadline)
        assert self._channel is not None
        return self._channel

    def ask(self, request: Request, body: bytes, deadline: Deadline) -> bytes:
        """The text that answers `request`, tried again until it comes; the caller has the line `locked`."""
        return self.insist(lambda until: ask(self.channel(until), request, body, until), deadline)

    def disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def give_up(self) -> None:
        """End an operation of another thread soon, without success; nothing is tried again."""
        self._is_closed = True
        if (channel := self._channel) is not None:
            channel.end()

    @property
    def is_there(self) -> bool:
        """Whether the box was there at the last word from it."""
        return self._channel is not None or self._has_answered

    def _connected(self, deadline: Deadline) -> Welcome:
        if self._channel is not None:
            return self.welcome
        self._channel = self._box.connect(self.who, deadline, lambda: "it was left" if self._is_closed else None)
        request = Request(self._kind, self.next_call(), self.member)
        welcome = Welcome.unpack(ask(self._channel, request, self._attachment.pack(), deadline))
        if self.member.incarnation and welcome.member != self.member:
            raise SamovarError(f"{self.who}: {self._box} takes this member for another")
        self.member = welcome.member
        self._attachment = replace(self._attachment, token=welcome.token)
        self.num_reconnects += 1
        return welcome


def ask(channel: SecureChannel, request: Request, body: bytes, deadline: Deadline) -> bytes:
    """The text that answers a request about no chunks. Raises the box's error."""
    request = request._replace(body_bytes=len(body))
    channel.send(request.pack(), np.frombuffer(body, np.uint8), deadline)
    reply = Reply.unpack(channel.receive(deadline))
    if (reply.kind, reply.call) != (request.kind, request.call):
        raise SamovarError(f"{channel.peer} answered another question")
    text = receive_text(channel, reply, deadline)
    if reply.status is not Status.DONE:
        raise reply.error(f"{channel.peer}: {text.decode(errors='replace')}")
    return text


def receive_text(channel: SecureChannel, reply: Reply, deadline: Deadline) -> bytes:
    if reply.body_bytes > MOST_TEXT_BYTES:
        raise SamovarError(f"{channel.peer} answered with a text of {reply.body_bytes} bytes")
    text = np.empty(reply.body_bytes, np.uint8)
    channel.receive_body(text, deadline)
    return text.tobytes()
