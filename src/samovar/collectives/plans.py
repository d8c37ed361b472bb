"""Every plan by its name."""

from samovar.collectives.direct import direct_all_reduce, direct_reduce_scatter
from samovar.collectives.halving_doubling import halving_doubling_all_reduce
from samovar.collectives.plan import PlanFunction
from samovar.collectives.ring import dissemination_barrier, ring_all_gather, ring_all_reduce, ring_reduce_scatter
from samovar.collectives.segment import segmented
from samovar.collectives.tree import kary_tree_all_reduce, server_all_reduce, tree_all_reduce, tree_broadcast
from samovar.collectives.two_level import two_level

# Two-level is not among them: it needs the size of a host.
ALL_REDUCES: dict[str, PlanFunction] = {
    "direct": direct_all_reduce,
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "kary-tree": kary_tree_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    "server": server_all_reduce,
}
# The first half of an all-reduce of that name, with its bits.
REDUCE_SCATTERS: dict[str, PlanFunction] = {"direct": direct_reduce_scatter, "ring": ring_reduce_scatter}
OTHERS: dict[str, PlanFunction] = {
    "reduce-scatter": ring_reduce_scatter,
    "all-gather": ring_all_gather,
    "broadcast": tree_broadcast,
    "barrier": dissemination_barrier,
}
ALL_REDUCE_NAMES = (*ALL_REDUCES, "two-level")


def all_reduce(name: str, *, host_size: int, num_segments: int = 1) -> PlanFunction:
    """The plan function behind a value of `--collective`; only two-level looks at `host_size`, the ranks of a host."""
    function = two_level(host_size) if name == "two-level" else ALL_REDUCES[name]
    return segmented(function, num_segments) if num_segments > 1 else function
