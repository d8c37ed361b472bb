"""Members and a box in virtual time, on a link that loses, doubles, delays and reorders.

What they say and how they take it is the production protocol's own code.
A seed decides everything: rates of each fault, crashes of members and of the box's server, pauses. Numbers are whole,
so that sums are exact. The center outlives the server, as memory does that another process holds.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from samovar.box import protocol
from samovar.box.board import Member, MemberProgress
from samovar.box.buffers import BufferShape
from samovar.box.protocol import NOBODY, ON_BOARD, ON_CHUNKS, Kind, Operation, Reply, Request, Status
from samovar.box.seats import answer, answer_on_board
from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed, SamovarError
from tests.sim.box_checks import check_board, check_updates
from tests.sim.box_faults import Faults
from tests.unit.box.numpy_host import Array, NumpyCenter, NumpySeat

NUM_MEMBERS, NUM_OPERATIONS = 3, 8
SHAPE = BufferShape(18, chunk_elements=4)
CLAIMED_WORDS = range(3, 6)
SET_WORDS = range(3)
PART_BYTES = 16  # one chunk, so that an operation has several parts
NEVER = Deadline(0.0)
_RETRY_S, _PAUSE_S = 1.0, 6.0


class WholeSeat(NumpySeat):
    """Differences are whole numbers."""

    def difference(self, weights: Array, center: Array, rate: float) -> Array:
        return np.rint(np.float32(rate) * (weights - center))


class World:
    """`run` plays it to the end; `check` finds what is not as it must be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults = Faults.drawn(self.random)
        self.center = NumpyCenter(SHAPE)
        self.server = Server(self)
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._num_events = 0
        self.clients = [Client(self, index) for index in range(NUM_MEMBERS)]
        self.retired: list[Client] = []
        self.num_retries = 0

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
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
        clients = [*self.clients, *self.retired]
        check_updates(self.center, clients)
        total = self.center.values.astype(np.int64)
        for client in clients:
            total = total + client.share()
        injected = sum(client.injected for client in clients)
        assert (total == injected).all(), f"the sum is off by {total - injected}"
        assert (self.center.versions == self._num_applied()).all()
        check_board(self.center.board, clients)

    def _num_applied(self) -> np.ndarray:
        return np.bincount([chunk for _, _, chunk, _ in self.center.log], minlength=SHAPE.num_chunks)


class Server:
    """Answers with the production code; a crash loses what it knew of its members, and what it was about to say."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seats: dict[Member, Any] = {}
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
                welcome = protocol.Welcome(SHAPE, member, 1)
                return Reply.to(request).pack(), [welcome.pack()]
            if request.kind in ON_BOARD:
                return Reply.to(request).pack(), [answer_on_board(self._seat(request), request, body)]
            return self._done(request, body)
        except SamovarError as error:
            text = str(error).encode()
            return Reply.to(request, len(text), Status.FAILED).pack(), [text]

    def _done(self, request: Request, body: bytes) -> tuple[bytes, list[bytes]]:
        assert request.kind in ON_CHUNKS
        seat = self._seat(request)
        part = request.elements(SHAPE)
        floats = np.frombuffer(body, np.float32).copy() if body else np.empty(part.stop - part.start, np.float32)
        found = answer(seat, request, floats, NEVER)
        bodies = [] if found.body is None else [found.body.tobytes()]
        return found.reply.pack(), [found.versions.tobytes(), *bodies]

    def _seat(self, request: Request) -> Any:
        seat = self._seats.get(request.member)
        if seat is None:
            raise RankFailed("who are you? attach")
        return seat

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
    board_sequence: int = 0
    board_request: tuple[Kind, int, bytes] | None = None
    board_call: int = 0
    asked: list[tuple[object, ...]] = field(default_factory=list)  # changes of the board, as it logs them
    changed: list[tuple[object, ...]] = field(default_factory=list)  # those that are acknowledged
    claimed: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = self._whole_numbers()
        self.injected = self.weights.astype(np.int64)

    @property
    def is_done(self) -> bool:
        return self.sequence >= NUM_OPERATIONS and self.operation is None and self.board_request is None

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
                self._welcome(protocol.Welcome.unpack(bodies[0]).member)
        elif reply.kind in ON_BOARD:
            self._take_from_board(reply, bodies)
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

    def change_board(self) -> None:
        """Post, set a word or claim one; one such request at a time."""
        if self.board_request is not None or self.is_dead:
            return
        self.board_sequence += 1
        number = 1000 * self.member.incarnation + self.board_sequence
        kind = self.world.random.choice([Kind.POST, Kind.SET_WORD, Kind.CLAIM_WORD])
        index = self.world.random.choice(SET_WORDS if kind is Kind.SET_WORD else CLAIMED_WORDS)
        match kind:
            case Kind.POST:
                self.board_request = kind, 0, MemberProgress(steps=number).pack()
                self.asked.append(("post", self.member, number))
            case _:
                self.board_request = kind, index, protocol.pack_word(number)
                self.asked.append(("set" if kind is Kind.SET_WORD else "claim", index, number))
        self.send_to_board()

    def send_to_board(self) -> None:
        """Until it is answered."""
        if self.board_request is None or self.is_dead:
            return
        kind, index, body = self.board_request
        self.board_call = self._next_call()
        request = Request(kind, self.board_call, self.member, index, sequence=self.next_board_sequence())
        self._send(replace(request, body_bytes=len(body)), body)
        call = self.board_call
        self.world.after(_RETRY_S, lambda: self.board_call == call and self.send_to_board())

    def next_board_sequence(self) -> int:
        return self.board_sequence

    def _take_from_board(self, reply: Reply, bodies: list[bytes]) -> None:
        if self.board_request is None or reply.call != self.board_call:
            return
        if reply.status is not Status.DONE:
            self.join()
            return
        if self.board_request[0] is Kind.CLAIM_WORD:
            self.claimed.append((self.board_request[1], protocol.unpack_word(bodies[0])))
        self.changed.append(self.asked[-1])
        self.board_request = None

    def share(self) -> np.ndarray:
        """A member's own updates; for a dead one, with those that the center took without its knowledge."""
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
        self.send_to_board()
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
        self.change_board()
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
