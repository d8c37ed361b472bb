"""Members and a box in virtual time, on a link that loses, doubles, delays, reorders and breaks.

What they say and how they take it is the production protocol's own code.
A seed decides everything: rates of each fault, crashes of members and of the box's server, pauses, members that come
and leave. Numbers are whole, so that sums are exact. The center outlives the server, as memory does that another
process holds, unless a fault loses that too: then members of the lost one must end, and others begin with a new one.
"""

import hashlib
import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from samovar.box import protocol
from samovar.box.board import Member
from samovar.box.protocol import NOBODY, ON_CHUNKS, Kind, Reply, Request, Status
from samovar.box.seats import answer, answer_on_board
from samovar.core.clock import Deadline
from samovar.core.errors import RankFailed, SamovarError
from samovar.transports.sim.world import SimRun
from tests.sim.box_checks import check_board, check_updates
from tests.sim.box_faults import HEALED_S, BoxFaults
from tests.sim.box_member import NUM_OPERATIONS, ON_BOARD, PAUSE_S, SHAPE, Client
from tests.sim.harness import repeated_by
from tests.sim.script import ALL, Script
from tests.unit.box.numpy_host import Array, NumpyCenter, NumpySeat

NUM_MEMBERS = 3
PART_BYTES = 16  # one chunk, so that an operation has several parts
NEVER = Deadline(0.0)


class WholeSeat(NumpySeat):
    """Differences are whole numbers."""

    def difference(self, weights: Array, center: Array, rate: float) -> Array:
        return np.rint(np.float32(rate) * (weights - center))


@dataclass(frozen=True)
class BoxCase:
    """A case is its seed; `only` names the faults that are left."""

    seed: int
    only: str = ALL

    @classmethod
    def of_seed(cls, seed: int) -> "BoxCase":
        return cls(seed)


def run_box(case: BoxCase, script: Script | None = None) -> SimRun[None]:
    """Raises what is wrong, with a note of the command that repeats it; operations travel in several parts."""
    world, part_bytes = World(case.seed, script or Script(case.seed, case.only)), protocol.PART_BYTES
    protocol.PART_BYTES = PART_BYTES  # type: ignore[misc]
    try:
        world.run()
        world.check()
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by('box', case)}")
        raise
    finally:
        protocol.PART_BYTES = part_bytes  # type: ignore[misc]
    log = [entry[:3] for center in world.lives for entry in center.log]
    events = hashlib.sha256(repr((log, world.center.values.tobytes())).encode()).hexdigest()
    return SimRun([None], world.now_s, world.num_sent, (), events)


class World:
    """`run` plays it to the end; `check` finds what is not as it must be."""

    def __init__(self, seed: int, script: Script | None = None) -> None:
        self.script = script or Script(seed)
        self.random = random.Random(seed)
        self.faults = BoxFaults.drawn(self.script, NUM_MEMBERS, NUM_OPERATIONS)
        self.lives = [NumpyCenter(SHAPE)]
        self.server = Server(self)
        self.now_s = 0.0
        self.num_sent = 0
        self.num_clients = 0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._num_events = 0
        self.clients = [Client(self, index) for index in range(NUM_MEMBERS)]
        self.retired: list[Client] = []
        self.num_retries = 0

    @property
    def center(self) -> NumpyCenter:
        return self.lives[-1]

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._num_events, action))

    def transmit(self, index: int, what: str, deliver: Callable[[], None]) -> None:
        """A message to or from a member: it may be lost, come twice, and overtake others."""
        self.num_sent += 1
        script, faults = self.script, self.faults
        if faults.cuts and faults.is_cut(index, self.now_s):
            return
        message = f"message {self.num_sent}, {what} member {index},"
        is_twice = faults.doubling and script.strikes(faults.doubling, f"{message} comes twice")
        for copy in ("", "again ") if is_twice else ("",):
            if not (faults.loss and script.strikes(faults.loss, f"{message} is {copy and 'once '}lost")):
                self.after(-math.log(1.0 - script.share(message + copy)) * faults.delay_s, deliver)

    def run(self) -> None:
        for client in self.clients:
            client.join()
        for come_s in self.faults.joins_s:
            self.after(come_s, self._come)
        healed = False
        while self._events and not self.is_over:
            self.now_s, _, action = heapq.heappop(self._events)
            if not healed and self.now_s > HEALED_S:
                self.faults.heal()
                healed = True
            assert self.now_s < 10 * HEALED_S, "no end in sight"
            action()
        assert self.is_over, f"{[client.name for client in self.clients if not client.is_done]} never end"
        while self._events:  # what is still on its way arrives after all
            self.now_s, _, action = heapq.heappop(self._events)
            action()

    @property
    def is_over(self) -> bool:
        for client in self.clients:  # asked at each event: a loop takes half of the time of `all`
            if not client.is_done:
                return False
        return len(self.clients) >= self.num_expected

    @property
    def num_expected(self) -> int:
        return NUM_MEMBERS + len(self.faults.joins_s)

    def _come(self) -> None:
        self.clients.append(Client(self, len(self.clients)))
        self.clients[-1].join()

    def check(self) -> None:
        for number, center in enumerate(self.lives, 1):
            clients = [client for client in (*self.clients, *self.retired) if client.token == number]
            check_updates(center, clients)
            total = center.values.astype(np.int64)
            for client in clients:
                total = total + client.share()
            injected = sum(client.injected for client in clients)
            assert (total == injected).all(), f"the sum is off by {total - injected}"
            applied = np.bincount([chunk for _, _, chunk, _ in center.log], minlength=SHAPE.num_chunks)
            assert (center.versions == applied).all(), "the center has counted other updates"
            check_board(center.board, clients)


