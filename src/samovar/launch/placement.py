"""Which cores each worker of this machine computes on."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from samovar.launch.numa import Cpus, numa_nodes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where ranks run: `cpus[rank]` are the cores of that rank; `oversubscribed` if they had to be shared."""

    threads_per_worker: int
    cpus: tuple[Cpus, ...]
    oversubscribed: bool


def place(
    num_workers: int,
    threads_per_worker: int | None,
    with_spare: bool = False,
    nodes: Sequence[Cpus] | None = None,
) -> Placement:
    """Spread the workers over the cores this process may use; by default cores / workers threads each.

    Workers get neighbouring cores of their own while there are enough, one a thread, or all that there are for each
    (`with_spare`: for exchanges behind the computation); else all share all cores. A worker's cores lie in one NUMA
    node where there is room for it, workers are spread evenly over the nodes, and neighbours in rank share one.
    `nodes` None: those of this machine.
    """
    nodes = numa_nodes() if nodes is None else nodes
    available = tuple(sorted(cpu for node in nodes for cpu in node))
    threads = max(1, len(available) // num_workers) if threads_per_worker is None else threads_per_worker
    oversubscribed = num_workers * threads > len(available)
    if oversubscribed:
        return Placement(threads, (available,) * num_workers, oversubscribed=True)
    width = _with_spare(num_workers, threads, nodes) if with_spare else threads
    return Placement(threads, _shares(num_workers, width, nodes), oversubscribed=False)


def num_available_cpus() -> int:
    return len(os.sched_getaffinity(0))


def num_inside(width: int, node_sizes: Sequence[int]) -> int:
    """How many workers of `width` cores each find room inside one node."""
    return sum(size // width for size in node_sizes)


def _with_spare(num_workers: int, threads: int, nodes: Sequence[Cpus]) -> int:
    """All cores that there are for each worker, but for those that would draw it out of its node."""
    sizes = [len(node) for node in nodes]
    most = sum(sizes) // num_workers
    inside = [width for width in range(threads, most + 1) if num_inside(width, sizes) >= num_workers]
    return max(inside, default=most)


def _shares(num_workers: int, width: int, nodes: Sequence[Cpus]) -> tuple[Cpus, ...]:
    """`width` cores for each worker: of the node with most left, or of several where no node has so many."""
    left = [len(node) for node in nodes]
    counts = [0] * len(nodes)
    for _ in range(num_workers):
        roomiest = left.index(max(left))
        if left[roomiest] < width:
            break
        left[roomiest] -= width
        counts[roomiest] += 1
    inside = [
        node[place * width : (place + 1) * width]
        for node, count in zip(nodes, counts, strict=True)
        for place in range(count)
    ]
    rest = [node[count * width :] for node, count in zip(nodes, counts, strict=True)]
    cores = [cpu for node in sorted(rest, key=len, reverse=True) for cpu in node]
    across = [tuple(cores[place * width : (place + 1) * width]) for place in range(num_workers - len(inside))]
    return (*inside, *across)
