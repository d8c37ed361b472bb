"""One rank of the conformance suite: a process of its own that runs every case and reports as JSON lines."""

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from samovar import _native
from samovar.collectives.execute import Channel, NativeChannel
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.base import Region, Transport, Window
from samovar.transports.shm import ShmTransport
from tests.conformance import cases

TIMEOUT_S = 100.0
EXECUTORS: dict[str, type[NativeChannel | Channel]] = {"native": NativeChannel, "python": Channel}


def main() -> None:
    rank, world_size, segment = (int(argument) for argument in sys.argv[1:])
    _native.die_with_parent()
    transport = ShmTransport(segment, Group(rank, world_size), oversubscribed=True)
    data = transport.open_window("data", max(case.size * int(case.dtype[-2:]) // 8 for case in cases.cases()), 0)
    # Written at the end: a rank must not wait for its reader while others wait for it.
    reports = [report for case in cases.cases() for report in run_case(transport, data, case)]
    sys.stdout.writelines(json.dumps(report) + "\n" for report in reports)


def run_case(transport: Transport, data: Window, case: cases.Case) -> Iterator[dict[str, Any]]:
    rank, world_size = transport.group.rank, transport.group.world_size
    counter = transport.open_window("counter", 8, 0)
    buffer = Region.of(data, 0, case.size, np.dtype(case.dtype).type)
    plan = cases.COLLECTIVES[case.collective].function(rank, world_size)
    channel = EXECUTORS[case.executor](case.collective, plan, transport, buffer)
    result = slice(*cases.result_part(case.collective, rank, world_size, case.size))
    for run in range(1, cases.NUM_RUNS + 1):
        buffer.array[:] = cases.contribution(rank, run, case.size, case.dtype)
        counter.fetch_add(0, 0, 1)
        sent_before = transport.bytes_sent
        channel.run(Deadline.after(TIMEOUT_S))
        yield {
            "case": [*case, run],
            "sha256": hashlib.sha256(buffer.array[result].tobytes()).hexdigest(),
            "steps": channel.last_steps,
            "bytes_sent": transport.bytes_sent - sent_before,
            "entered": counter.fetch_add(0, 0, 0),
        }


if __name__ == "__main__":
    main()
