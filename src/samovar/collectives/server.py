"""Central server: the baseline that reduction trees beat."""

from dataclasses import replace

from samovar.collectives.kary_tree import kary_tree_all_reduce
from samovar.collectives.plan import Plan


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