class Server:
    """Answers with the production code; a crash loses what it knew of its members, and what it was about to say."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seats: dict[Member, Any] = {}
        self._rows: list[Member | None] = []
        self._num_joined = 0
        self._resumes_s = 0.0
        self._num_received = 0

    def receive(self, header: bytes, body: bytes, client: "Client") -> None:
        world = self._world
        self._num_received += 1
        if world.faults.pause > 0:
            self._pause(f"at request {self._num_received}", world.script.share(f"pause at {self._num_received}"))
        if world.now_s < self._resumes_s:
            world.after(self._resumes_s - world.now_s, lambda: self.take(header, body, client))
        else:
            self.take(header, body, client)

    def _pause(self, when: str, share: float) -> None:
        world, pause_s = self._world, PAUSE_S * share
        if world.script.strikes(world.faults.pause, f"the box is stopped for {pause_s:.1f} s {when}"):
            self._resumes_s = world.now_s + pause_s

    def take(self, header: bytes, body: bytes, client: "Client") -> None:
        """It is not stopped: answer, unless it dies of it."""
        world, request = self._world, Request.unpack(header)
        script, faults, what = world.script, world.faults, f"at request {self._num_received}"
        if faults.memory_loss and script.strikes(faults.memory_loss, f"the box is lost with its memory {what}"):
            world.lives.append(NumpyCenter(SHAPE))
            self._seats, self._rows, self._num_joined = {}, [], 0
            return
        crashes = script.strikes(faults.server_crash, f"the server ends {what}, and another one takes its memory")
        if crashes:
            self._seats.clear()
            if script.share(what) < 0.5:
                return  # before it did anything
        answered = self.answered(request, body, client.token)
        if not crashes:
            world.transmit(client.index, "to", lambda: client.receive(*answered))

    def answered(self, request: Request, body: bytes, token: int) -> tuple[bytes, list[bytes]]:
        try:
            self.check_token(token)
            if request.kind is Kind.ATTACH:
                member = self._attach(request.member)
                welcome = protocol.Welcome(SHAPE, member, len(self._world.lives))
                return Reply.to(request).pack(), [welcome.pack()]
            if request.kind in ON_BOARD:
                return Reply.to(request).pack(), [answer_on_board(self._seat(request), request, body)]
            return self._done(request, body)
        except SamovarError as error:
            text = str(error).encode()
            return Reply.to(request, len(text), Status.FAILED).pack(), [text]

    def check_token(self, token: int) -> None:
        """As `samovar.box.seats.BufferHost` does for each connection."""
        if token not in (0, len(self._world.lives)):
            raise RankFailed("the center was made again, without this member; join again")

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
        if member not in self._rows:
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

    def expire(self, member: Member, token: int) -> None:
        """It has been away for long, or has left: its row is free."""
        if member != NOBODY and token == len(self._world.lives):
            self._rows[member.index] = None
            self._seats.pop(member, None)
