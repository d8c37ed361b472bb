"""A member of the simulated box (see `tests.sim.box_world`): what it asks for, again and again until it is answered."""

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from samovar.box import protocol
from samovar.box.board import Member, MemberProgress
from samovar.box.buffers import BufferShape
from samovar.box.protocol import NOBODY, Kind, Operation, Reply, Request, Status
from tests.unit.box.numpy_host import Array

ON_BOARD = (Kind.ROWS, Kind.POST, Kind.WORD, Kind.SET_WORD, Kind.CLAIM_WORD)
NUM_OPERATIONS = 8
SHAPE = BufferShape(18, chunk_elements=4)
CLAIMED_WORDS = range(3, 6)
SET_WORDS = range(3)
PAUSE_S = 6.0
_RETRY_S = 1.0


@dataclass
class Client:
    """A member that takes local steps, and exchanges or pushes after each; after a crash another takes its place."""

    world: Any
    index: int
    member: Member = NOBODY
    token: int = 0  # of the center that it belongs to
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
        self.world.num_clients += 1
        self.name = f"member {self.index}, life {self.world.num_clients}"
        self.random = random.Random(f"{self.world.script.seed} {self.name}")
        self.weights = self._whole_numbers()
        self.injected = self.weights.astype(np.int64)

    @property
    def is_done(self) -> bool:
        if self.operation is not None or self.board_request is not None:
            return False
        return self.sequence >= self.world.faults.leaves_after.get(self.index, NUM_OPERATIONS)

    def join(self) -> None:
        """Ask for a place, until there is one."""
        if self.is_dead or self._dies(f"before it asks for a place, call {self.num_calls + 1}"):
            return
        self._send(Request(Kind.ATTACH, self._next_call(), self.member), b"")
        number = self.num_calls
        self.world.after(_RETRY_S, lambda: self.num_calls == number and self.join())

    def receive(self, header: bytes, bodies: list[bytes]) -> None:
        if self.is_dead:
            return
        reply = Reply.unpack(header)
        if reply.kind is Kind.ATTACH:
            if reply.call == self.num_calls:
                self._take_place(reply, bodies)
        elif reply.kind in ON_BOARD:
            self._take_from_board(reply, bodies)
        elif reply.status is not Status.DONE:
            if self.operation is not None and reply.call == self.operation_call:
                self.failed()
        else:
            self._take(reply, bodies)

    def _take_place(self, reply: Reply, bodies: list[bytes]) -> None:
        if reply.status is not Status.DONE:
            self._crash()  # others took its place, or the center was lost: its run ends, and another one comes
            return
        welcome = protocol.Welcome.unpack(bodies[0])
        self.token = welcome.token
        self._welcome(welcome.member)

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
        if self._dies(f"before its try {number + 1}"):
            return
        world.num_retries += 1
        if self.random.random() < 0.2:
            self.operation = self._repeated()
        self._send_operation()

    def change_board(self) -> None:
        """Post, set a word or claim one; one such request at a time."""
        if self.board_request is not None or self.is_dead:
            return
        self.board_sequence += 1
        number = 1000 * self.member.incarnation + self.board_sequence
        kind = self.random.choice([Kind.POST, Kind.SET_WORD, Kind.CLAIM_WORD])
        index = self.random.choice(SET_WORDS if kind is Kind.SET_WORD else CLAIMED_WORDS)
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
        self._send(request._replace(body_bytes=len(body)), body)
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
            for member, sequence, chunk, difference in self.world.lives[self.token - 1].log
            if sequence == self.sequence and member == self.member
        }
        for chunk in range(SHAPE.num_chunks if self.operation is not None else 0):
            part = self.world.lives[self.token - 1].part(chunk)
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
        if self.is_dead or self.operation is not None or self.is_done:
            return
        if self._dies(f"before its step {self.sequence + 1}"):
            return
        moved = self._whole_numbers()
        self.weights += moved
        self.injected = self.injected + moved.astype(np.int64)
        self.sequence = self.next_sequence()
        self.pushed, self.received = None, set()
        self.change_board()
        self.kind = self.random.choice([Kind.EXCHANGE, Kind.ACCUMULATE])
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
        self.world.transmit(self.index, "from", lambda: server.receive(header, body, self))

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
            self.world.after(self._step_s(), self._step if not self.is_done else self._leave)

    def _step_s(self) -> float:
        world, what = self.world, f"{self.name}, is stopped before step {self.sequence + 1}"
        is_stopped = world.script.strikes(world.faults.member_pause, what)
        return (PAUSE_S if is_stopped else 1.0) * self.random.random()

    def _leave(self) -> None:
        """Its place is free, if it leaves early."""
        if self.index in self.world.faults.leaves_after and self.is_done and not self.is_dead:
            self.is_dead = True
            self.world.server.expire(self.member, self.token)

    def _dies(self, when: str) -> bool:
        dies = self.world.script.strikes(self.world.faults.member_crash, f"{self.name}, dies {when}")
        if dies:
            self._crash()
        return dies

    def _crash(self) -> None:
        self.is_dead = True
        self.world.retired.append(self)
        successor = Client(self.world, self.index)
        self.world.clients[self.index] = successor
        expire = partial(self.world.server.expire, self.member, self.token)
        if self.random.random() < 0.5:
            expire()
        else:
            self.world.after(self.random.uniform(0.0, 20.0), expire)
        successor.join()

    def _next_call(self) -> int:
        self.num_calls += 1
        return self.num_calls

    def _whole_numbers(self) -> Array:
        values = [self.random.randrange(-200, 200) for _ in range(SHAPE.num_elements)]
        return np.array(values, np.float32)
