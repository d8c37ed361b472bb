"""The board of a buffer on another host, over a connection of its own: posts do not wait for the center's parts."""

import os
import threading

from samovar.box.board import Member, MemberProgress, Row
from samovar.box.bodies import Attachment, pack_word, unpack_rows, unpack_word
from samovar.box.buffers import BufferShape
from samovar.box.line import BoxAddress, Line
from samovar.box.protocol import NOBODY, Kind, Request
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError

CLOSE_S = 10.0


class RemoteBoard:
    """See `samovar.box.board.Rows`; as `member` sees it, or as a viewer, who may only read. `who` begins every error.

    Every call but `post` is one round trip, which has `timeout_s`, whatever becomes of the connection meanwhile. Posts
    leave in the background, the newest one first and only; what fails is raised by the next call. A member's posts and
    changes of words are made once each, in the order of its calls. For several threads.
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

    @property
    def shape(self) -> BufferShape:
        """Of the buffer."""
        return self._line.welcome.shape

    @property
    def max_members(self) -> int:
        return self.shape.max_members

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
        """Raises what kept the last post from being shown, or DeadlineExceeded."""
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
        """Until the end: what was posted goes out."""
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
        """What was posted before goes first; the caller has the line."""
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
