"""Each plan's documented order of additions, written without plans: what the result must be, bit for bit."""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
Order = Callable[[list[Array]], Array]


def first(shares: list[Array]) -> Array:
    return shares[0]


def ring(shares: list[Array]) -> Array:
    """Chunk c: x_{c-1} + (... + (x_{c+1} + x_c))."""
    return _around(shares, first_distance=0)


def reduce_scatter(shares: list[Array]) -> Array:
    """Chunk c: x_c + (x_{c-1} + (... + (x_{c+2} + x_{c+1})))."""
    return _around(shares, first_distance=1)


def all_gather(shares: list[Array]) -> Array:
    """Chunk c of rank c."""
    return np.concatenate([share[part] for share, part in zip(shares, parts(shares), strict=True)])


def rank_order(shares: list[Array]) -> Array:
    """((x_0 + x_1) + x_2) + ..."""
    total = shares[0]
    for share in shares[1:]:
        total = total + share
    return total


def binomial_tree(shares: list[Array], rank: int = 0) -> Array:
    """A node adds its children's sums in the order of their distance."""
    total = shares[rank]
    distance = 1
    while rank + distance < len(shares) and rank & distance == 0:
        total = total + binomial_tree(shares, rank + distance)
        distance *= 2
    return total


def kary_tree(shares: list[Array], arity: int | None = None, rank: int = 0) -> Array:
    """A node adds the sums of its children k*r+1 to k*r+k in this order."""
    arity = best_arity(len(shares)) if arity is None else arity
    total = shares[rank]
    for child in range(arity * rank + 1, arity * rank + arity + 1):
        if child < len(shares):
            total = total + kary_tree(shares, arity, child)
    return total


def best_arity(world_size: int) -> int:
    """The first k from 2 on with the smallest k * levels."""
    best, least = 1, inf
    for arity in range(2, 101):
        levels, reached, width = 0, 1, 1
        while reached < world_size:
            levels, width = levels + 1, width * arity
            reached += width
        if arity * levels < least:
            best, least = arity, arity * levels
    return best


def halving_doubling(shares: list[Array]) -> Array:
    """x_r + x_{Q+r}, then with r xor Q/2, r xor Q/4, ...: the same on every rank."""
    core = 1 << (len(shares).bit_length() - 1)
    sums = [shares[r] + shares[core + r] if core + r < len(shares) else shares[r] for r in range(core)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [sums[r] + sums[r + half] for r in range(half)]
    return sums[0]


def two_level(shares: list[Array], host_size: int, between: Order) -> Array:
    """The k-ary tree inside each host, then the order between hosts."""
    arity = best_arity(min(host_size, len(shares)))
    hosts = [shares[start : start + host_size] for start in range(0, len(shares), host_size)]
    return between([kary_tree(host, arity) for host in hosts])


def parts(shares: Sequence[Array]) -> list[slice]:
    """Chunk c of P: elements [c*N//P, (c+1)*N//P)."""
    size, count = len(shares[0]), len(shares)
    return [slice(c * size // count, (c + 1) * size // count) for c in range(count)]


def _around(shares: list[Array], first_distance: int) -> Array:
    world_size = len(shares)
    result = np.empty_like(shares[0])
    for chunk, part in enumerate(parts(shares)):
        start = chunk + first_distance
        total = shares[start % world_size][part]
        for distance in range(1, world_size):
            total = shares[(start + distance) % world_size][part] + total
        result[part] = total
    return result
