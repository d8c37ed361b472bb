"""Recursive halving and doubling: few steps and little traffic, for any number of ranks."""

from samovar.collectives.plan import Operation, Put, Reduce, Wait
from samovar.collectives.two_level import NestedPlan, Span


def halving_doubling_all_reduce(rank: int, world_size: int) -> NestedPlan:
    """Sum of all buffers on every rank: halves, quarters, ... are exchanged and added, then gathered back.

    Q is the largest power of two in P. Rank Q+r first gives its buffer to rank r and gets the sum at the end.
    On level l = 1, 2, ..., log2 Q, rank r and its partner r xor Q/2^l share the part they both still add up:
    each sends the half that it gives away and adds what it receives to the half that it keeps.
    The order is one binary tree for all elements: y0_r = x_r + x_{Q+r}; yl_r = own y(l-1) + partner's, where
    either order gives the same bits.

    Cost: 2 log2 Q steps, and 2 more where Q < P; 2(Q-1)/Q * N elements sent by rank r < Q, N more by those
    that serve a rank Q+r, N by rank Q+r. The stagings take (Q-1)/Q * N elements, N more where Q < P.
    Reuse: a partner's sums come back only after it has read its stagings, and they fill the half that was given
    to it; the same holds of rank r and rank Q+r.

    Reference: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005
    (all-reduce by reduce-scatter and all-gather).
    """
    levels = world_size.bit_length() - 1
    core = 1 << levels
    folded = world_size > core
    fold_slot = 2 * levels
    operations: list[Operation]
    if rank >= core:
        operations = [Put(rank - core, 0, staging=0, slot=fold_slot), Wait(rank - core, fold_slot)]
    else:
        operations = _halve(rank, levels, core if folded else 0) + _double(rank, levels)
        if rank + core < world_size:
            fold: list[Operation] = [Wait(rank + core, fold_slot), Reduce(0, (0,))]
            operations = [*fold, *operations, Put(rank + core, 0, staging=None, slot=fold_slot)]
    num_stagings, num_slots = core - 1 + core * folded, fold_slot + folded
    spans = _spans(levels)
    return NestedPlan("halving-doubling", tuple(operations), len(spans), num_stagings, num_slots, core, spans)


def _halve(rank: int, levels: int, first_staging: int) -> list[Operation]:
    operations: list[Operation] = []
    for level in range(1, levels + 1):
        partner, kept, given = _level(rank, level, levels)
        # The parts received on the levels above take Q/2, Q/4, ... cells.
        staging = first_staging + (1 << levels) - (1 << (levels - level + 1))
        operations += [Put(partner, given, staging, slot=level - 1), Wait(partner, slot=level - 1)]
        operations.append(Reduce(kept, (staging,)))
    return operations


def _double(rank: int, levels: int) -> list[Operation]:
    operations: list[Operation] = []
    for level in range(levels, 0, -1):
        partner, kept, _ = _level(rank, level, levels)
        slot = levels + level - 1
        operations += [Put(partner, kept, staging=None, slot=slot), Wait(partner, slot)]
    return operations


def _level(rank: int, level: int, levels: int) -> tuple[int, int, int]:
    """The partner, the chunk that is kept and the one that is given."""
    distance = 1 << (levels - level)
    part, first_chunk = rank // distance, (1 << level) - 1
    return rank ^ distance, first_chunk + part, first_chunk + (part ^ 1)


def _spans(levels: int) -> tuple[Span, ...]:
    """The whole, then its halves, its quarters, ...: part i of level l is chunk 2^l - 1 + i."""
    sizes = [1 << (levels - level) for level in range(levels + 1)]
    return tuple((first, size) for size in sizes for first in range(0, 1 << levels, size))
