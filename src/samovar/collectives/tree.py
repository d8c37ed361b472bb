"""Plans on trees: binomial and k-ary ones of ranks, rooted at rank 0, and one of slices, on any ranks.

In a binomial tree the parent of a rank is the rank with its lowest set bit cleared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from samovar.collectives.plan import Notify, Operation, Plan, Put, Reduce, Wait


def tree_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank: up a binomial tree, then down the same tree.

    A parent adds its children's sums in the order of their distance, ((x + s_1) + s_2) + s_4: one fixed
    order, in one pass.

    Cost: at most 2 ceil(log2 P) steps (exactly, where P is a power of two); in all 2(P-1)N elements sent.
    Reuse: the sum comes down only after the parent has read its stagings; a child's buffer is written
    only after its own share was sent.

    Reference: Iandola et al., FireCaffe, 2016 (arXiv 1511.00175), section 4.2; here with one pass per node.
    """
    down = _max_children(world_size)
    operations = [*tree_reduce(rank, world_size).operations, *tree_down(rank, world_size, slot=down)]
    return Plan("tree", tuple(operations), 1, down, down + 1)


def tree_reduce(rank: int, world_size: int) -> Plan:
    """The sum of all buffers on rank 0, up the tree; the others are left with partial sums.

    Cost: at most ceil(log2 P) steps; in all (P-1)N elements sent, N per rank.
    Reuse: a rank may run it again when something has come back from rank 0 that was sent after the sum was there.
    """
    children = _children(rank, world_size)
    operations: list[Operation] = [Wait(child, slot) for slot, child in enumerate(children)]
    if children:
        operations.append(Reduce(0, tuple(range(len(children)))))
    if rank > 0:
        operations.append(Put(_parent(rank), 0, staging=_place(rank), slot=_place(rank)))
    return Plan("reduce", tuple(operations), 1, _max_children(world_size), _max_children(world_size))


def tree_down(rank: int, world_size: int, slot: int) -> list[Operation]:
    """Rank 0's chunk 0 on every rank, where nothing need be asked: the buffers' contents were sent up before."""
    awaited: list[Operation] = [Wait(_parent(rank), slot)] if rank > 0 else []
    return awaited + [Put(child, 0, staging=None, slot=slot) for child in reversed(_children(rank, world_size))]


def tree_broadcast(rank: int, world_size: int) -> Plan:
    """Rank 0's buffer on every rank, down a binomial tree.

    A child first tells its parent that its buffer may be overwritten; nothing is put before.

    Cost: at most ceil(log2 P) + 1 steps, the first without data; in all (P-1)N elements sent.
    """
    children = _children(rank, world_size)
    down = _max_children(world_size)
    operations: list[Operation] = []
    if rank > 0:
        operations += [Notify(_parent(rank), _place(rank)), Wait(_parent(rank), down)]
    for slot, child in reversed(list(enumerate(children))):
        operations += [Wait(child, slot), Put(child, 0, staging=None, slot=down)]
    return Plan("broadcast", tuple(operations), 1, 0, down + 1)


def _parent(rank: int) -> int:
    return rank & (rank - 1)


def _place(rank: int) -> int:
    """Which child of its parent a rank is: the position of its lowest set bit."""
    return (rank & -rank).bit_length() - 1


def _children(rank: int, world_size: int) -> list[int]:
    num_places = _place(rank) if rank > 0 else _max_children(world_size)
    return [rank + (1 << place) for place in range(num_places) if rank + (1 << place) < world_size]


def _max_children(world_size: int) -> int:
    return (world_size - 1).bit_length()


