"""A collective as data: what one rank does, as a pure function of (rank, world_size); and plans made of plans.

Legend: P ranks, N elements in the buffer, C chunks. Chunk c is elements [c*N//C, (c+1)*N//C), unless a plan gives its
chunks as runs of smaller cells, of which some contain others.

A rank's staging areas hold the data that peers put for it; each is as large as the largest cell. Every put and every
notification goes to one slot of the peer. Two runs of one plan may overlap by one. So a plan must not put where the
peer may still read data of an earlier run (or step), unless a later message of the peer has arrived.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Put:
    """Put own chunk `chunk` into the peer's staging area `staging` (None: into its buffer), then notify."""

    peer: int
    chunk: int
    staging: int | None
    slot: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """buffer[chunk] = ((buffer[chunk] + staging[first]) + staging[second]) + ..."""

    chunk: int
    stagings: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the peer, without data."""

    peer: int
    slot: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for this run's notification by `peer` on own slot `slot`."""

    peer: int
    slot: int


@dataclass(frozen=True, slots=True)
class Combine:
    """The chunk of every rank in `into` = (that of ranks[0] + that of ranks[1]) + ..., read and written in place.

    Worth its while where all ranks map windows' memory. The plan must order it after every rank's readiness.
    """

    chunk: int
    ranks: tuple[int, ...]
    into: tuple[int, ...]


Operation: TypeAlias = Put | Reduce | Combine | Notify | Wait
Span: TypeAlias = tuple[int, int]  # first cell, number of cells


@dataclass(frozen=True, slots=True)
class Plan:
    """The operations of one rank; the counts are the same on every rank.

    Chunk c is the cells of `spans[c]`, of the `num_cells` into which the buffer is divided; where no spans are given,
    every chunk is a cell. A chunk of several cells takes as many staging areas in a row.
    """

    name: str
    operations: tuple[Operation, ...]
    num_chunks: int
    num_stagings: int
    num_slots: int
    num_cells: int = 0
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        if not self.spans:
            object.__setattr__(self, "num_cells", self.num_chunks)
            object.__setattr__(self, "spans", tuple((chunk, 1) for chunk in range(self.num_chunks)))

    def cells(self, chunk: int) -> range:
        first, count = self.spans[chunk]
        return range(first, first + count)

    def chunk_bounds(self, chunk: int, num_elements: int) -> tuple[int, int]:
        """The elements [start, stop) of `chunk` in a buffer of `num_elements`."""
        first, count = self.spans[chunk]
        return first * num_elements // self.num_cells, (first + count) * num_elements // self.num_cells

    def cell_bounds(self, cell: int, num_elements: int) -> tuple[int, int]:
        return cell * num_elements // self.num_cells, (cell + 1) * num_elements // self.num_cells

    def largest_cell(self, num_elements: int) -> int:
        """Elements of the largest cell, ceil(N / cells): what a staging area must hold."""
        return -(-num_elements // self.num_cells)


PlanFunction: TypeAlias = Callable[[int, int], Plan]


def sequence(name: str, plans: Sequence[Plan]) -> Plan:
    """One plan after the other on one buffer, each with stagings and slots of its own.

    Whether a place may be written again must hold of the whole: a part may rely on what a later part receives.
    """
    total_cells = lcm(*(part.num_cells for part in plans))
    operations: list[Operation] = []
    spans: list[Span] = []
    num_stagings = num_slots = 0
    for part in plans:
        scale = total_cells // part.num_cells
        place = ChunkPlace(len(spans), num_stagings, num_slots, stagings_per_cell=scale)
        operations += [place.moved(operation) for operation in part.operations]
        spans += [(first * scale, count * scale) for first, count in part.spans]
        num_stagings += part.num_stagings * scale
        num_slots += part.num_slots
    return Plan(name, tuple(operations), len(spans), num_stagings, num_slots, total_cells, tuple(spans))


def renumbered(plan: Plan, ranks: Sequence[int]) -> Plan:
    """The same plan among some ranks of a larger group: its rank k is `ranks[k]`."""
    return replace(plan, operations=tuple(_renumbered(operation, ranks) for operation in plan.operations))


@lru_cache(maxsize=1024)
def rooted(function: PlanFunction, root: int, rank: int, world_size: int) -> Plan:
    """The plan of `rank` where `root` plays rank 0: rank r plays (r - root) mod P."""
    ranks = [(place + root) % world_size for place in range(world_size)]
    return renumbered(function((rank - root) % world_size, world_size), ranks)


def idle(plan: Plan) -> Plan:
    """The same plan for a rank that has no part in it."""
    return replace(plan, operations=())


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """The place of a plan's chunks, stagings and slots in the plan that it becomes part of."""

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
