"""One rank of the benchmark of synchronous training: steps of several sides on request.

    sync_rank.py JOB

JOB is JSON: the net's folder, the shape of a rank's batch, this rank's place, and the sides:

- `off`: ranks do not exchange. `none`, `backward:BYTES`, `full:BYTES`: Samovar's overlaps.
- `alone`: one worker with all ranks' samples.
- `ddp:MB`: the same net of stock torch modules under DistributedDataParallel on gloo.
- `torch:THREADS`: the same in one process with all ranks' samples.

The first step of each side is made without dropout. `torch` writes its update to the file `moves`; sides that learn
from all samples must make the same update. The program answers when it is ready, then serves (see `turns.py`). At the
end it answers with a digest of each side's weights.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from nets_rank import Ours, Sharing, Side, Task, Theirs, first_step, task_of
from torch.nn.parallel import DistributedDataParallel
from turns import TIMEOUT_S, answer, open_barrier, serve
from verified import digest, relative_distance

from samovar import _native
from samovar.core.group import Group
from samovar.core.host import keep_freed_memory
from samovar.strategies.config import StrategyConfig, parse_bucket
from samovar.transports.shm import ShmTransport

WORLD_SIZE = 2
TOLERANCE = 1e-3  # of the first update


class Shared(Ours):
    """Samovar's worker as one of several."""

    def __init__(self, task: Task, name: str, transport: ShmTransport, barrier: Callable[[], None]) -> None:
        super().__init__(task, "fp32", transport, sharing_of(name))
        self._barrier = barrier

    def begin(self) -> None:
        self._barrier()


def sharing_of(name: str) -> Sharing:
    if name == "off":
        return Sharing(is_off=True)
    overlap, _, bucket = name.partition(":")
    return Sharing(StrategyConfig(overlap=overlap, bucket_size_bytes=parse_bucket(bucket or "model")))


class Ddp(Theirs):
    """The plain loop under DDP."""

    def __init__(self, task: Task, name: str) -> None:
        super().__init__(task, Ours(task, "fp32"))
        bucket_mb = float(name.partition(":")[2])
        self._net: Any = DistributedDataParallel(self._net, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)

    def begin(self) -> None:
        dist.barrier()


class Threaded(Theirs):
    """The plain loop on `num_threads` threads."""

    def __init__(self, task: Task, name: str) -> None:
        super().__init__(task, Ours(task, "fp32"))
        self._num_threads = int(name.partition(":")[2])

    def begin(self) -> None:
        torch.set_num_threads(self._num_threads)


def tasks_of(job: dict[str, Any]) -> tuple[Task, Task]:
    """This rank's batch, and all ranks' in one."""
    tasks = [
        task_of(Path(job["folder"]), job["batch"], job["channels"], job["size"], seed=rank)
        for rank in range(WORLD_SIZE)
    ]
    batches = [task.batch for task in tasks]
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    return tasks[job["rank"]], Task(tasks[0].folder, whole)


def opener_of(job: dict[str, Any]) -> Callable[[str], Side]:
    """Makes sides by name."""
    own, whole = tasks_of(job)
    group = Group(job["rank"], WORLD_SIZE)
    kind = job["sides"][0].partition(":")[0]
    if kind == "torch":
        return partial(Threaded, whole)
    if kind == "ddp":
        store = dist.FileStore(str(Path(job["meeting"], "store")), WORLD_SIZE)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", store=store, rank=group.rank, world_size=WORLD_SIZE, timeout=timeout)
        return partial(Ddp, own)
    keep_freed_memory(large_too=True)  # as every rank of a run does
    transport = ShmTransport(job["segment"], group, oversubscribed=False)
    barrier = open_barrier(transport)
    return lambda name: Ours(whole, "fp32") if name == "alone" else Shared(own, name, transport, barrier)


def first_update(name: str, side: Side, moves: Path) -> None:
    """Make the first update, then write or compare it, except on a rank that learns from its own samples alone."""
    _, found = first_step(side)
    if name.startswith("torch"):
        np.savez(moves, *found)
    elif name != "off":
        with np.load(moves) as expected:
            distance = relative_distance(zip(found, expected.values(), strict=True))
        assert distance < TOLERANCE, f"{name}: the first update differs from torch's by {distance:.2g} of its size"


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    os.sched_setaffinity(0, job["cpus"])
    torch.set_num_threads(1)
    opened = opener_of(job)
    sides = {name: opened(name) for name in job["sides"]}
    for name, side in sides.items():
        side.begin()
        first_update(name, side, Path(job["moves"]))
    answer("ready")
    serve(sides)
    answer({name: digest(side.weights()) for name, side in sides.items()})
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
