"""The cases of the conformance suite and what their results must be, from the plans' documented order.

Used by the rank processes and by the test that compares them; NumPy only.
"""

import numpy as np
import numpy.typing as npt

from samovar.collectives.barrier import dissemination_barrier
from samovar.collectives.plan import PlanFunction
from samovar.collectives.ring import ring_all_reduce
from samovar.collectives.tree import tree_all_reduce, tree_broadcast

PLANS: dict[str, PlanFunction] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "broadcast": tree_broadcast,
    "barrier": dissemination_barrier,
}
WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
SIZES = (0, 1, 3, 1001, 262_144)  # elements; the last is 1 MB of float32
DTYPES = ("float32", "float64")
NUM_RUNS = 3

Array = npt.NDArray[np.floating]


def contribution(rank: int, run: int, size: int, dtype: str) -> Array:
    """What a rank brings: values whose sums are rounded, so that another order gives other bits."""
    generator = np.random.Generator(np.random.Philox(key=[rank, run]))
    return (generator.standard_normal(size) * 10.0 ** generator.integers(-3, 4, size)).astype(dtype)


def expected(plan: str, world_size: int, run: int, size: int, dtype: str) -> Array:
    """The result on every rank, bit for bit."""
    shares = [contribution(rank, run, size, dtype) for rank in range(world_size)]
    if plan == "ring":
        return _ring_order(shares)
    if plan == "tree":
        return _tree_order(shares, 0)
    return shares[0]


def _ring_order(shares: list[Array]) -> Array:
    """Chunk c: x_{c-1} + (... + (x_{c+1} + x_c))."""
    world_size, size = len(shares), len(shares[0])
    result = np.empty_like(shares[0])
    for chunk in range(world_size):
        part = slice(chunk * size // world_size, (chunk + 1) * size // world_size)
        total = shares[chunk][part]
        for distance in range(1, world_size):
            total = shares[(chunk + distance) % world_size][part] + total
        result[part] = total
    return result


def _tree_order(shares: list[Array], rank: int) -> Array:
    """A node adds its children's sums in the order of their distance."""
    total = shares[rank]
    distance = 1
    while rank + distance < len(shares) and rank & distance == 0:
        total = total + _tree_order(shares, rank + distance)
        distance *= 2
    return total
