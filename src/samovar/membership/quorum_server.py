"""The quorum of an elastic job in its launcher: a thread that workers of this user and host reach over a socket."""

import dataclasses
import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Self

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.membership.quorum import Quorum, QuorumSize
from samovar.membership.quorum_messages import Admission, Go, Hello, Last, Refused, Reply
from samovar.transports.shm import create_segment
from samovar.transports.unix_sockets import LocalMessage, listen, receive, send, user_process

_LOOK_S = 1.0
# A message that is there takes no time; to a worker that reads nothing for long nothing is sent any more.
_MESSAGE_S = 0.05


def address_of(job: str) -> str:
    """The name of the socket. Raises InputError for a name that is none."""
    if not job.replace("-", "").replace("_", "").isalnum() or not job.isascii():
        raise InputError(f"elastic job {job!r}: a name is made of letters, digits, - and _")
    return f"samovar-elastic-{os.getuid()}-{job}"


class _WorkerLink:
    """A worker's socket, and its process if this one may watch it."""

    def __init__(self, number: int, link: socket.socket, process_id: int) -> None:
        self.number = number
        self.link = link
        self.process_id = process_id
        self.process: int | None = None
        with suppress(OSError):
            self.process = os.pidfd_open(process_id) if process_id else None

    def close(self) -> None:
        self.link.close()
        if self.process is not None:
            os.close(self.process)


class QuorumServer:
    """Serves the quorum of the elastic `job` until the end of its context.

    Workers see its end as that of the job. It holds the segment of the present generation, and the state for those that
    come. Raises InputError if another job has this name.
    """

    def __init__(self, job: str, size: QuorumSize) -> None:
        self._quorum = Quorum(size, self._send)
        self._selector = selectors.DefaultSelector()
        self._listener = listen(address_of(job))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._connections: dict[int, _WorkerLink] = {}
        self._dead: list[int] = []
        self._num_came = 0
        self._came_from: set[int] = set()  # processes
        self._ended: list[int] = []  # processes that the launcher saw end
        self._segment = (0, -1)  # generation, descriptor
        self._state: LocalMessage | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="samovar-quorum", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.set()
        self._wake()
        self._thread.join()
        for connection in self._connections.values():
            connection.close()
        self._listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._keep_segment(0, -1)
        self._keep_state(None)

    def rank_ended(self, process_id: int) -> None:
        """A process that the launcher started has ended. If it had not come yet, nobody waits for it any more."""
        self._ended.append(process_id)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def _serve(self) -> None:
        try:
            self._answer()
        finally:  # no worker waits for it any more
            for connection in self._connections.values():
                connection.link.close()

    def _answer(self) -> None:
        look_s = 0.0
        while not self._closing.is_set():
            for key, _ in self._selector.select(_LOOK_S):
                self._take(key)
            self._bury()
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                self._quorum.look(time.monotonic())
                self._bury()

    def _take(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fd == self._wake_read:
            os.read(self._wake_read, 1 << 10)
            self._note_ended()
        elif isinstance(key.data, _WorkerLink) and key.data.number in self._connections:
            if key.fd == key.data.process:
                self._dead.append(key.data.number)
            else:
                self._hear(key.data)

    def _note_ended(self) -> None:
        while self._ended:
            if self._ended.pop() not in self._came_from:
                self._quorum.founder_ended(time.monotonic())

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        process_id = user_process(link)
        if process_id is None:
            link.close()
            return
        self._num_came += 1
        self._came_from.add(process_id)
        connection = _WorkerLink(self._num_came, link, process_id)
        self._connections[connection.number] = connection
        self._selector.register(link, selectors.EVENT_READ, connection)
        if connection.process is not None:
            self._selector.register(connection.process, selectors.EVENT_READ, connection)

    def _hear(self, connection: _WorkerLink) -> None:
        try:
            message = receive(connection.link, Deadline.after(_MESSAGE_S))
            self._act(connection.number, message, time.monotonic())
        except (SamovarError, TypeError, ValueError, KeyError):  # it has closed, or speaks another version's language
            self._dead.append(connection.number)

    def _act(self, number: int, message: LocalMessage, now_s: float) -> None:
        content: dict[str, Any] = message.content
        match content.pop("kind"):
            case "hello":
                self._quorum.came(number, Hello(**(content | {"cores": tuple(content["cores"])})), now_s)
            case "state":
                self._keep_state(message)
                self._quorum.gave(number, now_s)
            case "ready":
                self._quorum.ready(number, int(content["num_steps"]), Last(content["last"]), now_s)
            case "busy":
                self._quorum.busy(number, bool(content["is_busy"]))
            case "vote":
                self._quorum.voted(number, bool(content["is_done"]), now_s)

    def _bury(self) -> None:
        """Tell the quorum of workers that are gone; which may tell others, of whom one may be gone too."""
        while self._dead:
            connection = self._connections.pop(self._dead.pop(), None)
            if connection is not None:
                self._selector.unregister(connection.link)
                if connection.process is not None:
                    self._selector.unregister(connection.process)
                connection.close()
                self._quorum.gone(connection.number, time.monotonic())

    def _send(self, number: int, reply: Reply) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        content: dict[str, Any] = {"kind": type(reply).__name__, **dataclasses.asdict(reply)}
        descriptors: list[int] = []
        if isinstance(reply, Go):
            descriptors = [self._segment_of(reply.generation, len(reply.marks))]
        elif isinstance(reply, Admission) and not reply.is_founder and self._state is not None:
            content["state"] = self._state.content["state"]
            descriptors = list(self._state.descriptors)
        try:
            send(connection.link, content, Deadline.after(_MESSAGE_S), descriptors)
        except (SamovarError, DeadlineExceeded):
            self._dead.append(number)
        if isinstance(reply, Refused):
            self._dead.append(number)

    def _segment_of(self, generation: int, world_size: int) -> int:
        if self._segment[0] != generation:
            self._keep_segment(generation, create_segment(world_size))
        return self._segment[1]

    def _keep_segment(self, generation: int, descriptor: int) -> None:
        if self._segment[1] >= 0:
            os.close(self._segment[1])
        self._segment = generation, descriptor

    def _keep_state(self, message: LocalMessage | None) -> None:
        if self._state is not None:
            self._state.close()
        self._state = message
