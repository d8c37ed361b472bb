"""Members and a box in virtual time, on a link that loses, doubles, delays and reorders.

What they say and how they take it is the production protocol's own code.
A seed decides everything: rates of each fault, crashes of members and of the box's server, pauses. Numbers are whole,
so that sums are exact. The center outlives the server, as the keeper's memory does.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from samovar.box.board import Member
from samovar.box.protocol import NOBODY, ON_CHUNKS, Kind, Operation, Reply, Request, Shape, Status, Welcome
from samovar.box.serving import answer
from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed, SamovarError
from tests.unit.box.numpy_host import Array, NumpyCenter, NumpySeat

NUM_MEMBERS, NUM_OPERATIONS = 3, 8
SHAPE = Shape(18, 4)
PART_BYTES = 16  # one chunk, so that an operation has several parts
NEVER = Deadline(0.0)
_RETRY_S, _PAUSE_S = 1.0, 6.0


class WholeSeat(NumpySeat):
    """Differences are whole numbers."""

    def difference(self, weights: Array, center: Array, rate: float) -> Array:
        return np.rint(np.float32(rate) * (weights - center))


@dataclass
class Faults:
    """What this seed does to messages and to those who send them; rates are per message, or per operation."""

    loss: float
    doubling: float
    delay_s: float
    member_crash: float
    server_crash: float
    pause: float

    @classmethod
    def drawn(cls, generator: random.Random) -> "Faults":
        def rate(most: float) -> float:
            return generator.choice([0.0, generator.uniform(0.0, most)])

        delay_s = generator.uniform(0.01, 1.5)
        return cls(rate(0.4), rate(0.5), delay_s, rate(0.06), rate(0.04), rate(0.02))

    def heal(self) -> None:
        self.loss = self.doubling = self.member_crash = self.server_crash = self.pause = 0.0


class World:
    """`run` plays it to the end; `check` finds what is not as it must be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults = Faults.drawn(self.random)
        self.center = NumpyCenter(SHAPE)
        self.server = Server(self)
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self.clients = [Client(self, index) for index in range(NUM_MEMBERS)]
        self.retired: list[Client] = []
        self.num_retries = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._num_events, action))

    def transmit(self, deliver: Callable[[], None]) -> None:
        """A message: it may be lost, come twice, and overtake others."""
        copies = 2 if self.random.random() < self.faults.doubling else 1
        for _ in range(copies):
            if self.random.random() >= self.faults.loss:
                self.after(self.random.expovariate(1 / self.faults.delay_s), deliver)

    def run(self) -> None:
        for client in self.clients:
            client.join()
        healed = False
        while self._events and not all(client.is_done for client in self.clients):
            self.now_s, _, action = heapq.heappop(self._events)
            if not healed and self.now_s > 400.0:
                self.faults.heal()
                healed = True
            assert self.now_s < 4000.0, "no end in sight"
            action()
        while self._events:  # what is still on its way arrives after all
            self.now_s, _, action = heapq.heappop(self._events)
            action()

    def check(self) -> None:
        self._check_once()
        total = self.center.values.astype(np.int64)
        for client in [*self.clients, *self.retired]:
            total = total + client.share()
        injected = sum(client.injected for client in [*self.clients, *self.retired])
        assert (total == injected).all(), f"the sum is off by {total - injected}"
        assert (self.center.versions == self._num_applied()).all()

    def _check_once(self) -> None:
        seen = [(member, sequence, chunk) for member, sequence, chunk, _ in self.center.log]
        applied = set(seen)
        assert len(seen) == len(applied), "an update was applied twice"
        for client in [*self.clients, *self.retired]:
            for sequence in client.acknowledged:
                for chunk in range(SHAPE.num_chunks):
                    assert (client.member, sequence, chunk) in applied, "an acknowledged update is not there"

    def _num_applied(self) -> np.ndarray:
        return np.bincount([chunk for _, _, chunk, _ in self.center.log], minlength=SHAPE.num_chunks)


