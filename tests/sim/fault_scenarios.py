"""Faults that one driver plays on simulated machines and on real processes: a user must see the same on both.

What a rank shows is a list: its steps, each with a digest of its weights where ranks are in step; the error that it
ends with, with its kind and the ranks that it names; and how its process ended.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np

from samovar.box.base import Center
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.core.clock import Deadline
from samovar.core.errors import NotFinite, SamovarError
from samovar.core.layout import Bucket, Layout, ParameterSpec, all_finite
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.transports.base import Region

LAYOUT = Layout.pack([ParameterSpec("a", (40,)), ParameterSpec("b", (24,))])
STEPS, RATE = 4, np.float32(0.125)
KILLED, ENDED = "killed", "ended"
# In timeouts: longer than any wait, a good part of one, and the pause that lets others come to where they wait.
STOPPED, SLOW, LATE = 3.0, 0.3, 0.4


@dataclass(frozen=True)
class Fault:
    """What happens to a rank in a step; "slow" in each, "late" before the first, "empty" before the center is filled.

    "killed", "stopped" and "not finite" come before the step's exchange, "cut" in the middle of it.
    """

    what: str = ""
    rank: int = 0
    step: int = 1

    def hits(self, what: str, rank: int, step: int) -> bool:
        is_time = step == self.step or self.what in ("slow", "late", "empty")
        return (self.what, self.rank) == (what, rank) and is_time


@dataclass(frozen=True)
class Scenario:
    strategy: str
    world_size: int
    fault: Fault
    collective: str = "direct"
    settings: Mapping[str, Any] = field(default_factory=dict)
    bucket_bytes: int | None = None

    @property
    def config(self) -> StrategyConfig:
        chosen = StrategyConfig.given(self.strategy, self.settings, bucket_size_bytes=self.bucket_bytes)
        return resolved(chosen, self.world_size)


KILL, STOP, SLOWER, LATER, NAN, CUT = (
    partial(Fault, what) for what in ("killed", "stopped", "slow", "late", "not finite", "cut")
)
PERIOD = {"sync_period_steps": 2}
SCENARIOS: dict[str, Scenario] = {
    "sync, no fault": Scenario("sync", 3, Fault()),
    "sync, one is slow": Scenario("sync", 3, SLOWER(1)),
    "sync, one is late": Scenario("sync", 2, LATER(0)),
    "sync, one of two killed": Scenario("sync", 2, KILL(1)),
    "sync, the first killed": Scenario("sync", 3, KILL(0, 2)),
    "sync, one stopped": Scenario("sync", 2, STOP(1)),
    "sync by a ring, one killed": Scenario("sync", 3, KILL(1), "ring"),
    "sync by a ring, one stopped": Scenario("sync", 3, STOP(2, 2), "ring"),
    "sync by a tree, a leaf killed": Scenario("sync", 4, KILL(3), "tree"),
    "sync by a tree, the root killed": Scenario("sync", 4, KILL(0), "tree"),
    "sync by a server, one killed": Scenario("sync", 3, KILL(2), "server"),
    "sync by halving and doubling, one killed": Scenario("sync", 4, KILL(1), "halving-doubling"),
    "sync by a k-ary tree, one stopped": Scenario("sync", 3, STOP(1), "kary-tree"),
    "sync in buckets, one killed between two": Scenario("sync", 2, CUT(1), "ring", bucket_bytes=1),
    "sync with owners, one killed": Scenario("sync", 2, KILL(1), "tree", {"overlap": "full"}, 1),
    "sync in parts, one killed": Scenario("sync", 2, KILL(0, 2), "ring", {"owner": "parts"}),
    "sync, one not finite": Scenario("sync", 3, NAN(1, 2)),
    "local-sgd, one killed before an exchange": Scenario("local-sgd", 2, KILL(1, 1), "ring", PERIOD),
    "local-sgd, one killed behind an exchange": Scenario("local-sgd", 2, KILL(1, 2), "ring", PERIOD),
    "local-sgd, one slow": Scenario("local-sgd", 3, SLOWER(2), "ring", PERIOD),
    "sync-easgd, one killed": Scenario("sync-easgd", 2, KILL(1, 2), "ring", PERIOD),
    "sync-easgd, one not finite": Scenario("sync-easgd", 2, NAN(0, 1), "ring", PERIOD),
    "diloco, one stopped": Scenario("diloco", 2, STOP(1, 3), "ring", PERIOD),
    "slowmo, one killed": Scenario("slowmo", 3, KILL(2, 3), "ring", PERIOD),
    "async-easgd, one killed": Scenario("async-easgd", 3, KILL(2), settings=PERIOD),
    "async-easgd, one stopped": Scenario("async-easgd", 2, STOP(1), settings=PERIOD),
    "async-sgd, one not finite": Scenario("async-sgd", 2, NAN(1)),
    "shm-easgd, the first killed": Scenario("shm-easgd", 3, KILL(0, 2), settings=PERIOD),
    "shm-easgd, the center is never filled": Scenario("shm-easgd", 3, Fault("empty", 0)),
    "hogwild-sgd, one slow": Scenario("hogwild-sgd", 2, SLOWER(1)),
    "hybrid-easgd, one of a group killed": Scenario(
        "hybrid-easgd", 4, KILL(1), "ring", {"group_size": 2, "sync_period_steps": 2}
    ),
    "round-robin-easgd, one killed": Scenario("round-robin-easgd", 3, KILL(1, 1), settings=PERIOD),
}


class Machine(Protocol):
    """One rank's place. Times are in timeouts."""

    transport: Any

    def deadline(self) -> Deadline: ...
    def sleep(self, timeouts: float) -> None: ...
    def die(self) -> NoReturn: ...
    def center(self) -> Center: ...


