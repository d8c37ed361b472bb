"""A buffer of a box on another host: its center, and its board over a connection of its own.

Every operation is tried again until it is done once, or its deadline passes. Posts do not wait for the center's parts.
"""

import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from samovar.box.base import PendingPush, Push, Versions
from samovar.box.board import Member, MemberProgress, Row
from samovar.box.line import BoxAddress, Line, ask, receive_text
from samovar.box.protocol import (
    NOBODY,
    Attachment,
    Kind,
    Operation,
    Reply,
    Request,
    Status,
    pack_word,
    unpack_rows,
    unpack_word,
)
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.transports.background import Background, Job
from samovar.transports.base import Array
from samovar.transports.secure import SecureChannel

CLOSE_S = 10.0


class RemoteCenter:
    """See `samovar.box.base.SeatCenter`; the center `name` of a box, for one member. `who` begins every error.

    If the connection breaks, or the box is started again, the member returns under its incarnation and repeats requests
    without an answer. After DeadlineExceeded an operation may be tried again with the same sequence and array. Updates
    in the background have `background_s`. Arrays are sent and received in place. With an `index` the member takes that
    row. A viewer (`is_viewer`) may only read. During an update in the background, `read` uses a connection of its own,
    because a link carries both directions at once.

    Cost: 4N bytes for `write`, `accumulate` and `read`, 4N each way for `exchange`. They travel in parts of whole
    chunks, about 4 MiB each, of an exchange at most a quarter of the center. The box applies one part while the next
    travels.
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
        self._pushes = Background("samovar-push", independent=True)
        self._last: Job | None = None
        self._reader: Line | None = None
        kind = Kind.WATCH if is_viewer else Kind.ATTACH
        asked = NOBODY if index is None else Member(index, 0)
        self._line = Line(box, kind, Attachment(name, os.getpid()), asked, who, deadline)
        self.welcome, self.member = self._line.welcome, self._line.member
        self.shape = self.welcome.shape
        self.num_elements, self.chunk_elements = self.shape.num_elements, self.shape.chunk_elements
        self.num_chunks = self.shape.num_chunks

    @property
    def lock_wait_s(self) -> float:
        return sum(line.lost_s for line in (self._line, self._reader) if line is not None)

    def write(self, values: Array, deadline: Deadline) -> None:
        self._run(self._operation(Kind.WRITE), values, None, deadline)

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        line = self._line_to_read(deadline)
        operation = Operation(Kind.READ, line.next_call(), line.member, self.shape)
        return self._run(operation, None, destination, deadline, line)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        self._settle(deadline)
        return self._run(self._operation(Kind.ACCUMULATE, sequence, momentum), difference, None, deadline)

    def accumulate_in_background(self, sequence: int, difference: Array) -> Push:
        return self._in_background(self._operation(Kind.ACCUMULATE, sequence), difference, None)

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        self._settle(deadline)
        return self._run(self._operation(Kind.EXCHANGE, sequence, moving_rate), weights, weights, deadline)

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> Push:
        return self._in_background(self._operation(Kind.EXCHANGE, sequence, moving_rate), weights, weights)

    def read_velocity(self, destination: Array, deadline: Deadline) -> Versions:
        return self._run(self._operation(Kind.READ_VELOCITY), None, destination, deadline)

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self._run(self._operation(Kind.WRITE_VELOCITY), values, None, deadline)

    def read_chunks(self, first: int, out: Array, deadline: Deadline) -> Versions:
        """See `samovar.box.mapped.MappedCenter`, as for the next three."""
        return self._run(self._on_chunks(Kind.READ, first, out), None, out, deadline)

    def read_velocity_chunks(self, first: int, out: Array, deadline: Deadline) -> Versions:
        return self._run(self._on_chunks(Kind.READ_VELOCITY, first, out), None, out, deadline)

    def accumulate_chunks(
        self, first: int, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0
    ) -> Versions:
        operation = self._on_chunks(Kind.ACCUMULATE, first, difference, sequence, momentum)
        return self._run(operation, difference, None, deadline)

    def exchange_chunks(self, first: int, sequence: int, weights: Array, rate: float, deadline: Deadline) -> Versions:
        return self._run(self._on_chunks(Kind.EXCHANGE, first, weights, sequence, rate), weights, weights, deadline)

    def close(self, deadline: Deadline | None = None) -> None:
        """Leave the box, once updates in the background have ended; where the box is gone, without a word."""
        self._pushes.close(math.inf)
        if self._reader is not None:
            self._reader.disconnect()
        deadline = deadline or Deadline.after(1.0)
        with self._line.locked(deadline):
            if not self._line.is_there:
                return
            with suppress(SamovarError):  # its place is given up when it has been away for long
                ask(self._line.channel(deadline), Request(Kind.DETACH, self._line.next_call()), b"", deadline)
            self._line.disconnect()

    def _operation(self, kind: Kind, sequence: int = 0, rate: float = 0.0) -> Operation:
        return Operation(kind, self._line.next_call(), self.member, self.shape, sequence, rate)

    def _on_chunks(self, kind: Kind, first: int, array: Array, sequence: int = 0, rate: float = 0.0) -> Operation:
        shape = replace(self.shape, num_elements=array.size)
        return Operation(kind, self._line.next_call(), self.member, shape, sequence, rate, first)

    def _in_background(self, operation: Operation, outgoing: Array, incoming: Array | None) -> Push:
        def push(_job: Job) -> None:
            self._run(operation, outgoing, incoming, Deadline.after(self._background_s))

        def landed(deadline: Deadline) -> Versions:
            job.wait(deadline)
            return operation.versions

        job = self._last = self._pushes.submit(Job(f"{self._who}: an update on its way to the box", push))
        return PendingPush(landed)

    def _line_to_read(self, deadline: Deadline) -> Line:
        if self._last is None or self._last.is_over:
            return self._line
        if self._reader is None:
            attachment = Attachment(self._name, os.getpid(), self.welcome.token)
            self._reader = Line(self._box, Kind.WATCH, attachment, NOBODY, self._who, deadline)
        return self._reader

    def _settle(self, deadline: Deadline) -> None:
        """A member's updates are applied in their order, those in the background first. Raises the last one's error."""
        if self._last is not None:
            self._last.wait(deadline)

    def _run(
        self,
        operation: Operation,
        outgoing: Array | None,
        incoming: Array | None,
        deadline: Deadline,
        line: Line | None = None,
    ) -> Versions:
        for array in (outgoing, incoming):
            assert array is None or array.size == operation.num_elements, f"{array.size} elements"
        line = line or self._line
        with line.locked(deadline):
            line.insist(lambda until: _try(line, operation, outgoing, incoming, until), deadline)
        return operation.versions


def _try(line: Line, operation: Operation, outgoing: Array | None, incoming: Array | None, deadline: Deadline) -> None:
    """One attempt; parts with an answer are not sent again."""
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
        with suppress(SamovarError):  # the channel is over: the receiving thread sees it
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


class RemoteBoard:
    """See `samovar.box.board.Rows`; as `member` sees it, or as a viewer, which may only read. `who` begins every error.

    Every call except `post` is one round trip, which has `timeout_s`, even if the connection is lost meanwhile. Posts
    leave in the background, only the newest one; the next call raises their errors. A member's posts and changes of
    words are made once each, in the order of its calls. Several threads may use it.
    """

    def __init__(
        self,
        box: BoxAddress,
        name: str,
        who: str,
        deadline: Deadline,
        member: Member = NOBODY,
        token: int = 0,
        timeout_s: float = 60.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._sequence = 0
        self._changed = threading.Condition()
        self._posted: MemberProgress | None = None
        self._error: SamovarError | None = None
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._line = Line(box, Kind.WATCH, Attachment(name, os.getpid(), token), member, who, deadline)
        self.shape = self._line.welcome.shape
        self.max_members = self.shape.max_members

    def row(self, index: int) -> Row:
        return unpack_rows(self._ask(Kind.ROWS, index, 1))[0]

    def rows(self) -> list[Row]:
        return unpack_rows(self._ask(Kind.ROWS))

    def word(self, index: int) -> int:
        return unpack_word(self._ask(Kind.WORD, index))

    def set_word(self, index: int, value: int) -> None:
        self._ask(Kind.SET_WORD, index, body=pack_word(value))

    def claim_word(self, index: int, value: int) -> int:
        return unpack_word(self._ask(Kind.CLAIM_WORD, index, body=pack_word(value)))

    def post(self, member: Member, progress: MemberProgress) -> None:
        assert member == self._line.member, "a member posts for itself"
        with self._changed:
            self._raise_error()
            assert not self._is_closing, "closed"
            self._posted = progress
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="samovar-post", daemon=True)
                self._thread.start()

    def close(self, deadline: Deadline | None = None) -> None:
        """Raises the error of the last post, or DeadlineExceeded."""
        deadline = deadline or Deadline.after(CLOSE_S)
        try:
            with self._line.locked(deadline):
                self._flush(deadline)
            with self._changed:
                self._raise_error()
        finally:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._is_closing = True
            self._posted = None
            self._changed.notify()
        self._line.give_up()
        if self._thread is not None:
            self._thread.join()
        self._line.disconnect()

    def _serve(self) -> None:
        """Send posts, until the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._posted is not None)
                if self._is_closing:
                    return
            try:
                deadline = self._deadline()
                with self._line.locked(deadline):
                    self._flush(deadline)
            except SamovarError as error:
                with self._changed:
                    self._error = error

    def _ask(self, kind: Kind, first: int = 0, count: int = 0, body: bytes = b"") -> bytes:
        deadline = self._deadline()
        with self._line.locked(deadline):
            with self._changed:
                self._raise_error()
            self._flush(deadline)
            return self._asked(kind, first, count, body, deadline)

    def _flush(self, deadline: Deadline) -> None:
        """Send the earlier post first; the caller has the line."""
        with self._changed:
            progress, self._posted = self._posted, None
        if progress is not None:
            self._asked(Kind.POST, 0, 0, progress.pack(), deadline)

    def _asked(self, kind: Kind, first: int, count: int, body: bytes, deadline: Deadline) -> bytes:
        self._sequence += bool(body)
        member, sequence = self._line.member, self._sequence
        return self._line.ask(Request(kind, self._line.next_call(), member, first, count, sequence), body, deadline)

    def _raise_error(self) -> None:
        """The caller has `_changed`."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)
