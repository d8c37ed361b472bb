"""One rank of the benchmark of reading: batches of a data layer on request, from its files and from memory.

    data_rank.py JOB

JOB is JSON: the database, batch and crop, this rank's place, a descriptor of shared memory. Sides `files` and `held`
take the same batches in turn, in a new order every epoch. When each side's first batches were the same, it answers with
the seconds that loading took, and serves (see `turns.py`). At the end it answers with the bytes fetched from others.
"""

import hashlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
from turns import TIMEOUT_S, answer, open_barrier, serve

from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.host import keep_freed_memory
from samovar.data.cache import CacheSetup
from samovar.data.config import DataConfig, TransformConfig
from samovar.data.reader import BatchReader
from samovar.transports.shm import ShmTransport

NUM_COMPARED = 4  # batches


class Reading:
    """Reads a rank's batches one after the other."""

    def __init__(self, reader, first, begin) -> None:
        self._reader = reader
        self._next = first
        self.begin = begin

    def step(self) -> dict[str, torch.Tensor]:
        batch = self._reader.read(self._next, self._reader.batch_size)
        self._next += self._reader.batch_size * 2
        return batch

    def drain(self) -> None:
        """Nothing is under way."""

    def digest(self) -> str:
        found = hashlib.sha256()
        for _ in range(NUM_COMPARED):
            batch = self.step()
            found.update(batch["data"].numpy().tobytes() + batch["label"].numpy().tobytes())
        return found.hexdigest()


def main() -> None:
    job = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {job["cpu"]})
    torch.set_num_threads(1)
    keep_freed_memory(large_too=True)
    transport = ShmTransport(job["segment"], Group(job["rank"], job["world_size"]), oversubscribed=False)
    begin = open_barrier(transport)
    transform = TransformConfig(mean_values=(104.0, 117.0, 123.0), crop_size=job["crop"], mirror=True)
    layer = DataConfig(Path(job["database"]), job["batch"], ("data", "label"), transform, training=True)
    with BatchReader([layer], True, 1, shuffled=True) as files, BatchReader([layer], True, 1, shuffled=True) as held:
        begin()
        started_s = time.perf_counter()
        held.fill_cache(CacheSetup(transport, partial(Deadline.after, TIMEOUT_S)))
        load_s = time.perf_counter() - started_s
        sides = {
            name: Reading(reader, job["rank"] * job["batch"], begin)
            for name, reader in (("files", files), ("held", held))
        }
        if sides["files"].digest() != sides["held"].digest():
            raise SystemExit("batches from memory are not those of the files")
        answer(load_s)
        serve(sides)
        answer(held.fetched_bytes)


if __name__ == "__main__":
    main()