def play(scenario: Scenario, machine: Machine, show: Callable[[str], None]) -> None:
    """One rank trains; it shows what happens."""
    try:
        _Player(scenario, machine, show).run()
    except SamovarError as error:
        own = machine.transport.group.rank
        named = sorted({int(rank) for rank in re.findall(r"rank (\d+)", str(error))} - {own})
        show(f"{_kind(error)}: {named}")


def _kind(error: SamovarError) -> str:
    """The kind that a user's exit code tells."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == SamovarError.__module__)


class _Player:
    def __init__(self, scenario: Scenario, machine: Machine, show: Callable[[str], None]) -> None:
        self._scenario, self._machine, self._show = scenario, machine, show
        self._transport = machine.transport
        self._rank = machine.transport.group.rank
        size = LAYOUT.num_elements
        window = self._transport.open_window("model", 8 * size, 0)
        self._weights, self._gradients = (Region.of(window, half * 4 * size, size, np.float32) for half in range(2))
        self._buckets = LAYOUT.buckets(scenario.bucket_bytes)

    def run(self) -> None:
        if self._hits("late"):
            self._machine.sleep(LATE)
        strategy = self._begun()
        for step in range(STEPS):
            self._step(strategy, step)
            self._show(f"step {step}{self._digest()}")
        strategy.drain()
        self._show("trained")

    def _begun(self) -> Any:
        scenario, transport, deadline = self._scenario, self._transport, self._machine.deadline
        collectives = PlannedCollectives(transport, lambda _num_bytes: scenario.collective)
        self._weights.array[:] = np.arange(len(self._weights.array)) % 7
        seat = None
        if scenario.config.needs_center:
            center = self._machine.center()
            if self._hits("empty"):
                self._machine.die()
            if self._rank == 0:
                center.write(self._weights.array, deadline())
            plan = dissemination_barrier(self._rank, scenario.world_size)
            collectives.planned("filled", plan, self._weights.part(0, 0)).run(deadline())
            seat = CenterSeat(center, self._rank == 0)
        buffers = Buffers(self._weights, self._gradients)
        return build_strategy(scenario.config, collectives, self._buckets, buffers, deadline, seat)

    def _step(self, strategy: Any, step: int) -> None:
        for what, pause in (("slow", SLOW), ("stopped", STOPPED)):
            if self._hits(what, step):
                self._machine.sleep(pause)
        if self._hits("killed", step):
            self._machine.die()
        strategy.begin_step(step)
        for bucket in reversed(self._buckets):
            strategy.before_forward(bucket)
        gradients = np.random.default_rng([self._rank, step]).integers(-9, 9, len(self._gradients.array))
        for bucket in self._buckets:
            part = slice(bucket.start, bucket.stop)
            self._gradients.array[part] = gradients[part]
            if self._hits("not finite", step):
                self._gradients.array[part] = np.nan
            strategy.gradient_final(bucket)
            if self._hits("cut", step):
                self._machine.die()
        strategy.finish_step(step, self._update)
        if not (strategy.traits.has_center or all_finite(self._weights.array)):
            raise NotFinite(f"rank {self._rank}: the weights are not finite after step {step}")

    def _update(self, bucket: Bucket, scale: float) -> None:
        part = slice(bucket.start, bucket.stop)
        self._weights.array[part] -= RATE * (np.float32(scale) * self._gradients.array[part])

    def _hits(self, what: str, step: int = 0) -> bool:
        return self._scenario.fault.hits(what, self._rank, step)

    def _digest(self) -> str:
        """Where the order of workers at a center decides, weights may differ."""
        return "" if self._scenario.config.needs_center else f" {zlib.crc32(self._weights.array.tobytes()):08x}"
