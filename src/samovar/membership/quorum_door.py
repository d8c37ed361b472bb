"""The door of an elastic job on one host: a thread of the launcher, which workers of this user reach over a socket."""

import os
import queue
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.core.plain import from_plain, to_plain
from samovar.membership.state_courier import Courier, StatePlace
from samovar.transports.shm import create_segment
from samovar.transports.unix_sockets import LocalMessage, listen, receive, send, user_process

_LOOK_S = 1.0
_MOST_LETTERS = 64  # the name of a socket has 107 bytes
# A message that is there takes no time; to a worker that reads nothing for long nothing is sent any more.
_MESSAGE_S = 0.05
# The errors of a message of another version.
OTHER_LANGUAGE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def address_of(job: str, door: str = "") -> str:
    """The name of the socket. Raises InputError for a job's name that is none."""
    if not job.replace("-", "").replace("_", "").isalnum() or not job.isascii() or len(job) > _MOST_LETTERS:
        raise InputError(f"elastic job {job!r}: a name has up to {_MOST_LETTERS} letters, digits, - and _")
    return f"samovar-elastic-{os.getuid()}-{job}{door and f'/{door}'}"


class _WorkerLink:
    """A worker's socket, and its process if this one may watch it. `hello` is what it said first."""

    def __init__(self, number: int, link: socket.socket, process_id: int) -> None:
        self.number = number
        self.link = link
        self.process_id = process_id
        self.hello: dict[str, Any] = {}
        self.process: int | None = None
        with suppress(OSError):
            self.process = os.pidfd_open(process_id) if process_id else None

    def close(self) -> None:
        self.link.close()
        if self.process is not None:
            os.close(self.process)


