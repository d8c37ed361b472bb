"""One of two ranks of the round-trip benchmark: put + notify there and back, against a bare futex ping-pong.

    round_trip_rank.py JOB

Rank 0 drives: blocks of ours, sleeping and spinning, and of the bare program take turns on the same two cores.
JOB is JSON: rank, segments, cpus, the bare program, the number of runs in a block, and of pairs of blocks. A rank
answers with its seconds per round trip of each side.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np
from turns import answer, open_barrier

from samovar import _native
from samovar.collectives.execute import open_channel
from samovar.collectives.plan import Plan, Put, Wait
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 60.0
NUM_FLOATS = 16


def round_trip(rank: int, world_size: int) -> Plan:
    """Put 64 bytes with a notification, wait for the other's."""
    other = world_size - 1 - rank
    put, wait = Put(other, 0, staging=0, slot=0), Wait(other, 0)
    return Plan("round trip", (put, wait) if rank == 0 else (wait, put), 1, 1, 1)


class Ours:
    def __init__(self, rank: int, segment: int, spinning: bool, num_runs: int) -> None:
        transport = ShmTransport(segment, Group(rank, 2), oversubscribed=not spinning)
        window = transport.open_window("data", NUM_FLOATS * 4, 0)
        data = Region.of(window, 0, NUM_FLOATS, np.float32)
        self._num_runs = num_runs
        self._trip = open_channel("trip", round_trip(rank, 2), transport, data)
        self.barrier = open_barrier(transport)

    def block(self) -> float:
        """Seconds per round trip."""
        self.barrier()
        deadline = Deadline.after(TIMEOUT_S)
        began_s = time.perf_counter()
        for _ in range(self._num_runs):
            self._trip.run(deadline)
        return (time.perf_counter() - began_s) / self._num_runs


class Bare:
    """The program behind `futex_ping_pong.cpp`."""

    def __init__(self, program: str, cpus: list[int], num_runs: int) -> None:
        self._num_runs = num_runs
        self._process = subprocess.Popen(
            [program, *map(str, cpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def block(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._num_runs}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) * 1e-9

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)


def main() -> None:
    job = json.loads(sys.argv[1])
    rank, cpus, num_runs = job["rank"], job["cpus"], job["num_runs"]
    _native.die_with_parent()
    os.sched_setaffinity(0, {cpus[rank]})
    sleeping, spinning = (Ours(rank, segment, index == 1, num_runs) for index, segment in enumerate(job["segments"]))
    bare = Bare(job["bare"], cpus, num_runs) if rank == 0 else None
    times: dict[str, list[float]] = {"sleeping": [], "spinning": [], "bare": []}
    for _ in range(1 + job["num_pairs"]):
        times["sleeping"].append(sleeping.block())
        if bare is not None:
            times["bare"].append(bare.block())
        sleeping.barrier()
        times["spinning"].append(spinning.block())
    if bare is not None:
        bare.close()
    answer({side: values[1:] for side, values in times.items()})
    sleeping.barrier()


if __name__ == "__main__":
    main()
