"""Cases of the simulator: any plan, run several times with random delays. A failing one says how to repeat it."""

import math
import shlex
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache, partial
from random import Random

import numpy as np

from samovar.collectives.cost import Cost, cost
from samovar.collectives.execute import Channel
from samovar.collectives.plan import Plan, PlanFunction
from samovar.core.machine import Link, MachineModel, Ports
from samovar.transports.base import Region, Window
from samovar.transports.sim.window import SimWindow
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate
from tests.conformance import cases

COLLECTIVES = list(cases.COLLECTIVES)
WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
SIZES = (0, 1, 3, 17, 64, 257)  # elements
DTYPES = ("float32", "float64")
NUM_RUNS = 3
MACHINES = (
    MachineModel(),
    MachineModel(Link(1e-6, 1e9, 1e-7), reduce_bytes_per_s=1e9),
    MachineModel(Link(2e-6, 1e9), Link(1e-7, 1e10), ranks_per_host=3, compute_factors=(1.0, 2.0)),
    MachineModel(Link(1e-6, 1e8), ports=Ports.SHARED, reduce_bytes_per_s=1e8),
)
MAX_DELAYS_S = (0.0, 1e-6, 1e-4)


def config_of(seed: int) -> SimConfig:
    """The machine and the delays of a case."""
    random = Random(seed + 1)
    return SimConfig(seed, random.choice(MACHINES), random.choice(MAX_DELAYS_S))


def repeated_by(kind: str, case: object) -> str:
    """The command that plays a case of this kind again."""
    assert is_dataclass(case)
    settings = {field.name.replace("_", "-"): str(getattr(case, field.name)) for field in fields(case)}
    return shlex.join(
        ["python", "tools/simulate.py", "--of", kind, *(f"--{name}={settings[name]}" for name in settings)]
    )


class WrongResult(AssertionError):
    """A rank's result differs from the documented order of additions, or a count from the documented cost."""


@dataclass(frozen=True)
class SimCase:
    """One plan on one simulated machine; the seed also draws the delays, the machine and the pauses of ranks."""

    seed: int
    collective: str
    world_size: int
    size: int
    dtype: str

    @classmethod
    def of_seed(cls, seed: int) -> "SimCase":
        """Everything drawn from the seed."""
        random = Random(seed)
        return cls(
            seed, random.choice(COLLECTIVES), random.choice(WORLD_SIZES), random.choice(SIZES), random.choice(DTYPES)
        )

    def config(self) -> SimConfig:
        return config_of(self.seed)


@dataclass(frozen=True)
class Parts:
    """The parts of a case; a planted mistake replaces one."""

    function: PlanFunction | None = None  # None: that of the case's collective
    channel: type[Channel] = Channel
    window: type[SimWindow] = SimWindow


@dataclass(frozen=True)
class Counted:
    """The counts of one rank in each run."""

    steps: list[int]
    bytes_sent: list[int]


SOUND = Parts()


def run_case(case: SimCase, parts: Parts = SOUND) -> SimRun[Counted]:
    """Raises what is wrong, with a note of the command that repeats it."""
    try:
        run = simulate(partial(run_rank, case, parts), case.world_size, case.config(), parts.window)
        assert_cost(case, run.results)
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by('plans', case)}")
        raise
    return run


def run_rank(case: SimCase, parts: Parts, transport: SimTransport) -> Counted:
    """A user of a collective: fill the buffer, run, read the result, again and again."""
    rank, world_size = transport.group.rank, transport.group.world_size
    window = transport.open_window("data", case.size * 8 + 8, 0)
    buffer = Region.of(window, 8, case.size, np.dtype(case.dtype).type)
    plan = parts.function(rank, world_size) if parts.function else plan_of(case.collective, rank, world_size)
    channel = parts.channel(case.collective, plan, transport, buffer)
    result = buffer.array[slice(*cases.result_part(case.collective, rank, world_size, case.size))]
    pauses = Random(case.seed * world_size + rank)
    counted = Counted([], [])
    for run in range(1, NUM_RUNS + 1):
        transport.sleep(case.config().max_delay_s * pauses.random() ** 3)
        transport.note(buffer.array, writes=True, verb="filling of the buffer")
        buffer.array[:] = cases.contribution(rank, run, case.size, case.dtype)
        sent_before = transport.bytes_sent
        enter(case, window)
        channel.run(transport.deadline(math.inf))
        transport.note(result, writes=False, verb="reading of the result")
        assert_result(case, run, rank, window, result)
        counted.steps.append(channel.last_steps)
        counted.bytes_sent.append(transport.bytes_sent - sent_before)
    return counted


def enter(case: SimCase, window: Window) -> None:
    if case.collective == "barrier":
        window.fetch_add(0, 0, 1)


def assert_result(case: SimCase, run: int, rank: int, window: Window, result: np.ndarray) -> None:
    if case.collective == "barrier":
        if window.fetch_add(0, 0, 0) < case.world_size * run:
            raise WrongResult(f"rank {rank} left barrier {run} before all had come")
        return
    start, stop = cases.result_part(case.collective, rank, case.world_size, case.size)
    wanted = _expected(case.collective, case.world_size, run, case.size, case.dtype)[start:stop]
    if result.tobytes() != wanted.tobytes():
        first = int(np.flatnonzero(result != wanted)[0])
        raise WrongResult(f"rank {rank}, run {run}: element {start + first} is {result[first]}, not {wanted[first]}")


def assert_cost(case: SimCase, ranks: list[Counted]) -> None:
    documented = _cost(case.collective, case.world_size, case.size, int(case.dtype[-2:]) // 8)
    for run in range(NUM_RUNS):
        steps = max(counted.steps[run] for counted in ranks)
        bytes_sent = tuple(counted.bytes_sent[run] for counted in ranks)
        if (steps, bytes_sent) != (documented.steps, documented.bytes_sent):
            raise WrongResult(f"run {run + 1} took {steps} steps and sent {bytes_sent}; documented: {documented}")


@cache
def plan_of(collective: str, rank: int, world_size: int) -> Plan:
    """The plan of a case without mistakes."""
    return cases.COLLECTIVES[collective].function(rank, world_size)


@lru_cache(maxsize=8192)
def _expected(collective: str, world_size: int, run: int, size: int, dtype: str) -> np.ndarray:
    return cases.expected(collective, world_size, run, size, dtype)


@lru_cache(maxsize=8192)
def _cost(collective: str, world_size: int, size: int, element_bytes: int) -> Cost:
    return cost([plan_of(collective, rank, world_size) for rank in range(world_size)], size, element_bytes)
