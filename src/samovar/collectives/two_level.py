"""Two-level all-reduce: inside each host, between hosts, inside each host."""

from functools import partial

from samovar.collectives.kary_tree import chosen_arity, kary_tree_down, kary_tree_up
from samovar.collectives.nested import NestedPlan, idle, renumbered, sequence
from samovar.collectives.plan import PlanFunction
from samovar.collectives.ring import ring_all_reduce


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
