"""Heap-ordered k-ary trees rooted at rank 0: the children of rank r are k*r+1, ..., k*r+k."""

from dataclasses import replace

from samovar.collectives.plan import Operation, Plan, Put, Reduce, Wait


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
    children = _children(rank, world_size, arity)
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
    operations += [Put(child, 0, staging=None, slot=arity) for child in _children(rank, world_size, arity)]
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


def _children(rank: int, world_size: int, arity: int) -> range:
    first = arity * rank + 1
    return range(first, max(first, min(first + arity, world_size)))
