"""Runs a program on every rank of a simulated machine."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Generic, TypeVar

from samovar.core.group import Group
from samovar.core.machine import MachineModel
from samovar.transports.sim.network import Network
from samovar.transports.sim.races import RaceFinder
from samovar.transports.sim.scheduler import Scheduler, Task
from samovar.transports.sim.transport import SimTransport, Windows
from samovar.transports.sim.window import Fabric, SimPort, SimWindow

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class SimConfig:
    """How to simulate.

    `seed` decides between events of the same time and draws each message's delay, up to `max_delay_s`. `check` finds
    races. Windows of more than `counted_above_bytes` count their bytes and hold none (0: every window).
    """

    seed: int = 0
    machine: MachineModel = field(default_factory=MachineModel)
    max_delay_s: float = 0.0
    check: bool = True
    counted_above_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class SimRun(Generic[_Result]):
    """What came of it: each rank's result, the virtual time of the last rank's end, and what went over the network.

    `event_hash` is the same for the same program, world size and config.
    """

    results: list[_Result]
    seconds: float
    num_messages: int
    bytes_sent: tuple[int, ...]
    event_hash: str


def simulate(
    program: Callable[[SimTransport], _Result],
    world_size: int,
    config: SimConfig,
    window_type: type[SimWindow] = SimWindow,
) -> SimRun[_Result]:
    """Run `program` on every rank until all have returned.

    Raises Deadlock, Race, and whatever a rank raises (with a note that names it). All randomness that the
    simulator uses is drawn from config.seed.
    """
    random = Random(config.seed)
    scheduler = Scheduler(random)
    network = Network(scheduler, config.machine, world_size, random, config.max_delay_s)
    fabric = Fabric(scheduler, network, RaceFinder(world_size) if config.check else None)
    tasks = [Task(f"rank {rank}") for rank in range(world_size)]
    ports = [SimPort(rank, fabric, task) for rank, task in enumerate(tasks)]
    windows = Windows(ports, config.counted_above_bytes, window_type)
    for rank, (task, port) in enumerate(zip(tasks, ports, strict=True)):
        transport = SimTransport(Group(rank, world_size), port, windows, config.machine)
        task.program = partial(program, transport)
    scheduler.run(tasks)
    return SimRun(
        results=[task.result for task in tasks],
        seconds=scheduler.now_s,
        num_messages=network.num_messages,
        bytes_sent=tuple(port.bytes_sent for port in ports),
        event_hash=network.event_hash(),
    )
