"""The scenarios of `fault_scenarios` on real processes: `python -m tests.sim.fault_ranks TIMEOUT_S NAME...`.

Prints JSON: what each rank of each scenario showed. Ranks are forked, share memory, and die by SIGKILL.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from samovar import _native
from samovar.box.board import Member
from samovar.box.mapped import MappedCenter, create_center
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.shm import ShmTransport, create_segment
from tests.sim.fault_scenarios import ENDED, KILLED, LAYOUT, SCENARIOS, Scenario, play

LIMIT_S = 200.0


class Process:
    """One rank's place, in a process of its own."""

    def __init__(self, transport: ShmTransport, center: int, timeout_s: float) -> None:
        self.transport, self._center, self._timeout_s = transport, center, timeout_s

    def deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)

    def sleep(self, timeouts: float) -> None:
        time.sleep(timeouts * self._timeout_s)

    def die(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def center(self) -> Any:
        return MappedCenter(self._center, Member(self.transport.group.rank, 1))


def start(scenario: Scenario, timeout_s: float) -> list[tuple[int, int]]:
    """The process of each rank, and the pipe of what it shows."""
    segment = create_segment(scenario.world_size)
    velocity = bool(scenario.config.center_momentum)
    locks = not scenario.strategy.startswith("hogwild")
    center = create_center(LAYOUT.num_elements, scenario.world_size, with_velocity=velocity, with_locks=locks)
    found = []
    for rank in range(scenario.world_size):
        reads, writes = os.pipe()
        if not (process := os.fork()):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _native.die_with_parent()
            signal.alarm(int(LIMIT_S))
            transport = ShmTransport(segment, Group(rank, scenario.world_size), oversubscribed=True)
            play(scenario, Process(transport, center, timeout_s), partial(_show, writes))
            os._exit(0)
        os.close(writes)
        found.append((process, reads))
    os.close(segment)
    os.close(center)
    return found


def _show(pipe: int, text: str) -> None:
    os.write(pipe, f"{text}\n".encode())


def finish(process: int, reads: int) -> list[str]:
    with open(reads) as pipe:
        shown = pipe.read().splitlines()
    _, status = os.waitpid(process, 0)
    return [*shown, KILLED if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else ENDED]


def main(timeout_s: float, names: Sequence[str]) -> None:
    started = {name: start(SCENARIOS[name], timeout_s) for name in names}
    print(json.dumps({name: [finish(*rank) for rank in ranks] for name, ranks in started.items()}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
