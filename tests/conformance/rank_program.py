"""One rank of the conformance suite: a process of its own that runs every case and reports as JSON lines."""

import hashlib
import json
import sys

import cases
import numpy as np

from samovar import _native
from samovar.collectives.execute import Channel
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 50.0


def main() -> None:
    rank, world_size, segment = (int(argument) for argument in sys.argv[1:])
    _native.die_with_parent()
    transport = ShmTransport(segment, Group(rank, world_size), oversubscribed=True)
    for plan in cases.PLANS:
        for size in cases.SIZES if plan != "barrier" else (0,):
            for dtype in cases.DTYPES:
                run_case(transport, plan, size, dtype)


def run_case(transport: ShmTransport, plan_name: str, size: int, dtype: str) -> None:
    rank, world_size = transport.group.rank, transport.group.world_size
    window = transport.open_window("data", size * 8 + 8, 0)
    buffer = Region.of(window, 8, size, np.dtype(dtype).type)
    plan = cases.PLANS[plan_name](rank, world_size)
    channel = Channel(plan_name, plan, transport, buffer)
    for run in range(1, cases.NUM_RUNS + 1):
        buffer.array[:] = cases.contribution(rank, run, size, dtype)
        window.fetch_add(0, 0, 1)
        sent_before = transport.bytes_sent
        channel.run(Deadline.after(TIMEOUT_S))
        line = {
            "case": [plan_name, size, dtype, run],
            "sha256": hashlib.sha256(buffer.array.tobytes()).hexdigest(),
            "steps": channel.last_steps,
            "bytes_sent": transport.bytes_sent - sent_before,
            "entered": window.fetch_add(0, 0, 0),
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
