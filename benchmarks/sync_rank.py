"""One rank of one side of the benchmark of synchronous training, on request.

    sync_rank.py FOLDER SIDE RANK WORLD_SIZE CPU BATCH CHANNELS SIZE SEGMENT

SIDE is `off` (ranks do not exchange), `none`, `backward:BYTES`, `full:BYTES` (Samovar's overlaps), or `ddp:MB`: the
same net of stock torch modules under DistributedDataParallel on gloo, whose ranks meet in the folder SEGMENT; for the
others SEGMENT is an inherited descriptor. For each line with a number of steps on standard input all ranks begin
together, make these, and write the seconds. At the end of the input, the sum of all weights.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from nets_rank import Ours, Sharing, Side, Task, Theirs, task_of
from torch.nn.parallel import DistributedDataParallel

from samovar import _native
from samovar.collectives.barrier import dissemination_barrier
from samovar.collectives.execute import open_channel
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.memory import keep_freed_memory
from samovar.strategies.config import StrategyConfig, parse_bucket
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 120.0


class Shared(Ours):
    """Samovar's worker as one of several."""

    def __init__(self, task: Task, name: str, group: Group, segment: int) -> None:
        keep_freed_memory()  # as every rank of a run does
        transport = ShmTransport(segment, group, oversubscribed=False)
        super().__init__(task, "fp32", transport, sharing_of(name))
        window = transport.open_window("nothing", 0, 0)
        plan = dissemination_barrier(group.rank, group.world_size)
        self._barrier = open_channel("barrier", plan, transport, Region.of(window, 0, 0, np.float32))

    def begin(self) -> None:
        self.drain()
        self._barrier.run(Deadline.after(TIMEOUT_S))


def sharing_of(name: str) -> Sharing:
    if name == "off":
        return Sharing(is_off=True)
    overlap, _, bucket = name.partition(":")
    return Sharing(StrategyConfig(overlap=overlap, bucket_size_bytes=parse_bucket(bucket or "model")))


class Ddp(Theirs):
    """The plain loop under DDP."""

    def __init__(self, task: Task, name: str, group: Group, folder: str) -> None:
        super().__init__(task, Ours(task, "fp32"))
        store = dist.FileStore(str(Path(folder) / "meeting"), group.world_size)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size, timeout=timeout)
        bucket_mb = float(name.partition(":")[2])
        self._net = DistributedDataParallel(self._net, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)

    def begin(self) -> None:
        dist.barrier()


def open_side(name: str, task: Task, group: Group, place: str) -> Shared | Ddp:
    return Ddp(task, name, group, place) if name.startswith("ddp") else Shared(task, name, group, int(place))


def total(side: Side) -> float:
    return sum(float(weight.double().sum()) for weight in side.weights())


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    rank, world_size, cpu, batch, channels, size = map(int, sys.argv[3:9])
    _native.die_with_parent()
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    side = open_side(name, task_of(folder, batch, channels, size, seed=rank), Group(rank, world_size), sys.argv[9])
    print(0.0, flush=True)
    for line in sys.stdin:
        side.begin()
        started_s = time.perf_counter()
        for _ in range(int(line)):
            side.step()
        print(time.perf_counter() - started_s, flush=True)
    side.begin()
    print(repr(total(side)), flush=True)


if __name__ == "__main__":
    main()
