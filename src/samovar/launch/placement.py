"""Which cores each worker of this machine computes on."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Where ranks run: `cpus[rank]` are the cores of that rank; `oversubscribed` if they had to be shared."""

    threads_per_worker: int
    cpus: tuple[tuple[int, ...], ...]
    oversubscribed: bool


def place(num_workers: int, threads_per_worker: int | None, with_spare: bool = False) -> Placement:
    """Spread the workers over the cores this process may use; by default cores / workers threads each.

    Workers get neighbouring cores of their own while there are enough, one a thread, or all that there are for each
    (`with_spare`: for exchanges behind the computation); else all share all cores.
    """
    available = sorted(os.sched_getaffinity(0))
    threads = max(1, len(available) // num_workers) if threads_per_worker is None else threads_per_worker
    oversubscribed = num_workers * threads > len(available)
    if oversubscribed:
        return Placement(threads, (tuple(available),) * num_workers, oversubscribed=True)
    width = len(available) // num_workers if with_spare else threads
    cpus = tuple(tuple(available[rank * width : (rank + 1) * width]) for rank in range(num_workers))
    return Placement(threads, cpus, oversubscribed=False)


def num_available_cpus() -> int:
    return len(os.sched_getaffinity(0))