def kary_tree_all_reduce(rank: int, world_size: int, arity: int | None = None) -> Plan:
    """Sum of all buffers on every rank: up a k-ary tree, then down the same tree; k is chosen where not given.

    A parent adds its children's sums in rank order, ((x + s_1) + s_2) + ... + s_k: one fixed order, in one
    pass.

    Cost: L levels below the root, at most (k+1) L steps (exactly, where the tree is full): L up, k at every
    level down. A rank with m children sends (m+1)N elements, the root mN; in all 2(P-1)N.
    Reuse: the sum comes down only after the parent has read its stagings; a child's buffer is written only
    after its own share was sent.

    Reference: Kuehn, Keuper, Pfreundt, CaffeGPI, 2017 (arXiv 1706.00095): its broadcast tree, here both ways.
    """
    arity = chosen_arity(world_size) if arity is None else min(arity, world_size - 1)
    up, down = kary_tree_up(rank, world_size, arity), kary_tree_down(rank, world_size, arity)
    # Up takes slots 0 to k-1, down slot k.
    return replace(up, name="kary-tree", operations=up.operations + down.operations)


def kary_tree_up(rank: int, world_size: int, arity: int) -> Plan:
    """The first half: the sum on rank 0. Its stagings may be used again when something came back down."""
    children = _arity_children(rank, world_size, arity)
    operations: list[Operation] = [Wait(child, slot) for slot, child in enumerate(children)]
    if children:
        operations.append(Reduce(0, tuple(range(len(children)))))
    if rank > 0:
        parent, place = divmod(rank - 1, arity)
        operations.append(Put(parent, 0, staging=place, slot=place))
    return Plan("kary-tree-up", tuple(operations), 1, arity, arity + 1)


def kary_tree_down(rank: int, world_size: int, arity: int) -> Plan:
    """The second half: rank 0's buffer on every rank, for buffers whose contents were sent up before.

    The eldest child is served first: its subtree is the deepest.
    """
    operations: list[Operation] = []
    if rank > 0:
        operations.append(Wait((rank - 1) // arity, slot=arity))
    operations += [Put(child, 0, staging=None, slot=arity) for child in _arity_children(rank, world_size, arity)]
    return Plan("kary-tree-down", tuple(operations), 1, 0, arity + 1)


def chosen_arity(world_size: int) -> int:
    """The k that makes k * levels smallest, the messages one after the other on the longest way down."""
    arities = range(2, max(world_size, 3))
    best = min(arities, key=lambda arity: (arity * num_levels(world_size, arity), arity))
    return min(best, world_size - 1)


def num_levels(world_size: int, arity: int) -> int:
    """Levels below the root."""
    levels, rank = 0, world_size - 1
    while rank > 0:
        rank = (rank - 1) // arity
        levels += 1
    return levels


def _arity_children(rank: int, world_size: int, arity: int) -> range:
    first = arity * rank + 1
    return range(first, max(first, min(first + arity, world_size)))


def server_all_reduce(rank: int, world_size: int) -> Plan:
    """Sum of all buffers on every rank: rank 0 receives all, adds them up, and sends the sum to each.

    The same as a tree of one level. Rank 0 adds in rank order, ((x_0 + x_1) + x_2) + ..., in one pass.

    Cost: P steps (none for one rank); rank 0 sends (P-1)N elements, every other N. All of it, (P-1)N in and
    (P-1)N out, goes through rank 0's port, one after the other, so the time grows with P. The stagings take
    (P-1)N elements.
    Reuse: as in the tree.

    Reference: Iandola et al., FireCaffe, 2016 (arXiv 1511.00175).
    """
    return replace(kary_tree_all_reduce(rank, world_size, arity=world_size - 1), name="server")


# The slices [first, stop). A node is cut where its larger power of two ends, so that the tree depends on the number of
# slices alone.
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

    Chunk c of the buffer holds the sum of the rank's c-th own node; chunk 0 gets the sum of all. If a node's halves are
    on two ranks, the second sends its half to the first, which adds: left + right. The sum comes down a binomial tree.

    Cost: ceil(log2 S) + ceil(log2 P) + 1 steps at most for S slices. Each merge between ranks sends a chunk. There are
    P-1 merges at least, and P-1 times 2 log2 of a rank's slices at most. Each rank except one sends a chunk on the way
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
