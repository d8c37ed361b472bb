"""`--workers auto`: which settings of workers and threads are tried."""

from collections.abc import Sequence

from samovar.launch.placement import num_inside

Setting = tuple[int, int]  # workers, threads of each


def sweep_settings(
    node_sizes: Sequence[int], threads_per_worker: int | None = None, most_workers: int | None = None
) -> tuple[Setting, ...]:
    """All workers x threads that fill the cores of NUMA nodes so large, workers rising: 1x16, 2x8, 4x4, 8x2, 16x1.

    But for a single worker, each worker lies inside a node or has whole nodes: where such a setting does not fill all
    cores (nodes of different sizes) it has as many threads as there is room for. With `threads_per_worker` given:
    workers that divide what number of them there is room for (at least one). None has more than `most_workers`. No
    setting has more threads than there are cores, unless a single worker was given them.
    """
    if threads_per_worker is not None:
        counts = _divisors(_room(threads_per_worker, node_sizes))
        return tuple((count, threads_per_worker) for count in counts if most_workers is None or count <= most_workers)
    per_node = [len(node_sizes) * count for count in _divisors(min(node_sizes))]
    counts = sorted({*_divisors(sum(node_sizes)), *per_node})
    # Of settings with as many threads only the one with the most workers, which leaves the fewest cores idle.
    most = {_threads(count, node_sizes): count for count in counts if most_workers is None or count <= most_workers}
    return tuple(sorted((count, threads) for threads, count in most.items()))


def _room(threads: int, node_sizes: Sequence[int]) -> int:
    """How many workers of so many threads there is room for, inside nodes if they fit there; at least one."""
    return max(1, num_inside(threads, node_sizes) or sum(node_sizes) // threads)


def _threads(num_workers: int, node_sizes: Sequence[int]) -> int:
    """The most threads that each of the workers can have."""
    threads = sum(node_sizes) // num_workers
    whole_nodes = len(set(node_sizes)) == 1 and threads % node_sizes[0] == 0
    if num_workers == 1 or whole_nodes:
        return threads
    while num_inside(threads, node_sizes) < num_workers:
        threads -= 1
    return threads


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]