class Server:
    """Answers with the production code; a crash loses what it knew of its members, and what it was about to say."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seats: dict[Member, NumpySeat] = {}
        self._rows: list[Member | None] = []
        self._num_joined = 0
        self._resumes_s = 0.0

    def receive(self, header: bytes, body: bytes, client: "Client") -> None:
        world = self._world
        if world.random.random() < world.faults.pause:
            self._resumes_s = world.now_s + world.random.uniform(0.0, _PAUSE_S)
        world.after(max(0.0, self._resumes_s - world.now_s), lambda: self.take(header, body, client))

    def take(self, header: bytes, body: bytes, client: "Client") -> None:
        """It is not stopped: answer, unless it dies of it."""
        world = self._world
        if crashes := world.random.random() < world.faults.server_crash:
            self._seats.clear()
            if world.random.random() < 0.5:
                return  # before it did anything
        answered = self.answered(Request.unpack(header), body)
        if not crashes:
            world.transmit(lambda: client.receive(*answered))

    def answered(self, request: Request, body: bytes) -> tuple[bytes, list[bytes]]:
        try:
            if request.kind is Kind.ATTACH:
                member = self._attach(request.member)
                return Reply.to(request).pack(), [Welcome(SHAPE, member).pack()]
            return self._done(request, body)
        except SamovarError as error:
            text = str(error).encode()
            return Reply.to(request, len(text), Status.FAILED).pack(), [text]

    def _done(self, request: Request, body: bytes) -> tuple[bytes, list[bytes]]:
        assert request.kind in ON_CHUNKS
        seat = self._seats.get(request.member)
        if seat is None:
            raise RankFailed("who are you? attach")
        part = request.elements(SHAPE)
        floats = np.frombuffer(body, np.float32).copy() if body else np.empty(part.stop - part.start, np.float32)
        found = answer(seat, request, floats, NEVER)
        bodies = [] if found.body is None else [found.body.tobytes()]
        assert found.versions is not None
        return found.reply.pack(), [found.versions.tobytes(), *bodies]

    def _attach(self, member: Member) -> Member:
        center = self._world.center
        if member == NOBODY:
            member = self._new_member()
            center.sequences[member] = np.zeros(SHAPE.num_chunks, np.int64)
            center.answers[member] = np.zeros(SHAPE.num_elements, np.float32)
        if self._rows[member.index] != member:
            raise RankFailed("a newer one has its place")
        self._seats[member] = WholeSeat(center, member)
        return member

    def _new_member(self) -> Member:
        """In the first row that is free."""
        if None not in self._rows:
            self._rows.append(None)
        index = self._rows.index(None)
        self._num_joined += 1
        self._rows[index] = Member(index, self._num_joined)
        return Member(index, self._num_joined)

    def expire(self, member: Member) -> None:
        """It has been away for long: its row is free."""
        if member != NOBODY:
            self._rows[member.index] = None
            self._seats.pop(member, None)


@dataclass
class Client:
    """A member that takes local steps, and exchanges or pushes after each; after a crash another takes its place."""

    world: World
    index: int
    member: Member = NOBODY
    num_calls: int = 0
    sequence: int = 0
    operation: Operation | None = None
    pushed: Array | None = None  # the difference under way, which has left the weights
    received: set[int] = field(default_factory=set)  # chunks whose new weights have come
    is_dead: bool = False
    num_tries: int = 0
    kind: Kind = Kind.READ
    operation_call: int = 0
    acknowledged: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = self._whole_numbers()
        self.injected = self.weights.astype(np.int64)

    @property
    def is_done(self) -> bool:
        return self.sequence >= NUM_OPERATIONS and self.operation is None

    def join(self) -> None:
        """Ask for a place, until there is one."""
        if self.is_dead:
            return
        request = Request(Kind.ATTACH, self._next_call(), self.member)
        self._send(request, b"")
        number = self.num_calls
        self.world.after(_RETRY_S, lambda: self.num_calls == number and self.join())

    def receive(self, header: bytes, bodies: list[bytes]) -> None:
        if self.is_dead:
            return
        reply = Reply.unpack(header)
        if reply.kind is Kind.ATTACH:
            if reply.call == self.num_calls and reply.status is Status.DONE:
                self._welcome(Welcome.unpack(bodies[0]).member)
        elif reply.status is not Status.DONE:
            if self.operation is not None and reply.call == self.operation_call:
                self.failed()
        else:
            self._take(reply, bodies)

    def failed(self) -> None:
        """The server does not know us any more."""
        self.join()

    def next_sequence(self) -> int:
        return self.sequence + 1

    def retry(self, number: int) -> None:
        """Send again what is not answered; now and then as a new call, as after a deadline."""
        world, operation = self.world, self.operation
        if operation is None or self.num_tries != number or self.is_dead:
            return
        if world.random.random() < world.faults.member_crash:
            self._crash()
            return
        world.num_retries += 1
        if world.random.random() < 0.2:
            self.operation = self._repeated()
        self._send_operation()

    def share(self) -> np.ndarray:
        """What is its own: of a dead one, corrected by what the center took without its knowing."""
        share = self.weights.astype(np.int64)
        applied = {
            chunk: difference.astype(np.int64)
            for member, sequence, chunk, difference in self.world.center.log
            if (member, sequence) == (self.member, self.sequence)
        }
        for chunk in range(SHAPE.num_chunks if self.operation is not None else 0):
            part = self.world.center.part(chunk)
            if self.pushed is not None and chunk not in applied:
                share[part] += self.pushed[part].astype(np.int64)
            if self.pushed is None and chunk in applied and chunk not in self.received:
                share[part] -= applied[chunk]
        return share

    def _welcome(self, member: Member) -> None:
        self.member = member
        self._next_call()  # later copies of the welcome are old
        if self.operation is None:
            self._step()
        else:
            self.operation = self._repeated()
            self._send_operation()

    def _step(self) -> None:
        if self.operation is not None or self.is_done:
            return
        moved = self._whole_numbers()
        self.weights += moved
        self.injected = self.injected + moved.astype(np.int64)
        self.sequence = self.next_sequence()
        self.pushed, self.received = None, set()
        self.kind = self.world.random.choice([Kind.EXCHANGE, Kind.ACCUMULATE])
        if self.kind is Kind.ACCUMULATE:
            self.pushed = self._whole_numbers()
            self.weights -= self.pushed
        self.operation = self._repeated()
        self._send_operation()

    def _repeated(self) -> Operation:
        """The same update once more, as a caller that tries again makes it."""
        self.operation_call = self._next_call()
        return Operation(self.kind, self.operation_call, self.member, SHAPE, self.sequence, self._rate())

    def _rate(self) -> float:
        return 0.5 if self.kind is Kind.EXCHANGE else 0.0

    def _send_operation(self) -> None:
        assert self.operation is not None
        outgoing = self.weights if self.pushed is None else self.pushed
        for request, part in self.operation.unanswered():
            self._send(request, outgoing[part].tobytes())
        self.num_tries += 1
        number = self.num_tries
        self.world.after(_RETRY_S, lambda: self.retry(number))

    def _send(self, request: Request, body: bytes) -> None:
        header, server = request.pack(), self.world.server
        self.world.transmit(lambda: server.receive(header, body, self))

    def _take(self, reply: Reply, bodies: list[bytes]) -> None:
        part = self.operation.expected(reply) if self.operation is not None else None
        if part is None or self.operation is None:
            return
        if len(bodies) > 1:
            self.weights[part] = np.frombuffer(bodies[1], np.float32)
            self.received.add(part.start // SHAPE.chunk_elements)
        self.operation.answered(reply, np.frombuffer(bodies[0], np.int64))
        if self.operation.is_complete:
            self.acknowledged.append(self.sequence)
            self.operation = None
            self.world.after(self.world.random.uniform(0.0, 1.0), self._step)

    def _crash(self) -> None:
        self.is_dead = True
        self.world.retired.append(self)
        successor = Client(self.world, self.index)
        self.world.clients[self.index] = successor
        expire = partial(self.world.server.expire, self.member)
        if self.world.random.random() < 0.5:
            expire()
        else:
            self.world.after(self.world.random.uniform(0.0, 20.0), expire)
        successor.join()

    def _next_call(self) -> int:
        self.num_calls += 1
        return self.num_calls

    def _whole_numbers(self) -> Array:
        values = [self.world.random.randrange(-200, 200) for _ in range(SHAPE.num_elements)]
        return np.array(values, np.float32)
