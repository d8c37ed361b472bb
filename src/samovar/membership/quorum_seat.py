"""A worker's connection to the quorum of an elastic job on its host."""

import dataclasses
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.core.plain import from_plain
from samovar.membership.quorum_door import address_of
from samovar.membership.quorum_messages import Admission, Decision, Go, Hello, Last
from samovar.membership.rounds import Given
from samovar.transports.tcp_listen import address_of as listening_address
from samovar.transports.tcp_listen import listen
from samovar.transports.unix_sockets import ConnectionEnded, LocalMessage, connect, receive, send

# The quorum gives up a worker after its limit, and needs a moment for that.
_MARGIN_S: Final = 10.0


class _Mail:
    """Messages that come by `link`, received by a thread, until `close`.

    Losses are passed on at once, to what `watch` gave for this generation; those since the last Go again to what it
    gives next.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._messages: queue.SimpleQueue[LocalMessage | Exception] = queue.SimpleQueue()
        self._lost: dict[int, str] = {}
        self._generation = 0
        self._tell: Callable[[int, str], None] = lambda _rank, _who: None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._receive, name="samovar-seat", daemon=True)
        self._thread.start()

    def watch(self, tell: Callable[[int, str], None]) -> None:
        with self._lock:
            self._tell, known = tell, dict(self._lost)
        for rank, who in known.items():
            tell(rank, who)

    def take(self, deadline: Deadline) -> LocalMessage:
        """The next message, losses apart. Raises DeadlineExceeded, ConnectionEnded, SamovarError."""
        try:
            found = self._messages.get(timeout=deadline.timeout_s())
        except queue.Empty:
            raise DeadlineExceeded("no message came") from None
        if isinstance(found, Exception):
            self._messages.put(found)  # it stays the last one
            raise found
        return found

    def close(self) -> None:
        with suppress(OSError):  # the other side was first
            self._link.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._link.close()
        while not self._messages.empty():
            found = self._messages.get()
            if isinstance(found, LocalMessage):
                found.close()

    def _receive(self) -> None:
        while True:
            try:
                message = receive(self._link, FOR_EVER)
            except (SamovarError, OSError) as error:
                self._messages.put(error)
                return
            kind = message.content.get("kind")
            with self._lock:
                if kind == "Go":
                    self._lost = {}
                    if message.content["generation"] != self._generation:  # whose ranks are others
                        self._generation, self._tell = message.content["generation"], lambda _rank, _who: None
                elif kind == "Lost":
                    self._lost[message.content["rank"]] = message.content["who"]
                tell = self._tell
            if kind == "Lost":
                tell(message.content["rank"], message.content["who"])
            else:
                self._messages.put(message)


class QuorumSeat:
    """See `samovar.membership.rounds.Seat`. `packed` makes a file in memory of a state, and `unpacked` a state of it.

    `door` is that of this worker's launcher, "" the one that began the job. Between hosts this worker listens at
    `address`, at another port for each generation.

    Raises InputError if this host has no such job, or the job trains something else. Raises RankFailed if this worker
    is given up or the job has ended, and DeadlineExceeded if the launcher does not answer.
    """

    def __init__(
        self,
        job: str,
        hello: Hello,
        packed: Callable[[Given], tuple[dict[str, Any], int]],
        unpacked: Callable[[Mapping[str, Any], int], Given],
        door: str = "",
        address: str | None = None,
    ) -> None:
        self._job = job
        self._hello = hello
        self._packed, self._unpacked = packed, unpacked
        self._segment = -1
        self._address = address
        self.origin = ""  # the state with which this worker began, the same as the first one's
        self._listening: socket.socket | None = None
        link = connect(address_of(job, door), self._deadline())
        if link is None:
            raise InputError(
                f"there is no elastic job {job!r} of this user on this host; start it by `samovar run --elastic {job}`"
            )
        self._link = link.dup()  # with a timeout of its own
        self._mail = _Mail(link)

    @property
    def segment(self) -> int:
        """The descriptor of the shared memory of the last Go. It stays this seat's."""
        return self._segment

    def enter(self) -> tuple[Admission, Given]:
        self._tell("hello", {**dataclasses.asdict(self._hello), "listens": self._address is not None})
        message = self._answer("Admission")
        content = message.content
        state = content.pop("state", None)
        try:
            given = {} if state is None else self._unpacked(state, message.descriptors[0])
        finally:
            message.close()
        return from_plain(Admission, content), given

    def give(self, state: Given) -> None:
        content, descriptor = self._packed(state)
        try:
            self._tell("state", {"state": content}, (descriptor,))
        finally:
            os.close(descriptor)

    def ready(self, num_steps: int, last: Last) -> Go:
        about = {"address": self._listens_at(), "origin": self.origin}
        self._tell("ready", {"num_steps": num_steps, "last": last, **about})
        return self.go()

    def go(self) -> Go:
        message = self._answer("Go")
        self._keep_segment(message.descriptors[0])
        return from_plain(Go, message.content)

    def vote(self, is_done: bool) -> Decision:
        self._tell("vote", {"is_done": is_done, "address": self._listens_at()})
        return from_plain(Decision, self._answer("Decision").content)

    def take_listening(self) -> socket.socket:
        """The socket at which this worker listens for those of the last Go. It is the caller's."""
        assert self._listening is not None
        taken, self._listening = self._listening, None
        return taken

    def watch(self, lost: Callable[[int, str], None]) -> None:
        """Call `lost(rank, name)` for each rank of the last Go that is lost, on another thread, as soon as it is."""
        self._mail.watch(lost)

    def busy(self) -> None:
        """Say that this worker lives, and does something else. If the launcher is gone, the next message tells why."""
        with suppress(SamovarError, OSError):
            send(self._link, {"kind": "busy"}, Deadline.after(0.0))

    def close(self) -> None:
        """Leave at once. A second call does nothing."""
        self._link.close()
        self._mail.close()
        self._keep_segment(-1)
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _listens_at(self) -> tuple[str, int] | None:
        if self._listening is None and self._address is not None:
            self._listening = listen(self._address)
        return None if self._listening is None else listening_address(self._listening)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._hello.timeout_s + _MARGIN_S)

    def _keep_segment(self, descriptor: int) -> None:
        if self._segment >= 0:
            os.close(self._segment)
        self._segment = descriptor

    def _tell(self, kind: str, content: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        try:
            send(self._link, {"kind": kind, **content}, self._deadline(), descriptors)
        except (ConnectionEnded, OSError) as error:
            self._answer("")  # the launcher has hung up; it may have said why before
            raise AssertionError from error

    def _answer(self, kind: str) -> LocalMessage:
        """The next message of this kind. The launcher sends others while it waits for workers."""
        while True:
            try:
                message = self._mail.take(self._deadline())
            except (ConnectionEnded, OSError) as error:
                raise RankFailed(f"elastic job {self._job!r}: its launcher is gone; see its output") from error
            except DeadlineExceeded as error:
                raise DeadlineExceeded(f"elastic job {self._job!r}: its launcher does not answer") from error
            found = message.content.pop("kind")
            if found == kind:
                return message
            message.close()
            if found == "Refused":
                self._refused(message.content)
            if found != "StillWaiting":
                raise SamovarError(
                    f"elastic job {self._job!r}: its launcher says {found!r}, and not {kind!r}; do all run the same "
                    "version of Samovar?"
                )

    def _refused(self, content: Mapping[str, Any]) -> None:
        sentence = f"elastic job {self._job!r}: {content['why']}"
        raise InputError(sentence) if content["is_input"] else RankFailed(sentence)
