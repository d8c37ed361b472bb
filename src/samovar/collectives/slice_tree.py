"""The sum of many slices in one binary tree over their index, wherever the slices were computed.

A node is the slices [first, stop). It is cut where its larger power of two ends, so that the tree depends on the
number of slices alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from samovar.collectives.plan import Operation, Plan, Put, Reduce, Wait
from samovar.collectives.tree import tree_down

Node: TypeAlias = tuple[int, int]


def children(node: Node) -> tuple[Node, Node]:
    """The halves of a node of at least two slices; the first has the largest power of two below its size."""
    first, stop = node
    middle = first + (1 << (stop - first - 1).bit_length() - 1)
    return (first, middle), (middle, stop)


def own_nodes(slices: Node, num_slices: int) -> tuple[Node, ...]:
    """The largest nodes that lie within a rank's `slices`, in their order; at most 2 log2 of their number."""
    return tuple(_within(slices, (0, num_slices)))


def slice_tree_all_reduce(ranges: Sequence[Node], rank: int) -> Plan:
    """The sum of all slices on every rank; rank r has computed those of ranges[r], which follow one another from 0.

    Chunk c of the buffer holds the sum of the rank's c-th own node; chunk 0 gets the sum of all. Where a node's
    halves lie on two ranks the second sends its half to the first, which adds: left + right. The whole goes down a
    binomial tree.

    Cost: ceil(log2 S) + ceil(log2 P) + 1 steps at most for S slices; each merge between ranks, of which there are at
    least P-1 and at most P-1 times 2 log2 of a rank's slices, sends a chunk, and so does each rank but one on the way
    down.
    Reuse: the sum comes down only after all chunks were read.
    """
    merges = list(_merges(ranges))
    num_chunks = max(len(own_nodes(slices, ranges[-1][1])) for slices in ranges)
    num_places = max((merge.place + 1 for merge in merges), default=0)
    operations: list[Operation] = []
    for merge in merges:
        if merge.right_rank == rank:
            operations.append(Put(merge.rank, merge.right_chunk, staging=merge.place, slot=merge.place))
        if merge.rank == rank:
            operations += [Wait(merge.right_rank, merge.place), Reduce(merge.chunk, (merge.place,))]
    operations += tree_down(rank, len(ranges), slot=num_places)
    return Plan("slice-tree", tuple(operations), num_chunks, num_places, num_places + 1)


@dataclass(frozen=True, slots=True)
class _Merge:
    """`chunk` of `rank` += `right_chunk` of `right_rank`, through staging area and slot `place` of `rank`."""

    rank: int
    chunk: int
    right_rank: int
    right_chunk: int
    place: int


def _merges(ranges: Sequence[Node]) -> Iterator[_Merge]:
    """All merges between ranks, children before parents."""
    num_slices = ranges[-1][1]
    chunks = {node: (r, c) for r, own in enumerate(ranges) for c, node in enumerate(own_nodes(own, num_slices))}
    num_places = [0] * len(ranges)

    def visit(node: Node) -> Iterator[_Merge]:
        if node in chunks:
            return
        left, right = children(node)
        yield from visit(left)
        yield from visit(right)
        (rank, chunk), (right_rank, right_chunk) = chunks[left], chunks[right]
        chunks[node] = (rank, chunk)
        yield _Merge(rank, chunk, right_rank, right_chunk, num_places[rank])
        num_places[rank] += 1

    return visit((0, num_slices))


def _within(slices: Node, node: Node) -> Iterator[Node]:
    first, stop = max(slices[0], node[0]), min(slices[1], node[1])
    if first >= stop:
        return
    if (first, stop) == node:
        yield node
        return
    for child in children(node):
        yield from _within(slices, child)
