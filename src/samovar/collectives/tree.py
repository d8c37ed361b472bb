"""Binomial trees rooted at rank 0: the parent of a rank is the rank with its lowest set bit cleared."""

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
