"""Two-level all-reduce: inside each host, between hosts, inside each host."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import TypeAlias, assert_never

from samovar.collectives.plan import Combine, Notify, Operation, Plan, PlanFunction, Put, Reduce, Wait
from samovar.collectives.ring import ring_all_reduce
from samovar.collectives.tree import chosen_arity, kary_tree_down, kary_tree_up

Span: TypeAlias = tuple[int, int]  # first cell, number of cells


@dataclass(frozen=True, slots=True)
class NestedPlan(Plan):
    """A plan over a buffer of `num_cells` cells, where chunk c is the cells of `spans[c]`.

    Chunks may contain one another. A staging area has room for one cell; a larger chunk takes as many in a row.
    """

    num_cells: int
    spans: tuple[Span, ...]

    def chunk_bounds(self, chunk: int, num_elements: int) -> tuple[int, int]:
        first, count = self.spans[chunk]
        return first * num_elements // self.num_cells, (first + count) * num_elements // self.num_cells

    def largest_chunk(self, num_elements: int) -> int:
        """Elements of the largest cell, which is what a staging area must hold."""
        return -(-num_elements // self.num_cells)


def as_nested(plan: Plan) -> NestedPlan:
    """The same plan with every chunk a cell."""
    if isinstance(plan, NestedPlan):
        return plan
    spans = tuple((chunk, 1) for chunk in range(plan.num_chunks))
    counts = (plan.num_chunks, plan.num_stagings, plan.num_slots)
    return NestedPlan(plan.name, plan.operations, *counts, num_cells=plan.num_chunks, spans=spans)


def cells(plan: Plan, chunk: int) -> range:
    """The cells of a chunk; of a plan that is not nested every chunk is one."""
    if not isinstance(plan, NestedPlan):
        return range(chunk, chunk + 1)
    first, count = plan.spans[chunk]
    return range(first, first + count)


def num_cells(plan: Plan) -> int:
    """Into how many cells the buffer is divided."""
    return plan.num_cells if isinstance(plan, NestedPlan) else plan.num_chunks


def cell_bounds(plan: Plan, cell: int, num_elements: int) -> Span:
    """The elements [start, stop) of `cell` in a buffer of `num_elements`."""
    count = num_cells(plan)
    return cell * num_elements // count, (cell + 1) * num_elements // count


def sequence(name: str, plans: Sequence[Plan]) -> NestedPlan:
    """One plan after the other on one buffer, each with stagings and slots of its own.

    Whether a place may be written again must hold of the whole: a part may rely on what a later part receives.
    """
    parts = [as_nested(plan) for plan in plans]
    total_cells = lcm(*(part.num_cells for part in parts))
    operations: list[Operation] = []
    spans: list[Span] = []
    num_stagings = num_slots = 0
    for part in parts:
        scale = total_cells // part.num_cells
        place = ChunkPlace(len(spans), num_stagings, num_slots, stagings_per_cell=scale)
        operations += [place.moved(operation) for operation in part.operations]
        spans += [(first * scale, count * scale) for first, count in part.spans]
        num_stagings += part.num_stagings * scale
        num_slots += part.num_slots
    return NestedPlan(name, tuple(operations), len(spans), num_stagings, num_slots, total_cells, tuple(spans))


def renumbered(plan: Plan, ranks: Sequence[int]) -> Plan:
    """The same plan among some ranks of a larger group: its rank k is `ranks[k]`."""
    return replace(plan, operations=tuple(_renumbered(operation, ranks) for operation in plan.operations))


def rooted(function: PlanFunction, root: int, rank: int, world_size: int) -> Plan:
    """The plan of `rank` where `root` plays rank 0: rank r plays (r - root) mod P."""
    ranks = [(place + root) % world_size for place in range(world_size)]
    return renumbered(function((rank - root) % world_size, world_size), ranks)


def idle(plan: Plan) -> Plan:
    """The same plan for a rank that has no part in it."""
    return replace(plan, operations=())


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where the chunks, stagings and slots of a plan lie in the plan that it becomes part of."""

    first_chunk: int
    first_staging: int
    first_slot: int
    stagings_per_cell: int = 1

    def moved(self, operation: Operation) -> Operation:
        match operation:
            case Put(peer, chunk, None, slot):
                return Put(peer, self.first_chunk + chunk, None, self.first_slot + slot)
            case Put(peer, chunk, int(staging), slot):
                return Put(peer, self.first_chunk + chunk, self._staging(staging), self.first_slot + slot)
            case Reduce(chunk, stagings):
                return Reduce(self.first_chunk + chunk, tuple(self._staging(staging) for staging in stagings))
            case Combine(chunk, ranks, into):
                return Combine(self.first_chunk + chunk, ranks, into)
            case Notify() | Wait():
                return replace(operation, slot=self.first_slot + operation.slot)
        raise AssertionError(operation)

    def _staging(self, staging: int) -> int:
        return self.first_staging + staging * self.stagings_per_cell


def _renumbered(operation: Operation, ranks: Sequence[int]) -> Operation:
    match operation:
        case Reduce():
            return operation
        case Combine(chunk, among, into):
            return Combine(chunk, tuple(ranks[rank] for rank in among), tuple(ranks[rank] for rank in into))
        case Put() | Notify() | Wait():
            return replace(operation, peer=ranks[operation.peer])
        case _:
            assert_never(operation)


def two_level(host_size: int, between: PlanFunction = ring_all_reduce) -> PlanFunction:
    """The plan function of `two_level_all_reduce` for these settings."""
    return partial(two_level_all_reduce, host_size=host_size, between=between)


def two_level_all_reduce(
    rank: int, world_size: int, host_size: int, between: PlanFunction = ring_all_reduce
) -> NestedPlan:
    """Sum of all buffers on every rank: to each host's first rank, all-reduce `between` those, and back.

    Host h is ranks h*G to h*G + G-1; the last one may be smaller. Inside a host the sum goes up a k-ary tree and
    comes down the same tree, with k as chosen for G ranks. The order is that tree's, then that of `between`
    over the H hosts' sums.

    Cost: at most (k+1) L more steps than `between` takes among H ranks, L being the levels of the tree of G
    ranks. Inside the hosts 2(P-H)N elements are sent in all; a host's first rank sends those of `between` too.
    Reuse: as in the k-ary tree, where the all-reduce between hosts comes between up and down; in that one as
    its own plan says, as the buffers of first ranks are put into only after their shares were sent.

    Reference: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation
    performance, 2000.
    """
    host, place = divmod(rank, host_size)
    members = range(host * host_size, min((host + 1) * host_size, world_size))
    leaders = range(0, world_size, host_size)
    arity = chosen_arity(min(host_size, world_size))
    # A rank that leads no host still needs the counts, which are equal on every rank.
    leading = between(host, len(leaders))
    return sequence(
        "two-level",
        [
            renumbered(kary_tree_up(place, len(members), arity), members),
            renumbered(leading, leaders) if place == 0 else idle(leading),
            renumbered(kary_tree_down(place, len(members), arity), members),
        ],
    )
