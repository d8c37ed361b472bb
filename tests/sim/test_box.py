"""The box's protocol under seeds of faults: nothing is lost, nothing counts twice; planted mistakes are seen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from samovar.box import protocol
from samovar.box.board import Member
from samovar.box.protocol import Operation, Reply, Request
from tests.sim import box_world
from tests.sim.box_member import SHAPE, Client
from tests.sim.box_world import Server, World
from tests.unit.box.numpy_host import NumpySeat

NUM_SEEDS, NUM_SLOW_SEEDS = 30, 1000
MOST_SEEDS_TO_SEE = 60
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PART_BYTES", box_world.PART_BYTES)


def play(seed: int) -> World:
    world = World(seed)
    world.run()
    world.check()
    return world


def test_the_sum_is_conserved_exactly() -> None:
    worlds = [play(seed) for seed in range(NUM_SEEDS)]
    assert any(world.retired for world in worlds)
    assert any(world.num_retries for world in worlds)
    happened = [sentence for world in worlds for sentence in world.script.happened.values()]
    for death in ("dies before it asks for a place", "dies before its step", "dies before its try"):
        assert any(death in sentence for sentence in happened)
    assert sum(len(world.center.log) for world in worlds) > NUM_SEEDS * 50
    assert sum(len(world.center.board.changes) for world in worlds) > NUM_SEEDS * 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sum_is_conserved_exactly_under_a_thousand_seeds() -> None:
    for seed in range(NUM_SEEDS, NUM_SLOW_SEEDS):
        play(seed)


def test_a_seed_is_a_schedule() -> None:
    first, second = play(7), play(7)
    assert [entry[:3] for entry in first.center.log] == [entry[:3] for entry in second.center.log]
    assert first.center.values.tobytes() == second.center.values.tobytes()


def nothing_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NumpySeat, "holds", lambda _self, _first, count, _sequence: np.zeros(count, bool))


def only_the_last_is_held(patch: pytest.MonkeyPatch) -> None:
    def holds(self: NumpySeat, first: int, count: int, sequence: int) -> np.ndarray:
        return self.memory.sequences[self.member][first : first + count] == sequence

    patch.setattr(NumpySeat, "holds", holds)


def sequences_belong_to_rows(patch: pytest.MonkeyPatch) -> None:
    """A new incarnation's first updates are taken for the old one's."""
    joined = Server._new_member

    def new_member(self: Server) -> Member:
        member, sequences = joined(self), self._world.center.sequences
        earlier = [each for each in sequences if each.index == member.index]
        self.inherited = sequences[earlier[-1]] if earlier else None  # type: ignore[attr-defined]
        return member

    attached = Server._attach

    def attach(self: Server, member: Member) -> Member:
        is_new = member == protocol.NOBODY
        member = attached(self, member)
        if is_new and self.inherited is not None:  # type: ignore[attr-defined]
            self._world.center.sequences[member] = self.inherited  # type: ignore[attr-defined]
        return member

    patch.setattr(Server, "_new_member", new_member)
    patch.setattr(Server, "_attach", attach)


def answers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Those of the server's life before."""
    attached = Server._attach

    def attach(self: Server, member: Member) -> Member:
        if member in self._world.center.answers:
            self._world.center.answers[member] = np.zeros(SHAPE.num_elements, np.float32)
        return attached(self, member)

    patch.setattr(Server, "_attach", attach)


def a_repeated_exchange_gives_back_what_came(patch: pytest.MonkeyPatch) -> None:
    answer = box_world.answer

    def careless(seat: Any, request: Request, body: np.ndarray, deadline: object) -> object:
        if request.kind is protocol.Kind.EXCHANGE:
            seat.answers[request.elements(SHAPE)] = body
        return answer(seat, request, body, deadline)  # type: ignore[arg-type]

    patch.setattr(box_world, "answer", careless)


def a_retry_is_a_new_update(patch: pytest.MonkeyPatch) -> None:
    repeated = Client._repeated

    def renumbered(self: Client) -> Operation:
        if self.operation is not None:
            self.sequence += 1
        return repeated(self)

    patch.setattr(Client, "_repeated", renumbered)


def updates_have_one_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Client, "next_sequence", lambda self: 1 if self.sequence == 0 else self.sequence + (self.index != 0))
    patch.setattr(Client, "is_done", property(lambda self: len(self.acknowledged) >= 8 and self.operation is None))


def any_answer_will_do(patch: pytest.MonkeyPatch) -> None:
    """Also that of an earlier call, for an earlier update."""

    def expected(self: Operation, reply: Reply) -> slice | None:
        found = self._left.get(reply.first_chunk)
        return None if found is None else found[1]

    patch.setattr(Operation, "expected", expected)


def answers_are_taken_in_order(patch: pytest.MonkeyPatch) -> None:
    expected, answered = Operation.expected, Operation.answered

    def next_part(self: Operation, reply: Reply) -> slice | None:
        if expected(self, reply) is None:
            return None
        fitting = [part for _, part in self.unanswered() if 4 * (part.stop - part.start) == reply.body_bytes]
        return fitting[0] if fitting else self.unanswered()[0][1]

    def first_left(self: Operation, reply: Reply, versions: np.ndarray) -> None:
        del reply
        request, _ = self.unanswered()[0]
        answered(self, Reply.to(request), versions)

    patch.setattr(Operation, "expected", next_part)
    patch.setattr(Operation, "answered", first_left)


