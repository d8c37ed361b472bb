"""A collective as data: what one rank does, as a pure function of (rank, world_size).

Legend: P ranks, N elements in the buffer, C chunks. Chunk c is elements [c*N//C, (c+1)*N//C).

A rank's staging areas hold what peers put for it; each is as large as the largest chunk. Every put and every
notification goes to one slot of the peer. Two runs of one plan may overlap by one: a plan must not put
where the peer may still read what an earlier run (or step) put, unless something the peer sent afterwards
has arrived.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


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


@dataclass(frozen=True, slots=True)
class Plan:
    """The operations of one rank; the three counts are the same on every rank."""

    name: str
    operations: tuple[Operation, ...]
    num_chunks: int
    num_stagings: int
    num_slots: int

    def chunk_bounds(self, chunk: int, num_elements: int) -> tuple[int, int]:
        """The elements [start, stop) of `chunk` in a buffer of `num_elements`."""
        return chunk * num_elements // self.num_chunks, (chunk + 1) * num_elements // self.num_chunks

    def largest_chunk(self, num_elements: int) -> int:
        """Elements of the largest chunk, ceil(N / C)."""
        return -(-num_elements // self.num_chunks)


PlanFunction: TypeAlias = Callable[[int, int], Plan]
