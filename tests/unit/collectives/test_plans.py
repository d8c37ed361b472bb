"""Rules that every plan keeps for every number of ranks, checked on the plans themselves."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.collectives import plans as registry
from samovar.collectives.plan import Combine, Notify, Operation, Plan, PlanFunction, Put, Reduce, Wait
from samovar.collectives.plans import (
    dissemination_barrier,
    halving_doubling_all_reduce,
    ring_all_gather,
    ring_reduce_scatter,
    two_level,
)
from samovar.collectives.tree import tree_broadcast
from tests.conformance import cases

FUNCTIONS: dict[str, PlanFunction] = {
    **registry.ALL_REDUCES,
    "reduce-scatter": ring_reduce_scatter,
    "all-gather": ring_all_gather,
    "broadcast": tree_broadcast,
    "barrier": dissemination_barrier,
    "direct in parts": cases.COLLECTIVES["direct in parts"].function,
    "ring in parts": cases.COLLECTIVES["ring in parts"].function,
    "two-level": two_level(4),
    "two-level halving": two_level(3, between=halving_doubling_all_reduce),
}
WORLD_SIZES = [*range(1, 18), 31, 32, 33, 64]
NUM_RUNS = 3
every_plan = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())

Place = tuple[int, str, int]  # rank, "element" or "staging", number


def plans(function: PlanFunction, world_size: int) -> list[Plan]:
    return [function(rank, world_size) for rank in range(world_size)]


@every_plan
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


@every_plan
def test_every_number_is_in_range_and_the_counts_are_equal_on_all_ranks(function: PlanFunction) -> None:
    for world_size in WORLD_SIZES:
        of_ranks = plans(function, world_size)
        assert len({(p.name, p.num_chunks, p.num_stagings, p.num_slots) for p in of_ranks}) == 1
        for plan in of_ranks:
            for operation in plan.operations:
                assert_in_range(operation, plan, world_size)


def assert_in_range(operation: Operation, plan: Plan, world_size: int) -> None:
    match operation:
        case Put(chunk=chunk, staging=int(staging)):
            assert 0 <= staging < staging_range(plan, chunk, staging).stop <= plan.num_stagings
        case Reduce(chunk=chunk, stagings=stagings):
            assert stagings
            for staging in stagings:
                assert 0 <= staging < staging_range(plan, chunk, staging).stop <= plan.num_stagings
        case Combine(ranks=ranks, into=into):
            assert {*ranks, *into} <= set(range(world_size))
    if isinstance(operation, Put | Reduce | Combine):
        assert 0 <= operation.chunk < plan.num_chunks
    if not isinstance(operation, Reduce | Combine):
        assert 0 <= operation.peer < world_size
        assert 0 <= operation.slot < plan.num_slots


@given(num_chunks=st.integers(1, 64), num_elements=st.integers(0, 2**40))
def test_chunks_cover_the_buffer_and_differ_by_one_at_most(num_chunks: int, num_elements: int) -> None:
    plan = Plan("any", (), num_chunks, 0, 0)
    bounds = [plan.chunk_bounds(chunk, num_elements) for chunk in range(num_chunks)]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == num_elements
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) == plan.largest_cell(num_elements)
    assert max(sizes) - min(sizes) <= 1


def num_elements(plan: Plan) -> int:
    """So many that every chunk has some, and all cells of nested chunks have equally many."""
    return 2 * plan.num_cells


def staging_range(plan: Plan, chunk: int, staging: int) -> range:
    """The staging areas that the chunk takes: several in a row where it is larger than one."""
    start, stop = plan.chunk_bounds(chunk, num_elements(plan))
    return range(staging, staging - (start - stop) // plan.largest_cell(num_elements(plan)))


def accesses(rank: int, plan: Plan, operation: Operation) -> Iterator[tuple[Place, bool]]:
    """The range that an operation touches, and whether it writes there."""

    def elements(owner: int, chunk: int) -> list[Place]:
        return [(owner, "element", k) for k in range(*plan.chunk_bounds(chunk, num_elements(plan)))]

    def stagings(owner: int, chunk: int, staging: int) -> list[Place]:
        return [(owner, "staging", k) for k in staging_range(plan, chunk, staging)]

    match operation:
        case Put(peer=peer, chunk=chunk, staging=staging):
            yield from ((place, False) for place in elements(rank, chunk))
            written = elements(peer, chunk) if staging is None else stagings(peer, chunk, staging)
            yield from ((place, True) for place in written)
        case Reduce(chunk=chunk, stagings=numbers):
            yield from ((place, True) for place in elements(rank, chunk))
            yield from ((place, False) for number in numbers for place in stagings(rank, chunk, number))
        case Combine(chunk=chunk, ranks=ranks, into=into):
            yield from ((place, False) for other in ranks for place in elements(other, chunk))
            yield from ((place, True) for other in into for place in elements(other, chunk))


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
            self.touch_buffer(rank, plan, writes=True)
            for operation in plan.operations:
                for place, writes in accesses(rank, plan, operation):
                    self.touch(rank, place, writes)
                match operation:
                    case Put(peer=peer, slot=slot) | Notify(peer=peer, slot=slot):
                        self.arrived[peer, slot, run] = self.clocks[rank].copy()
                        self.clocks[rank, rank] += 1
                    case Wait(slot=slot):
                        while (rank, slot, run) not in self.arrived:
                            yield "waiting"
                        np.maximum(self.clocks[rank], self.arrived[rank, slot, run], out=self.clocks[rank])
            self.touch_buffer(rank, plan, writes=False)

    def touch_buffer(self, rank: int, plan: Plan, writes: bool) -> None:
        for element in range(num_elements(plan)):
            self.touch(rank, (rank, "element", element), writes)

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


@every_plan
@pytest.mark.parametrize("world_size", [*range(1, 10), 12, 16, 17, 21])
def test_nothing_is_overwritten_before_it_is_read_in_any_order_of_ranks(
    function: PlanFunction, world_size: int
) -> None:
    assert RaceFinder(plans(function, world_size)).races == set()


def test_the_race_finder_finds_a_broadcast_that_does_not_ask_whether_the_buffer_is_free() -> None:
    hasty = [
        Plan("hasty", (Put(1, 0, None, 0),), 1, 0, 1),
        Plan("hasty", (Wait(0, 0),), 1, 0, 1),
    ]
    assert RaceFinder(hasty).races == {(1, "element", k) for k in range(2)}


def test_the_race_finder_finds_a_staging_that_is_used_again_too_early() -> None:
    hasty = [
        Plan("hasty", (Put(1, 0, 0, 0),), 1, 1, 1),
        Plan("hasty", (Wait(0, 0), Reduce(0, (0,))), 1, 1, 1),
    ]
    assert RaceFinder(hasty).races == {(1, "staging", 0)}


def test_the_race_finder_finds_a_sum_in_place_that_nobody_waits_for() -> None:
    def hasty(rank: int) -> Plan:
        ready = (Notify(1 - rank, 0), Wait(1 - rank, 0))
        return Plan("hasty", (*ready, Combine(rank, (0, 1), (0, 1))), 2, 0, 1)

    assert RaceFinder([hasty(0), hasty(1)]).races == {
        *((0, "element", k) for k in range(2, 4)),
        *((1, "element", k) for k in range(2)),
    }


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_no_rank_leaves_a_barrier_before_all_have_come(world_size: int) -> None:
    """The ranks that have arrived, as far as each rank knows: a message carries all that its sender knew."""
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
