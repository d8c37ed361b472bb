"""Code that rank programs share: they begin together, make steps on request, and answer in lines of JSON."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from samovar.collectives.execute import open_channel
from samovar.collectives.plans import dissemination_barrier
from samovar.core.clock import Deadline
from samovar.transports.base import Region, Transport

TIMEOUT_S = 120.0


class Stepping(Protocol):
    """A side: `begin` waits for the other ranks, `drain` completes what steps left under way."""

    def begin(self) -> None: ...
    def step(self) -> object: ...
    def drain(self) -> None: ...


def open_barrier(transport: Transport) -> Callable[[], None]:
    """Waits for all ranks of the transport's group."""
    region = Region.of(transport.open_window("nothing", 0, 0), 0, 0, np.float32)
    plan = dissemination_barrier(transport.group.rank, transport.group.world_size)
    channel = open_channel("barrier", plan, transport, region)
    return lambda: channel.run(Deadline.after(TIMEOUT_S))


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


def serve(sides: Mapping[str, Stepping]) -> None:
    """For each line SIDE STEPS of the input, make these steps; answer with the seconds, and the CPU seconds.

    CPU seconds leave out other processes' turns on the core, and waiting for other ranks, except its spinning.
    """
    for line in sys.stdin:
        name, num_steps = line.split()
        side = sides[name]
        side.begin()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(int(num_steps)):
            side.step()
        side.drain()
        answer([time.perf_counter() - wall_s, time.process_time() - cpu_s])
