"""The center of a box on another host: every operation is tried again until it is done once, or its deadline passes."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import Member
from samovar.box.protocol import (
    MOST_NAME_BYTES,
    MOST_TEXT_BYTES,
    NOBODY,
    Kind,
    Operation,
    Reply,
    Request,
    Shape,
    Status,
    Welcome,
)
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.transports.base import Array
from samovar.transports.keys import Key
from samovar.transports.secure import Address, Channel, ConnectionLost, connect

_Answer = TypeVar("_Answer")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class BoxAddress:
    """Where a box listens, and the key that it shares with its members."""

    address: Address
    key: Key

    def __str__(self) -> str:
        return f"the box at {self.address[0]}:{self.address[1]}"


class RemoteCenter:
    """See `samovar.box.base.Center`; the center `name` of a box, for one member. `who` begins every error.

    Where the connection breaks, or the box is started again, the member comes back as who it was and sends what was
    not answered. After DeadlineExceeded an operation may be tried again with the same sequence and array. Updates in
    the background have `background_s`. Arrays are sent from, and received into, where they lie.

    Cost: 4N bytes for `write`, `accumulate` and `read`, 4N each way for `exchange`, in parts of whole chunks of about
    1 MiB; the box applies one part while the next is under way.
    """

    def __init__(self, box: BoxAddress, name: str, who: str, deadline: Deadline, background_s: float = 60.0) -> None:
        if not 1 <= len(name.encode()) <= MOST_NAME_BYTES:
            raise InputError(f"{who}: the name of a center has 1 to {MOST_NAME_BYTES} bytes, got {name!r}")
        self._box = box
        self._name = name
        self._who = who
        self._background_s = background_s
        self._lock = threading.Lock()  # of the connection: one operation at a time
        self._channel: Channel | None = None
        self._calls = 0
        self._pusher: _Pusher | None = None
        self.member: Member = NOBODY
        self.num_reconnects = -1
        with self._locked(deadline):
            self.shape: Shape = self._insist(self._attached, deadline)

    @property
    def num_elements(self) -> int:
        return self.shape.num_elements

    @property
    def chunk_elements(self) -> int:
        return self.shape.chunk_elements

    @property
    def num_chunks(self) -> int:
        return self.shape.num_chunks

    def write(self, values: Array, deadline: Deadline) -> None:
        self._run(self._operation(Kind.WRITE), values, None, deadline)

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        return self._run(self._operation(Kind.READ), None, destination, deadline)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        self._settle(deadline)
        return self._run(self._operation(Kind.ACCUMULATE, sequence, momentum), difference, None, deadline)

    def accumulate_in_background(self, sequence: int, difference: Array) -> "_Push":
        if self._pusher is None:
            self._pusher = _Pusher()
        operation = self._operation(Kind.ACCUMULATE, sequence)
        return self._pusher.submit(
            _Push(self._who, lambda: self._run(operation, difference, None, Deadline.after(self._background_s)))
        )

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        self._settle(deadline)
        return self._run(self._operation(Kind.EXCHANGE, sequence, moving_rate), weights, weights, deadline)

    def close(self, deadline: Deadline | None = None) -> None:
        """Leave the box, once updates in the background have ended; where the box is gone, without a word."""
        if self._pusher is not None:
            self._pusher.close()
        deadline = deadline or Deadline.after(1.0)
        with self._locked(deadline):
            if self._channel is None:
                return
            with suppress(SamovarError):  # its place is given up when it has been away for long
                _ask(self._channel, Request(Kind.DETACH, self._next_call()), b"", deadline)
            self._disconnect()

    def _operation(self, kind: Kind, sequence: int = 0, rate: float = 0.0) -> Operation:
        return Operation(kind, self._next_call(), self.member, self.shape, sequence, rate)

    def _next_call(self) -> int:
        self._calls = (self._calls + 1) % 2**32
        return self._calls

    def _settle(self, deadline: Deadline) -> None:
        """Updates of a member are applied in their order: those in the background first."""
        if self._pusher is not None:
            self._pusher.settle(deadline)

    def _run(
        self, operation: Operation, outgoing: Array | None, incoming: Array | None, deadline: Deadline
    ) -> Versions:
        with self._locked(deadline):
            self._insist(lambda until: self._try(operation, outgoing, incoming, until), deadline)
        return operation.versions

    def _insist(self, attempt: Callable[[Deadline], _Answer], deadline: Deadline) -> _Answer:
        """What attempt(deadline) returns, made again after every lost connection. Raises DeadlineExceeded."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return attempt(deadline)
            except ConnectionLost as error:
                self._disconnect()
                if deadline.passed():
                    raise DeadlineExceeded(
                        f"{self._who}: {error}, and {self._box} did not come back in time"
                    ) from error
            except BaseException:
                self._disconnect()  # where in a message it stopped is not known
                raise
            time.sleep(min(pause_s, deadline.remaining_s()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, operation: Operation, outgoing: Array | None, incoming: Array | None, deadline: Deadline) -> None:
        """One attempt; what was answered before is not sent again."""
        self._attached(deadline)
        channel = self._channel
        assert channel is not None
        requests = operation.unanswered()
        with _sending(channel, requests, outgoing, deadline):
            while not operation.is_complete:
                _take_answer(channel, operation, incoming, deadline)

    def _attached(self, deadline: Deadline) -> Shape:
        """Be connected, as the member that this was before, if any."""
        if self._channel is not None:
            return self.shape
        self._channel = connect(self._box.address, self._box.key, self._who, f"{self._who}: {self._box}", deadline)
        request = Request(Kind.ATTACH, self._next_call(), self.member)
        welcome = Welcome.unpack(_ask(self._channel, request, self._name.encode(), deadline))
        if self.member not in (NOBODY, welcome.member):
            raise SamovarError(f"{self._who}: {self._box} takes this member for another")
        self.member = welcome.member
        self.num_reconnects += 1
        return welcome.shape

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @contextmanager
    def _locked(self, deadline: Deadline) -> Iterator[None]:
        if not self._lock.acquire(timeout=max(deadline.remaining_s(), 0.001)):
            raise DeadlineExceeded(
                f"{self._who}: an earlier operation with {self._box} is not over yet; raise --timeout"
            )
        try:
            yield
        finally:
            self._lock.release()


def ask_box(box: BoxAddress, kind: Kind, name: str, who: str, deadline: Deadline) -> str:
    """What the box answers to LIST, or to DROP of the center `name`. Raises InputError, DeadlineExceeded."""
    channel = connect(box.address, box.key, who, f"{who}: {box}", deadline)
    try:
        return _ask(channel, Request(kind, 1), name.encode(), deadline).decode()
    finally:
        channel.close()


def _ask(channel: Channel, request: Request, body: bytes, deadline: Deadline) -> bytes:
    """The text that answers a request about no chunks. Raises what the box says."""
    request = replace(request, body_bytes=len(body))
    channel.send(request.pack(), np.frombuffer(body, np.uint8), deadline)
    reply = Reply.unpack(channel.receive(deadline))
    if (reply.kind, reply.call) != (request.kind, request.call):
        raise SamovarError(f"{channel.peer} answered another question")
    text = _text(channel, reply, deadline)
    if reply.status is not Status.DONE:
        raise reply.error(f"{channel.peer}: {text.decode(errors='replace')}")
    return text


def _text(channel: Channel, reply: Reply, deadline: Deadline) -> bytes:
    if reply.body_bytes > MOST_TEXT_BYTES:
        raise SamovarError(f"{channel.peer} answered with a text of {reply.body_bytes} bytes")
    text = np.empty(reply.body_bytes, np.uint8)
    channel.receive_body(text, deadline)
    return text.tobytes()


def _take_answer(channel: Channel, operation: Operation, incoming: Array | None, deadline: Deadline) -> None:
    reply = Reply.unpack(channel.receive(deadline))
    if reply.status is not Status.DONE:
        raise reply.error(f"{channel.peer}: {_text(channel, reply, deadline).decode(errors='replace')}")
    part = operation.expected(reply)
    if part is None:
        raise SamovarError(f"{channel.peer} answered what was not asked")
    versions = np.empty(reply.num_chunks, np.int64)
    channel.receive_body(versions, deadline)
    if incoming is not None:
        channel.receive_body(incoming[part], deadline)
    operation.answered(reply, versions)


@contextmanager
def _sending(
    channel: Channel, requests: Sequence[tuple[Request, slice]], outgoing: Array | None, deadline: Deadline
) -> Iterator[None]:
    """Requests leave while their answers come in: a thread sends them, since the box reads no more than it answers."""

    def send() -> None:
        with suppress(SamovarError):  # the channel is over: who receives hears of it
            for request, part in requests:
                channel.send(request.pack(), None if outgoing is None else outgoing[part], deadline)

    thread = threading.Thread(target=send, name="samovar-sending", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        channel.end()
        raise
    finally:
        thread.join()


class _Push:
    """See `samovar.box.base.Push`."""

    def __init__(self, who: str, work: Callable[[], Versions]) -> None:
        self._who = who
        self._work = work
        self._is_over = threading.Event()
        self._versions: Versions | None = None
        self._error: Exception | None = None

    @property
    def versions(self) -> Versions:
        assert self._versions is not None, "wait comes first"
        return self._versions

    def run(self) -> None:
        try:
            self._versions = self._work()
        except Exception as error:  # for whoever waits
            self._error = error
        self._is_over.set()

    def wait(self, deadline: Deadline) -> None:
        waiting_s = deadline.remaining_s()
        if not self._is_over.wait(waiting_s):
            raise DeadlineExceeded(f"{self._who}: an update is still on its way to the box after {waiting_s:.1f} s")
        if self._error is not None:
            raise self._error


class _Pusher:
    """One thread that makes pushes in their order."""

    def __init__(self) -> None:
        self._pushes: queue.SimpleQueue[_Push | None] = queue.SimpleQueue()
        self._last: _Push | None = None
        self._thread = threading.Thread(target=self._serve, name="samovar-push", daemon=True)
        self._thread.start()

    def submit(self, push: _Push) -> _Push:
        self._last = push
        self._pushes.put(push)
        return push

    def settle(self, deadline: Deadline) -> None:
        """Return when all are over. Raises what the last one raised, or DeadlineExceeded."""
        if self._last is not None:
            self._last.wait(deadline)

    def close(self) -> None:
        self._pushes.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (push := self._pushes.get()) is not None:
            push.run()