class QuorumDoor(ABC):
    """Lets workers of this host into the elastic `job`, until the end of its context, which they see as the job's end.

    It holds the segment of the present generation, and the state for those that come. Workers of other hosts come by a
    door of their own, and a `courier`, which this owns, brings their state here. Raises InputError if another door has
    this name.
    """

    def __init__(self, job: str, door: str, courier: Courier | None) -> None:
        self._courier = courier
        try:
            self._listener = listen(address_of(job, door))
        except BaseException:
            if courier is not None:
                courier.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._connections: dict[int, _WorkerLink] = {}
        self._dead: list[int] = []
        self._num_came = 0
        self._came_from: set[int] = set()  # processes
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._segment = (0, -1)  # generation, descriptor
        self._state = ("", -1)  # token, descriptor
        self._awaiting: dict[str, list[tuple[int, dict[str, Any]]]] = {}  # by token: workers that wait for a state
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="samovar-quorum", daemon=True)

    @abstractmethod
    def _heard(self, number: int, content: dict[str, Any]) -> None:
        """A worker of this host has sent a message."""

    @abstractmethod
    def _gone(self, number: int) -> None:
        """The process of a worker of this host has ended, or its connection."""

    @abstractmethod
    def _look(self) -> None:
        """Called every second."""

    @abstractmethod
    def rank_ended(self, process_id: int) -> None:
        """A process that the launcher started has ended."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.set()
        self._wake()
        self._thread.join()
        if self._courier is not None:
            self._courier.close()
        for connection in self._connections.values():
            connection.close()
        self._listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._keep_segment(0, -1)
        self._keep_state("", -1)
        while not self._calls.empty():  # a state that came too late
            self._calls.get()()

    def call(self, what: Callable[[], None]) -> None:
        """Let the door's own thread call this. Never waits."""
        self._calls.put(what)
        self._wake()

    def _register(self, descriptor: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever there is something to read."""
        self._selector.register(descriptor, selectors.EVENT_READ, ready)

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
                self._look()
                for number, _ in (one for waiting in self._awaiting.values() for one in waiting):
                    self._tell(number, {"kind": "StillWaiting"})
                self._bury()

    def _take(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fd == self._wake_read:
            os.read(self._wake_read, 1 << 10)
            while not self._calls.empty():
                self._calls.get()()
        elif callable(key.data):
            key.data()
        elif isinstance(key.data, _WorkerLink) and key.data.number in self._connections:
            if key.fd == key.data.process:
                self._dead.append(key.data.number)
            else:
                self._hear(key.data)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:  # no descriptor is free
            time.sleep(_MESSAGE_S)
            return
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
            content = message.content
            if content["kind"] == "state":
                content["state"] = to_plain(self._shelved(message))
            elif content["kind"] == "hello":
                connection.hello = {**content, "joins": True}
            self._heard(connection.number, content)
        except (SamovarError, *OTHER_LANGUAGE):  # or it has closed
            self._dead.append(connection.number)

    def _bury(self) -> None:
        """Note workers that are gone. A message to the others may show that one more is gone."""
        while self._dead:
            connection = self._connections.pop(self._dead.pop(), None)
            if connection is not None:
                self._selector.unregister(connection.link)
                if connection.process is not None:
                    self._selector.unregister(connection.process)
                connection.close()
                self._gone(connection.number)

    def _tell(self, number: int, content: dict[str, Any]) -> None:
        """Send a reply to a worker of this host, with the memory that belongs to it."""
        if number not in self._connections:  # it is gone, or its host
            return
        if "state" in content:
            place = from_plain(StatePlace, content["state"])
            if place.token != self._state[0]:
                self._bring(place, number, content)
                return
            self._post(number, {**content, "state": place.numbers}, self._state[1])
        elif content["kind"] == "Go":
            here = content["hosts"].count(content["hosts"][content["rank"]])
            self._post(number, content, self._segment_of(content["generation"], here))
        else:
            self._post(number, content)
        if content["kind"] == "Refused":
            self._dead.append(number)

    def _post(self, number: int, content: dict[str, Any], *descriptors: int) -> None:
        try:
            send(self._connections[number].link, content, Deadline.after(_MESSAGE_S), descriptors)
        except InputError as error:
            self._tell(number, {"kind": "Refused", "why": str(error), "is_input": True})
        except SamovarError:
            self._dead.append(number)

    def _shelved(self, message: LocalMessage) -> StatePlace:
        """Keep the state that a worker of this host gives, and say where it is."""
        (descriptor,), message.descriptors = message.descriptors, []
        place = StatePlace.new(message.content["state"], None if self._courier is None else self._courier.address)
        self._keep_state(place.token, descriptor)
        return place

    def _bring(self, place: StatePlace, number: int, admission: dict[str, Any]) -> None:
        """Get the state from the host where it is, and then let the worker in."""
        waiting = self._awaiting.setdefault(place.token, [])
        waiting.append((number, admission))
        if len(waiting) == 1:
            assert self._courier is not None
            self._courier.bring(place, lambda descriptor: self.call(partial(self._brought, place, descriptor)))

    def _brought(self, place: StatePlace, descriptor: int) -> None:
        """The state is here, or cannot be had (-1): its host is gone. Then those that wait for it come once more."""
        waiting = self._awaiting.pop(place.token, [])
        if descriptor >= 0:
            self._keep_state(place.token, descriptor)
        for number, admission in waiting if not self._closing.is_set() else ():
            if descriptor >= 0:
                self._tell(number, admission)
            elif (connection := self._connections.pop(number, None)) is not None:
                self._num_came += 1
                connection.number = self._num_came
                self._connections[connection.number] = connection
                self._gone(number)
                self._heard(connection.number, dict(connection.hello))
        if self._closing.is_set():
            self._keep_state("", -1)

    def _segment_of(self, generation: int, num_here: int) -> int:
        if self._segment[0] != generation:
            self._keep_segment(generation, create_segment(num_here))
        return self._segment[1]

    def _keep_segment(self, generation: int, descriptor: int) -> None:
        if self._segment[1] >= 0:
            os.close(self._segment[1])
        self._segment = generation, descriptor

    def _keep_state(self, token: str, descriptor: int) -> None:
        if self._courier is not None:
            self._courier.offer(token, descriptor)
        if self._state[1] >= 0:
            os.close(self._state[1])
        self._state = token, descriptor
