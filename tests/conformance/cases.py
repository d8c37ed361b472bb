"""The cases of the conformance suite and what their results must be, from the plans' documented order.

Used by the rank processes and by the tests that compare their results; NumPy only.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from samovar.collectives.plan import ChunkPlace, Plan, PlanFunction
from samovar.collectives.plans import (
    direct_all_reduce,
    direct_reduce_scatter,
    dissemination_barrier,
    gather_parts,
    halving_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    two_level,
)
from samovar.collectives.tree import kary_tree_all_reduce, server_all_reduce, tree_all_reduce, tree_broadcast
from tests.conformance import orders
from tests.conformance.orders import Array, Order


@dataclass(frozen=True)
class Collective:
    """A plan function and the order of additions that its documentation states."""

    function: PlanFunction
    order: Order


def in_parts(reduce_scatter: PlanFunction) -> PlanFunction:
    """Sums in parts, and all parts to all ranks, as an all-reduce: what `SyncInParts` runs in two halves."""

    def function(rank: int, world_size: int) -> Plan:
        first, second = reduce_scatter(rank, world_size), gather_parts(rank, world_size)
        behind = ChunkPlace(0, first.num_stagings, first.num_slots)
        operations = (*first.operations, *map(behind.moved, second.operations))
        return replace(first, name="in parts", operations=operations, num_slots=first.num_slots + second.num_slots)

    return function


TWO_LEVEL_RING = two_level(host_size=4)
TWO_LEVEL_HALVING = two_level(host_size=3, between=halving_doubling_all_reduce)

COLLECTIVES: dict[str, Collective] = {
    "ring": Collective(ring_all_reduce, orders.ring),
    "tree": Collective(tree_all_reduce, orders.binomial_tree),
    "kary tree": Collective(kary_tree_all_reduce, orders.kary_tree),
    "3-ary tree": Collective(partial(kary_tree_all_reduce, arity=3), partial(orders.kary_tree, arity=3)),
    "halving-doubling": Collective(halving_doubling_all_reduce, orders.halving_doubling),
    "server": Collective(server_all_reduce, orders.rank_order),
    "direct": Collective(direct_all_reduce, orders.rank_order),
    "direct in parts": Collective(in_parts(direct_reduce_scatter), orders.rank_order),
    "ring in parts": Collective(in_parts(ring_reduce_scatter), orders.reduce_scatter),
    "two-level": Collective(TWO_LEVEL_RING, partial(orders.two_level, host_size=4, between=orders.ring)),
    "two-level halving": Collective(
        TWO_LEVEL_HALVING, partial(orders.two_level, host_size=3, between=orders.halving_doubling)
    ),
    "reduce-scatter": Collective(ring_reduce_scatter, orders.reduce_scatter),
    "all-gather": Collective(ring_all_gather, orders.all_gather),
    "broadcast": Collective(tree_broadcast, orders.first),
    "barrier": Collective(dissemination_barrier, orders.first),
}
WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
NUM_RUNS = 3


class Case(NamedTuple):
    collective: str
    executor: str
    size: int
    dtype: str


def cases() -> list[Case]:
    """The native executor on all sizes, up to 1 MB of float32; the Python one, and float64, on one."""
    found = []
    for name in COLLECTIVES:
        if name == "barrier":
            found += [Case(name, executor, 0, "float32") for executor in ("native", "python")]
            continue
        found += [Case(name, "native", size, "float32") for size in (0, 1, 3, 1001, 262_144)]
        found.append(Case(name, "native", 1001, "float64"))
        found.append(Case(name, "python", 1001, "float32"))
    return found


@lru_cache(maxsize=1024)
def contribution(rank: int, run: int, size: int, dtype: str) -> Array:
    """The input of a rank: values whose sums are rounded, so that another order gives other bits."""
    generator = np.random.Generator(np.random.Philox(key=[rank, run]))
    values = (generator.standard_normal(size) * 10.0 ** generator.integers(-3, 4, size)).astype(dtype)
    values.flags.writeable = False
    return values


def expected(collective: str, world_size: int, run: int, size: int, dtype: str) -> Array:
    """The result, of which every rank has the part `result_part`, bit for bit."""
    return COLLECTIVES[collective].order([contribution(rank, run, size, dtype) for rank in range(world_size)])


def result_part(collective: str, rank: int, world_size: int, size: int) -> tuple[int, int]:
    """The elements [start, stop) of a rank's buffer that are defined."""
    if collective.startswith("reduce-scatter"):
        return rank * size // world_size, (rank + 1) * size // world_size
    return 0, size
