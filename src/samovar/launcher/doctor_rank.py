"""A process that measures for `samovar doctor`: `python -m samovar.launcher.doctor_rank`.

Every figure is the best of a few short blocks. It shows the machine, not the load of the moment.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import numpy.typing as npt

from samovar.collectives.execute import open_channel
from samovar.collectives.plan import Plan, PlanFunction, Put, Wait
from samovar.collectives.plans import dissemination_barrier
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.launch.rank_arguments import Arguments, end_with_parent
from samovar.transports.base import Notification, Region
from samovar.transports.shm import ShmTransport

MESSAGE_SIZES = tuple(1 << bits for bits in range(12, 27, 2))  # 4 KiB to 64 MiB
LARGEST_MESSAGE_BYTES = MESSAGE_SIZES[-1]

_TIMEOUT_S = 30.0
_NUM_BLOCKS = 5
_NUM_TRIPS = 200
_NUM_LETTERS = 100
_FALLING_ASLEEP_S = 0.5e-3
_TRIP_BYTES = 64
_BYTES_PER_BLOCK = 1 << 26
_MAX_PUTS = 1000
_NUM_COPIES = 4


@dataclass(frozen=True, slots=True)
class DoctorArguments(Arguments):
    """Numbers of inherited descriptors; `cpus` are the cores of rank 0, rank 1, ..., separated by commas."""

    module = "samovar.launcher.doctor_rank"
    rank: int
    segment: int
    sleeping: int
    spinning: int
    pipe: int
    parent: int
    copy_bytes: int
    cpus: str


def round_trip(rank: int, world_size: int) -> Plan:
    """Rank 0 puts the buffer into rank 1's memory, which puts it back."""
    other = world_size - 1 - rank
    send, wait = Put(other, 0, staging=0, slot=0), Wait(other, 0)
    return Plan("round trip", (send, wait) if rank == 0 else (wait, send), 1, 1, 1)


class Pair:
    """Measurements between ranks 0 and 1, while both sleep as they wait, and while both spin."""

    def __init__(self, rank: int, sleeping: ShmTransport, spinning: ShmTransport, cpus: list[int]) -> None:
        self._rank = rank
        self._cpus = cpus
        self._window = sleeping.open_window("messages", LARGEST_MESSAGE_BYTES, 0)
        self._trip = self._channel(round_trip, sleeping)
        self._letters = sleeping.open_window("letters", _TRIP_BYTES, 2)
        # Where there is one core, one of the two cannot run while the other spins.
        self._spinning_trip = self._channel(round_trip, spinning) if cpus[0] != cpus[1] else self._trip

    def measure(self) -> dict[str, object]:
        """Every figure, on the rank that can measure it; both ranks call this together."""
        figures: dict[str, object] = {
            "spinning_latency_s": best_s(self._spinning_trip, _NUM_TRIPS) / 2,
            "sleeping_latency_s": self._sleeping_latency_s(),
            "bandwidth": [(size, self._bandwidth(size)) for size in MESSAGE_SIZES],
        }
        os.sched_setaffinity(0, {self._cpus[0]})
        self._trip()
        figures["shared_core_latency_s"] = best_s(self._trip, _NUM_TRIPS) / 2
        os.sched_setaffinity(0, {self._cpus[self._rank]})
        return figures

    def _channel(self, plan: PlanFunction, transport: ShmTransport) -> Callable[[], None]:
        window = transport.open_window("trip", _TRIP_BYTES, 0)
        buffer = Region.of(window, 0, _TRIP_BYTES // 4, np.float32)
        channel = open_channel(plan.__name__, plan(self._rank, 2), transport, buffer)
        return lambda: channel.run(Deadline.after(_TIMEOUT_S))

    def _sleeping_latency_s(self) -> float:
        """Median time of a letter with its send time, to a rank that had time to fall asleep.

        Half a round trip would be wrong: a quick answer finds the other rank still awake.
        """
        letter = np.zeros(_TRIP_BYTES // 8)
        seconds = []
        for number in range(1, _NUM_LETTERS + 1):
            deadline = Deadline.after(_TIMEOUT_S)
            if self._rank == 0:
                time.sleep(_FALLING_ASLEEP_S)
                letter[0] = time.perf_counter()
                self._letters.put(1, 0, letter, Notification(0, number))
                self._letters.wait(1, number, 1, deadline)
            else:
                self._letters.wait(0, number, 0, deadline)
                seconds.append(time.perf_counter() - float(self._letters.local.view(np.float64)[0]))
                self._letters.notify(0, Notification(1, number))
        return median(seconds) if seconds else 0.0

    def _bandwidth(self, size: int) -> float:
        """Bytes per second that rank 0 puts into rank 1's memory, while that waits."""
        rate = 0.0
        if self._rank == 0:
            put = partial(self._window.put, 1, 0, self._window.local[:size])
            rate = size / best_s(put, max(1, min(_MAX_PUTS, _BYTES_PER_BLOCK // size)))
        self._trip()
        return rate


class Copying:
    """Copies between two arrays of this process; bytes read and written per second."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._source: npt.NDArray[np.uint8] = np.ones(num_bytes, np.uint8)
        self._destination = np.zeros_like(self._source)
        self._destination.fill(1)

    def rate(self) -> float:
        """The rate of one block."""
        began_s = time.perf_counter()
        for _ in range(_NUM_COPIES):
            np.copyto(self._destination, self._source)
        return 2 * self._num_bytes * _NUM_COPIES / (time.perf_counter() - began_s)


def best_s(action: Callable[[], None], num_runs: int) -> float:
    """Seconds per run in the best block."""
    best = float("inf")
    for _ in range(_NUM_BLOCKS):
        began_s = time.perf_counter()
        for _ in range(num_runs):
            action()
        best = min(best, (time.perf_counter() - began_s) / num_runs)
    return best


def run(given: DoctorArguments) -> dict[str, object]:
    """This rank's figures: the pair's (rank 0), copying alone (rank 0) and together (every rank)."""
    cpus = [int(text) for text in given.cpus.split(",")]
    os.sched_setaffinity(0, {cpus[given.rank]})
    transport = ShmTransport(given.segment, Group(given.rank, len(cpus)), oversubscribed=True)
    barrier = _barrier(transport)
    figures: dict[str, object] = {}
    if given.rank < 2:
        sleeping, spinning = (
            ShmTransport(descriptor, Group(given.rank, 2), oversubscribed=sleeps)
            for descriptor, sleeps in ((given.sleeping, True), (given.spinning, False))
        )
        figures |= Pair(given.rank, sleeping, spinning, cpus).measure()
    copying = Copying(given.copy_bytes)
    barrier()
    if given.rank == 0:
        figures["copy_one"] = [copying.rate() for _ in range(_NUM_BLOCKS)]
    figures["copy_all"] = [rate_after(barrier, copying) for _ in range(_NUM_BLOCKS)]
    return figures


def rate_after(barrier: Callable[[], None], copying: Copying) -> float:
    """All ranks copy at once."""
    barrier()
    return copying.rate()


def _barrier(transport: ShmTransport) -> Callable[[], None]:
    window = transport.open_window("nothing", 0, 0)
    plan = dissemination_barrier(transport.group.rank, transport.group.world_size)
    channel = open_channel("barrier", plan, transport, Region.of(window, 0, 0, np.float32))
    return lambda: channel.run(Deadline.after(_TIMEOUT_S))


def main(arguments: list[str]) -> int:
    """Measure this rank's part and write it to the pipe."""
    given = DoctorArguments.parse(arguments)
    end_with_parent(given.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(given.pipe, "w") as pipe:
        pipe.write(json.dumps(run(given)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