def the_last_part_stands_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Operation, "is_complete", property(lambda self: SHAPE.num_chunks - 1 not in self._left))


def answered_before_applied(patch: pytest.MonkeyPatch) -> None:
    """The answer leaves, then the server dies."""
    taken = Server.take

    def take(self: Server, header: bytes, body: bytes, client: Client) -> None:
        world, request = self._world, Request.unpack(header)
        if request.kind is protocol.Kind.ACCUMULATE and world.random.random() < world.faults.server_crash:
            reply = Reply.to(request).pack()
            world.transmit(client.index, "to", lambda: client.receive(reply, [np.zeros(1, np.int64).tobytes()]))
            self._seats.clear()
            return
        taken(self, header, body, client)

    patch.setattr(Server, "take", take)


def a_failure_ends_the_operation(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: Client) -> None:
        self.acknowledged.append(self.sequence)
        self.operation = None
        self.join()

    patch.setattr(Client, "failed", give_up)


def old_ones_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A dead member's late message is taken for one of who has its row now."""
    done = Server._done

    def unfenced(self: Server, request: Request, body: bytes) -> tuple[bytes, list[bytes]]:
        row = self._rows[request.member.index]
        if row is not None and row in self._seats and request.member not in self._seats:
            fields = request.kind, request.call, row, request.first_chunk, request.num_chunks
            request = Request(*fields, request.sequence, request.rate, request.body_bytes)
        return done(self, request, body)

    patch.setattr(Server, "_done", unfenced)


def the_center_forgets_with_the_server(patch: pytest.MonkeyPatch) -> None:
    """Sequence numbers that the server alone knew."""
    attached = Server._attach

    def attach(self: Server, member: Member) -> Member:
        if member in self._world.center.sequences:
            self._world.center.sequences[member] = np.zeros(SHAPE.num_chunks, np.int64)
        return attached(self, member)

    patch.setattr(Server, "_attach", attach)


def the_board_forgets_with_the_server(patch: pytest.MonkeyPatch) -> None:
    """Which of a member's requests it has done, and what it said."""
    attached = Server._attach

    def attach(self: Server, member: Member) -> Member:
        notes = self._world.center.board.notes
        if member in notes:
            notes[member][1:] = 0
        return attached(self, member)

    patch.setattr(Server, "_attach", attach)


def a_retry_is_a_new_change_of_the_board(patch: pytest.MonkeyPatch) -> None:
    def next_board_sequence(self: Client) -> int:
        self.board_sequence += 1
        return self.board_sequence

    patch.setattr(Client, "next_board_sequence", next_board_sequence)


def only_the_last_change_of_the_board_is_known(patch: pytest.MonkeyPatch) -> None:
    """An earlier one that comes late is done again."""
    answer = box_world.answer_on_board

    def careless(seat: Any, request: Request, body: bytes) -> bytes:
        if request.sequence < seat.notes[1]:
            seat.notes[1] = 0
        return answer(seat, request, body)

    patch.setattr(box_world, "answer_on_board", careless)


def the_board_keeps_no_answers(patch: pytest.MonkeyPatch) -> None:
    answer = box_world.answer_on_board

    def careless(seat: Any, request: Request, body: bytes) -> bytes:
        seat.notes[2] = 0
        return answer(seat, request, body)

    patch.setattr(box_world, "answer_on_board", careless)


def a_center_made_again_is_taken_for_the_old_one(patch: pytest.MonkeyPatch) -> None:
    """A member of the lost center goes on as the member that has its number now."""
    patch.setattr(Server, "check_token", lambda *_: None)
    done = Server._done

    def unfenced(self: Server, request: Request, body: bytes) -> tuple[bytes, list[bytes]]:
        if request.member.index < len(self._rows) and self._rows[request.member.index] is not None:
            request = request._replace(member=self._rows[request.member.index])
        return done(self, request, body)

    patch.setattr(Server, "_done", unfenced)


def a_lost_operation_is_not_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Client, "retry", lambda _self, _number: None)


def a_member_stops_before_its_last_update(patch: pytest.MonkeyPatch) -> None:
    step = Client._step
    patch.setattr(Client, "_step", lambda self: step(self) if self.sequence < 3 else None)


MISTAKES: list[Plant] = [
    a_lost_operation_is_not_sent_again,
    a_member_stops_before_its_last_update,
    a_center_made_again_is_taken_for_the_old_one,
    the_board_forgets_with_the_server,
    a_retry_is_a_new_change_of_the_board,
    only_the_last_change_of_the_board_is_known,
    the_board_keeps_no_answers,
    nothing_is_held,
    only_the_last_is_held,
    sequences_belong_to_rows,
    answers_are_forgotten,
    a_repeated_exchange_gives_back_what_came,
    a_retry_is_a_new_update,
    updates_have_one_number,
    any_answer_will_do,
    answers_are_taken_in_order,
    the_last_part_stands_for_all,
    answered_before_applied,
    a_failure_ends_the_operation,
    old_ones_are_not_fenced,
    the_center_forgets_with_the_server,
]


@pytest.mark.parametrize("plant", MISTAKES)
def test_a_planted_mistake_is_seen(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        list(map(play, range(MOST_SEEDS_TO_SEE)))
