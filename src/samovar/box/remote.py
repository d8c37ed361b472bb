"""The center of a box on another host: every operation is tried again until it is done once, or its deadline passes."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import Member
from samovar.box.bodies import Attachment, Creation, Welcome, pack_name, unpack_word
from samovar.box.buffers import BufferShape, new_token
from samovar.box.line import BoxAddress, Line, ask, receive_text
from samovar.box.protocol import NOBODY, Kind, Operation, Reply, Request, Shape, Status
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.transports.base import Array
from samovar.transports.secure import ConnectionLost, SecureChannel


class RemoteCenter:
    """See `samovar.box.base.SeatCenter`; the center `name` of a box, for one member. `who` begins every error.

    Where the connection breaks, or the box is started again, the member comes back as who it was and sends what was
    not answered. After DeadlineExceeded an operation may be tried again with the same sequence and array. Updates in
    the background have `background_s`. Arrays are sent from, and received into, where they lie. With an `index` the
    member takes that row. Who `is_viewer` is no member, and may only read. While an update is on its way in the
    background, `read` takes a connection of its own: a link carries both directions at once.

    Cost: 4N bytes for `write`, `accumulate` and `read`, 4N each way for `exchange`, in parts of whole chunks of about
    4 MiB, of an exchange a quarter of the center at most; the box applies one part while the next is under way.
    """

    def __init__(
        self,
        box: BoxAddress,
        name: str,
        who: str,
        deadline: Deadline,
        background_s: float = 60.0,
        index: int | None = None,
        is_viewer: bool = False,
    ) -> None:
        self._box, self._name, self._who = box, name, who
        self._background_s = background_s
        self._pusher: _Pusher | None = None
        self._reader: Line | None = None
        kind = Kind.WATCH if is_viewer else Kind.ATTACH
        asked = NOBODY if index is None else Member(index, 0)
        self._line = Line(box, kind, Attachment(name, os.getpid()), asked, who, deadline)
        sizes = self._line.welcome.shape
        self.shape = Shape(sizes.num_elements, sizes.chunk_elements)

    @property
    def welcome(self) -> Welcome:
        """What the box said at the start."""
        return self._line.welcome

    @property
    def member(self) -> Member:
        return self._line.member

    @property
    def num_reconnects(self) -> int:
        return self._line.num_reconnects

    @property
    def lock_wait_s(self) -> float:
        return sum(line.lost_s for line in (self._line, self._reader) if line is not None)

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
        line = self._line_to_read(deadline)
        operation = Operation(Kind.READ, line.next_call(), line.member, self.shape)
        return self._run(operation, None, destination, deadline, line)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        self._settle(deadline)
        return self._run(self._operation(Kind.ACCUMULATE, sequence, momentum), difference, None, deadline)

    def accumulate_in_background(self, sequence: int, difference: Array) -> "_RemotePush":
        return self._in_background(self._operation(Kind.ACCUMULATE, sequence), difference, None)

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        self._settle(deadline)
        return self._run(self._operation(Kind.EXCHANGE, sequence, moving_rate), weights, weights, deadline)

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> "_RemotePush":
        return self._in_background(self._operation(Kind.EXCHANGE, sequence, moving_rate), weights, weights)

    def read_velocity(self, destination: Array, deadline: Deadline) -> None:
        self._run(self._operation(Kind.READ_VELOCITY), None, destination, deadline)

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self._run(self._operation(Kind.WRITE_VELOCITY), values, None, deadline)

    def close(self, deadline: Deadline | None = None) -> None:
        """Leave the box, once updates in the background have ended; where the box is gone, without a word."""
        if self._pusher is not None:
            self._pusher.close()
        if self._reader is not None:
            self._reader.disconnect()
        deadline = deadline or Deadline.after(1.0)
        with self._line.locked(deadline):
            if not self._line.is_connected:
                return
            with suppress(SamovarError):  # its place is given up when it has been away for long
                ask(self._line.channel(deadline), Request(Kind.DETACH, self._line.next_call()), b"", deadline)
            self._line.disconnect()

    def _operation(self, kind: Kind, sequence: int = 0, rate: float = 0.0) -> Operation:
        return Operation(kind, self._line.next_call(), self.member, self.shape, sequence, rate)

    def _in_background(self, operation: Operation, outgoing: Array, incoming: Array | None) -> "_RemotePush":
        if self._pusher is None:
            self._pusher = _Pusher()
        return self._pusher.submit(
            _RemotePush(self._who, lambda: self._run(operation, outgoing, incoming, Deadline.after(self._background_s)))
        )

    def _line_to_read(self, deadline: Deadline) -> Line:
        if self._pusher is None or self._pusher.is_idle:
            return self._line
        if self._reader is None:
            attachment = Attachment(self._name, os.getpid(), self.welcome.token)
            self._reader = Line(self._box, Kind.WATCH, attachment, NOBODY, self._who, deadline)
        return self._reader

    def _settle(self, deadline: Deadline) -> None:
        """Updates of a member are applied in their order: those in the background first."""
        if self._pusher is not None:
            self._pusher.settle(deadline)

    def _run(
        self,
        operation: Operation,
        outgoing: Array | None,
        incoming: Array | None,
        deadline: Deadline,
        line: Line | None = None,
    ) -> Versions:
        for array in (outgoing, incoming):
            assert array is None or array.size == self.num_elements, f"{array.size} elements"
        line = line or self._line
        with line.locked(deadline):
            line.insist(lambda until: _try(line, operation, outgoing, incoming, until), deadline)
        return operation.versions


def create_remote_buffer(box: BoxAddress, name: str, shape: BufferShape, who: str, deadline: Deadline) -> bool:
    """Whether this call made the buffer; where one of this shape was there, False. Raises InputError."""
    wanted = Creation(name, shape, new_token()).pack()
    while True:
        try:
            return unpack_word(_ask_once(box, Kind.CREATE, wanted, who, deadline)) == 1
        except ConnectionLost as error:  # it may be made by now: the same number says that it was this call
            if deadline.passed():
                raise DeadlineExceeded(f"{error}, and it did not come back in time") from error


def remote_buffer_names(box: BoxAddress, who: str, deadline: Deadline) -> list[str]:
    return _ask_once(box, Kind.NAMES, b"", who, deadline).decode().split()


def drop_remote_buffer(box: BoxAddress, name: str, who: str, deadline: Deadline) -> None:
    """Raises InputError where there is none."""
    _ask_once(box, Kind.DROP, pack_name(name), who, deadline)


def _ask_once(box: BoxAddress, kind: Kind, body: bytes, who: str, deadline: Deadline) -> bytes:
    channel = box.connect(who, deadline)
    try:
        return ask(channel, Request(kind, 1), body, deadline)
    finally:
        channel.close()


def _try(line: Line, operation: Operation, outgoing: Array | None, incoming: Array | None, deadline: Deadline) -> None:
    """One attempt; what was answered before is not sent again."""
    channel = line.channel(deadline)
    with _sending(channel, operation.unanswered(), outgoing, deadline):
        while not operation.is_complete:
            line.lost_s += _take_answer(channel, operation, incoming, deadline)


def _take_answer(channel: SecureChannel, operation: Operation, incoming: Array | None, deadline: Deadline) -> float:
    """Seconds that the member lost to others meanwhile."""
    reply = Reply.unpack(channel.receive(deadline))
    if reply.status is not Status.DONE:
        raise reply.error(f"{channel.peer}: {receive_text(channel, reply, deadline).decode(errors='replace')}")
    part = operation.expected(reply)
    if part is None:
        raise SamovarError(f"{channel.peer} answered what was not asked")
    versions = np.empty(reply.num_chunks, np.int64)
    channel.receive_body(versions, deadline)
    if incoming is not None:
        channel.receive_body(incoming[part], deadline)
    operation.answered(reply, versions)
    return reply.lost_s


@contextmanager
def _sending(
    channel: SecureChannel, requests: Sequence[tuple[Request, slice]], outgoing: Array | None, deadline: Deadline
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


class _RemotePush:
    """See `samovar.box.base.Push`."""

    def __init__(self, who: str, work: Callable[[], Versions]) -> None:
        self._who = who
        self._work = work
        self._is_over = threading.Event()
        self._versions: Versions | None = None
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

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
        self._pushes: queue.SimpleQueue[_RemotePush | None] = queue.SimpleQueue()
        self._last: _RemotePush | None = None
        self._thread = threading.Thread(target=self._serve, name="samovar-push", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        return self._last is None or self._last.is_over

    def submit(self, push: _RemotePush) -> _RemotePush:
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
