"""One of two ranks of the round-trip benchmark: put + notify there and back, against a bare futex ping-pong.

Rank 0 drives: blocks of ours, sleeping and spinning, and of the bare program take turns on the same two cores.
Seconds per round trip as JSON in a file.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from samovar import _native
from samovar.collectives.barrier import dissemination_barrier
from samovar.collectives.execute import PlanRunner, open_channel
from samovar.collectives.plan import Plan, Put, Wait
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 60.0
NUM_FLOATS = 16
NUM_RUNS = 1000
NUM_PAIRS = 15


def round_trip(rank: int, world_size: int) -> Plan:
    """Put 64 bytes with a notification, wait for the other's."""
    other = world_size - 1 - rank
    put, wait = Put(other, 0, staging=0, slot=0), Wait(other, 0)
    return Plan("round trip", (put, wait) if rank == 0 else (wait, put), 1, 1, 1)


class Ours:
    def __init__(self, rank: int, segment: int, spinning: bool) -> None:
        self._rank = rank
        transport = ShmTransport(segment, Group(rank, 2), oversubscribed=not spinning)
        window = transport.open_window("data", NUM_FLOATS * 4, 0)
        data = Region.of(window, 0, NUM_FLOATS, np.float32)
        self._data = data.array
        self._trip = open_channel("trip", round_trip(rank, 2), transport, data)
        self._barrier: PlanRunner = open_channel("barrier", dissemination_barrier(rank, 2), transport, data)

    def barrier(self) -> None:
        self._barrier.run(Deadline.after(TIMEOUT_S))

    def block(self) -> float:
        """Seconds per round trip."""
        self.barrier()
        deadline = Deadline.after(TIMEOUT_S)
        began_s = time.perf_counter()
        for _ in range(NUM_RUNS):
            self._trip.run(deadline)
        return (time.perf_counter() - began_s) / NUM_RUNS


class Bare:
    """The program behind `futex_ping_pong.cpp`."""

    def __init__(self, program: str, cpus: list[int]) -> None:
        self._process = subprocess.Popen(
            [program, *map(str, cpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def block(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{NUM_RUNS}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) * 1e-9

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)


def main() -> None:
    rank, segments, cpus = (
        int(sys.argv[1]),
        [int(text) for text in sys.argv[2:4]],
        [int(text) for text in sys.argv[4:6]],
    )
    program, output = sys.argv[6:]
    _native.die_with_parent()
    os.sched_setaffinity(0, {cpus[rank]})
    sleeping, spinning = (Ours(rank, segment, spins) for segment, spins in zip(segments, (False, True), strict=True))
    bare = Bare(program, cpus) if rank == 0 else None
    times: dict[str, list[float]] = {"sleeping": [], "spinning": [], "bare": []}
    for _ in range(1 + NUM_PAIRS):
        times["sleeping"].append(sleeping.block())
        if bare is not None:
            times["bare"].append(bare.block())
        sleeping.barrier()
        times["spinning"].append(spinning.block())
    if bare is not None:
        bare.close()
        Path(output).write_text(json.dumps({side: values[1:] for side, values in times.items()}))
    sleeping.barrier()


if __name__ == "__main__":
    main()
