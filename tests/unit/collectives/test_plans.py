"""What must hold of every plan for every number of ranks, checked on the plans themselves."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.collectives.barrier import dissemination_barrier
from samovar.collectives.plan import Notify, Operation, Plan, PlanFunction, Put, Reduce, Wait
from samovar.collectives.ring import ring_all_reduce
from samovar.collectives.tree import tree_all_reduce, tree_broadcast

FUNCTIONS: list[PlanFunction] = [ring_all_reduce, tree_all_reduce, tree_broadcast, dissemination_barrier]
WORLD_SIZES = range(1, 65)
NUM_RUNS = 3

Place = tuple[int, str, int]  # rank, "chunk" or "staging", number


def plans(function: PlanFunction, world_size: int) -> list[Plan]:
    return [function(rank, world_size) for rank in range(world_size)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_message_is_awaited_once_where_it_arrives(function: PlanFunction) -> None:
    for world_size in WORLD_SIZES:
        sent, awaited = Counter(), Counter()
        for rank, plan in enumerate(plans(function, world_size)):
            for operation in plan.operations:
                match operation:
                    case Put(peer=peer, slot=slot) | Notify(peer=peer, slot=slot):
                        sent[rank, peer, slot] += 1
                    case Wait(peer=peer, slot=slot):
                        awaited[peer, rank, slot] += 1
        assert sent == awaited, world_size
        assert len({(receiver, slot) for _, receiver, slot in sent}) == len(sent), "one sender a slot"
        assert set(sent.values()) <= {1}
        assert all(sender != receiver for sender, receiver, _ in sent)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_number_is_in_range_and_the_counts_are_equal_on_all_ranks(function: PlanFunction) -> None:
    for world_size in WORLD_SIZES:
        of_ranks = plans(function, world_size)
        assert len({(p.name, p.num_chunks, p.num_stagings, p.num_slots) for p in of_ranks}) == 1
        for plan in of_ranks:
            for operation in plan.operations:
                assert_in_range(operation, plan, world_size)


def assert_in_range(operation: Operation, plan: Plan, world_size: int) -> None:
    match operation:
        case Put(staging=int(staging)):
            assert 0 <= staging < plan.num_stagings
        case Reduce(stagings=stagings):
            assert stagings
            assert all(0 <= staging < plan.num_stagings for staging in stagings)
    if isinstance(operation, Put | Reduce):
        assert 0 <= operation.chunk < plan.num_chunks
    if not isinstance(operation, Reduce):
        assert 0 <= operation.peer < world_size
        assert 0 <= operation.slot < plan.num_slots


@given(num_chunks=st.integers(1, 64), num_elements=st.integers(0, 2**40))
def test_chunks_cover_the_buffer_and_differ_by_one_at_most(num_chunks: int, num_elements: int) -> None:
    plan = Plan("any", (), num_chunks, 0, 0)
    bounds = [plan.chunk_bounds(chunk, num_elements) for chunk in range(num_chunks)]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == num_elements
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) == plan.largest_chunk(num_elements)
    assert max(sizes) - min(sizes) <= 1


def accesses(rank: int, operation: Operation) -> Iterator[tuple[Place, bool]]:
    """What an operation touches, and whether it writes there."""
    match operation:
        case Put(peer=peer, chunk=chunk, staging=staging):
            yield (rank, "chunk", chunk), False
            yield ((peer, "chunk", chunk) if staging is None else (peer, "staging", staging)), True
        case Reduce(chunk=chunk, stagings=stagings):
            yield (rank, "chunk", chunk), True
            for staging in stagings:
                yield (rank, "staging", staging), False


class RaceFinder:
    """Runs the plans of all ranks NUM_RUNS times and follows with vector clocks what happened before what.

    Between runs every rank reads and refills its buffer. `races` are places that two ranks touched, one of
    them writing, with nothing sent in between that orders the two.
    """

    def __init__(self, of_ranks: list[Plan]) -> None:
        self.clocks = np.eye(len(of_ranks), dtype=np.int64)
        self.arrived: dict[tuple[int, int, int], np.ndarray] = {}  # (receiver, slot, run) -> sender's clock
        self.writes: dict[Place, tuple[int, int]] = {}  # (rank, its time)
        self.reads: defaultdict[Place, dict[int, int]] = defaultdict(dict)
        self.races: set[Place] = set()
        pending = {rank: self.run(rank, plan) for rank, plan in enumerate(of_ranks)}
        while pending:
            done = [rank for rank, steps in pending.items() if next(steps, "done") == "done"]
            for rank in done:
                del pending[rank]

    def run(self, rank: int, plan: Plan) -> Iterator[str]:
        """Yields whenever the rank has to wait."""
        for run in range(NUM_RUNS):
            for chunk in range(plan.num_chunks):
                self.touch(rank, (rank, "chunk", chunk), writes=True)
            for operation in plan.operations:
                for place, writes in accesses(rank, operation):
                    self.touch(rank, place, writes)
                match operation:
                    case Put(peer=peer, slot=slot) | Notify(peer=peer, slot=slot):
                        self.arrived[peer, slot, run] = self.clocks[rank].copy()
                        self.clocks[rank, rank] += 1
                    case Wait(slot=slot):
                        while (rank, slot, run) not in self.arrived:
                            yield "waiting"
                        np.maximum(self.clocks[rank], self.arrived[rank, slot, run], out=self.clocks[rank])
            for chunk in range(plan.num_chunks):
                self.touch(rank, (rank, "chunk", chunk), writes=False)

    def touch(self, rank: int, place: Place, writes: bool) -> None:
        clock = self.clocks[rank]
        earlier = [self.writes[place]] if place in self.writes else []
        if writes:
            earlier += self.reads.pop(place, {}).items()
            self.writes[place] = (rank, int(clock[rank]))
        else:
            self.reads[place][rank] = int(clock[rank])
        if any(clock[other] < time for other, time in earlier):
            self.races.add(place)


@pytest.mark.parametrize("function", [ring_all_reduce, tree_all_reduce, tree_broadcast])
@pytest.mark.parametrize("world_size", [*range(1, 13), 16, 17, 31, 33])
def test_nothing_is_overwritten_before_it_is_read_in_any_order_of_ranks(
    function: PlanFunction, world_size: int
) -> None:
    assert RaceFinder(plans(function, world_size)).races == set()


def test_the_race_finder_finds_a_broadcast_that_does_not_ask_whether_the_buffer_is_free() -> None:
    hasty = [
        Plan("hasty", (Put(1, 0, None, 0),), 1, 0, 1),
        Plan("hasty", (Wait(0, 0),), 1, 0, 1),
    ]
    assert RaceFinder(hasty).races == {(1, "chunk", 0)}


def test_the_race_finder_finds_a_staging_that_is_used_again_too_early() -> None:
    hasty = [
        Plan("hasty", (Put(1, 0, 0, 0),), 1, 1, 1),
        Plan("hasty", (Wait(0, 0), Reduce(0, (0,))), 1, 1, 1),
    ]
    assert RaceFinder(hasty).races == {(1, "staging", 0)}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_no_rank_leaves_a_barrier_before_all_have_come(world_size: int) -> None:
    """Who has come as far as each rank knows: what a message carries is all that its sender knew."""
    known = [{rank} for rank in range(world_size)]
    of_ranks = plans(dissemination_barrier, world_size)
    for round_number in range(of_ranks[0].num_slots):
        sent = {}
        for rank, plan in enumerate(of_ranks):
            match plan.operations[2 * round_number]:
                case Notify(peer=peer, slot=slot):
                    sent[peer, slot] = set(known[rank])
        for rank, plan in enumerate(of_ranks):
            match plan.operations[2 * round_number + 1]:
                case Wait(slot=slot):
                    known[rank] |= sent[rank, slot]
    assert all(knows == set(range(world_size)) for knows in known)
