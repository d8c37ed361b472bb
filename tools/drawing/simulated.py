"""Runs of strategies on simulated machines: the production code of each, and what every worker did at which time.

A worker waits while the message that it needs has not been sent. It exchanges while that message is on its way.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import numpy as np

from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket, Layout, ParameterSpec
from samovar.core.machine import Link, MachineModel
from samovar.core.trace import Span, Trace
from samovar.strategies.base import Buffers, CenterSeat, Strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.traits import KINDS
from samovar.transports.base import Array, Notification, Region
from samovar.transports.sim.window import SimWindow
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

COMPUTE, EXCHANGE, WAIT = "compute", "exchange", "wait"
_FORWARD_SHARE = 1 / 3  # of a step; the rest is the backward pass
_HOOKS = "hooks"
_BEHIND = "behind"
_RATE = np.float32(0.01)


@dataclass(frozen=True)
class Cluster:
    """Workers, each on a host of its own. `slowness[r]` is how many times longer rank r computes."""

    slowness: tuple[float, ...]
    link: Link
    step_s: float
    num_floats: int
    jitter: float = 0.0  # the most by which a step takes longer, as a part of it

    @property
    def machine(self) -> MachineModel:
        return MachineModel(self.link, compute_factors=self.slowness)


@dataclass(frozen=True)
class Setting:
    """A strategy with its settings, the plan of its all-reduce, and into how many buckets the net is cut."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()
    num_buckets: int = 1
    collective: str = "halving-doubling"

    @property
    def config(self) -> StrategyConfig:
        return StrategyConfig(self.name, self.collective, **dict(self.settings))


@dataclass(frozen=True)
class Worker:
    """One worker: its spans, when each of its steps ended, in seconds from the start, and how long it computed."""

    spans: tuple[Span, ...]
    ends_s: tuple[float, ...]
    computed_s: float

    def seconds(self, kind: str, until_s: float = math.inf, *, behind: bool = False) -> float:
        """How long it did that up to a moment, in its own step or behind it."""
        return sum(stop_s - start_s for start_s, stop_s in self.during(kind, until_s, behind=behind))

    def steps_until(self, moment_s: float) -> int:
        """Steps that had ended by then."""
        return sum(end_s <= moment_s for end_s in self.ends_s)

    def during(self, kind: str, until_s: float, *, behind: bool = False) -> list[tuple[float, float]]:
        """When it did that: from, to."""
        chosen = (span for span in self.spans if span.name == kind and (span.stream == _BEHIND) == behind)
        return [(span.start_s, min(span.stop_s, until_s)) for span in chosen if span.start_s < until_s]


class WatchedWindow(SimWindow):
    """Notes for how long its rank waited, and for how long what it waited for was on its way."""

    traces: ClassVar[dict[int, Trace]] = {}

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent_s: dict[tuple[int, int], float] = {}
        self._main = self._port.task

    def notify(self, peer: int, notification: Notification) -> None:
        part = self._part(peer, 0, 0)
        assert isinstance(part, WatchedWindow)
        part.sent_s[notification.slot, notification.value] = self._now_s
        super().notify(peer, notification)

    def wait(self, slot: int, at_least: int, peer: int, deadline: Deadline) -> int:
        begun_s, is_behind = self._now_s, self._is_behind
        value = super().wait(slot, at_least, peer, deadline)
        self._add_wait(begun_s, self.sent_s.get((slot, value), begun_s), is_behind)
        return value

    def wait_any(self, slots: range, deadline: Deadline) -> tuple[int, int]:
        begun_s, is_behind = self._now_s, self._is_behind
        slot, value = super().wait_any(slots, deadline)
        self._add_wait(begun_s, self.sent_s.get((slot, value), begun_s), is_behind)
        return slot, value

    def get(self, peer: int, offset: int, destination: Array) -> None:
        begun_s, is_behind = self._now_s, self._is_behind
        super().get(peer, offset, destination)
        self._add(EXCHANGE, begun_s, self._now_s, is_behind)

    def _change_word(self, peer: int, offset: int, changed: Any) -> int:
        begun_s, is_behind = self._now_s, self._is_behind
        old = super()._change_word(peer, offset, changed)
        self._add(EXCHANGE, begun_s, self._now_s, is_behind)
        return old

    @property
    def _now_s(self) -> float:
        return self._fabric.scheduler.now_s

    @property
    def _is_behind(self) -> bool:
        return self._port.task is not self._main

    def _add_wait(self, begun_s: float, sent_s: float, is_behind: bool) -> None:
        sent_s = min(max(begun_s, sent_s), self._now_s)
        self._add(WAIT, begun_s, sent_s, is_behind)
        self._add(EXCHANGE, sent_s, self._now_s, is_behind)

    def _add(self, kind: str, start_s: float, stop_s: float, is_behind: bool) -> None:
        if stop_s > start_s:
            self.traces[self.rank].add(Span(_BEHIND if is_behind else "", kind, start_s, stop_s))


def run(setting: Setting, cluster: Cluster, num_steps: int, *, watched: bool = True) -> list[Worker]:
    """`num_steps` steps of each worker; spans only where they are watched."""
    traces: dict[int, Trace] = {}
    window = type("WindowOfRun", (WatchedWindow,), {"traces": traces}) if watched else SimWindow
    work = partial(_train, setting, cluster, num_steps, traces)
    return simulate(work, len(cluster.slowness), SimConfig(0, cluster.machine, check=False), window).results


class _Steps:
    """A worker's net: layers of equal size that take equal time."""

    def __init__(self, setting: Setting, cluster: Cluster, transport: SimTransport) -> None:
        size = cluster.num_floats // setting.num_buckets // 16 * 16
        specs = [ParameterSpec(f"layer {index}", (size,)) for index in range(setting.num_buckets)]
        layout = Layout.pack(specs)
        window = transport.open_window("model", 2 * 4 * layout.num_elements, 0)
        self.weights, self.gradients = (
            Region.of(window, half * 4 * layout.num_elements, layout.num_elements, np.float32) for half in range(2)
        )
        self.buckets = layout.buckets(1)
        self._transport, self._cluster = transport, cluster
        self._random = Random(transport.group.rank)
        self.computed_s = 0.0

    def step(self, number: int, strategy: Strategy, trace: Trace) -> None:
        """Make a step as the training loop does; time in the strategy gets a span."""
        layer_s = self._cluster.step_s * (1 + self._cluster.jitter * self._random.random()) / len(self.buckets)
        self._hook(trace, partial(strategy.begin_step, number))
        for bucket in reversed(self.buckets):
            self._hook(trace, partial(strategy.before_forward, bucket))
            self._compute(layer_s * _FORWARD_SHARE)
        for bucket in self.buckets:
            self._compute(layer_s * (1 - _FORWARD_SHARE))
            self.gradients.array[bucket.start : bucket.stop] = 1.0
            strategy.gradient_final(bucket)
        self._hook(trace, partial(strategy.finish_step, number, self._update))

    def _compute(self, nominal_s: float) -> None:
        start_s = self._transport.now_s
        self._transport.compute(nominal_s)
        self.computed_s += self._transport.now_s - start_s

    def _hook(self, trace: Trace, hook: Any) -> None:
        start_s = trace.now_s()
        hook()
        if trace.now_s() > start_s:
            trace.add(Span(_HOOKS, EXCHANGE, start_s, trace.now_s()))

    def _update(self, bucket: Bucket, scale: float) -> None:
        part = slice(bucket.start, bucket.stop)
        self.weights.array[part] -= _RATE * np.float32(scale) * self.gradients.array[part]


def _train(
    setting: Setting, cluster: Cluster, num_steps: int, traces: dict[int, Trace], transport: SimTransport
) -> Worker:
    rank, world_size = transport.group.rank, transport.group.world_size
    trace = traces[rank] = Trace(rank, clock_s=lambda: transport.now_s)
    steps = _Steps(setting, cluster, transport)
    collectives = PlannedCollectives(transport, lambda _num_bytes: setting.collective)
    forever = partial(transport.deadline, math.inf)
    barrier = collectives.planned("barrier", dissemination_barrier(rank, world_size), steps.weights.part(0, 0))
    traits, seat = KINDS[setting.name].traits, None
    if traits.has_center:
        size = len(steps.weights.array)
        center = WindowCenter(transport, size, with_velocity=traits.has_velocity, with_locks=traits.has_locks)
        seat = CenterSeat(center, rank == 0)
    buffers = Buffers(steps.weights, steps.gradients)
    strategy = build_strategy(setting.config, collectives, steps.buckets, buffers, forever, seat)
    barrier.run(forever())
    start_s, ends_s = transport.now_s, []
    trace.is_active = is_watched = isinstance(steps.weights.window, WatchedWindow)
    for number in range(num_steps):
        steps.step(number, strategy, trace)
        ends_s.append(transport.now_s - start_s)
    trace.is_active = False
    # A worker that has ended still answers those that need it.
    strategy.drain()
    barrier.run(forever())
    spans = _told(trace.take(), start_s, ends_s) if is_watched else []
    return Worker(tuple(spans), tuple(ends_s), steps.computed_s)


def _told(spans: Sequence[Span], start_s: float, ends_s: Sequence[float]) -> list[Span]:
    """A worker's spans from its notes: one kind at a time, without gaps; and the exchanges behind them."""
    noted: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        noted[span.stream].append(span._replace(start_s=span.start_s - start_s, stop_s=span.stop_s - start_s))
    hooks, own, behind = noted[_HOOKS], noted[""], noted[_BEHIND]
    layers = [(hooks, EXCHANGE), ([s for s in behind if s.name == WAIT], WAIT)]
    layers += [([s for s in own if s.name == kind], kind) for kind in (EXCHANGE, WAIT)]
    edges = {0.0, ends_s[-1], *ends_s, *(edge for span in (*hooks, *own, *behind) for edge in span[2:4])}
    moments = sorted(edge for edge in edges if 0.0 <= edge <= ends_s[-1])
    found: list[Span] = []
    for start, stop in pairwise(moments):
        middle = (start + stop) / 2
        kind = COMPUTE
        for layer, name in layers:
            if any(span.start_s <= middle < span.stop_s for span in layer) and (kind != COMPUTE or layer is hooks):
                kind = name
        _grow(found, Span("", kind, start, stop), ends_s)
    return found + _joined(behind)


def _grow(found: list[Span], span: Span, ends_s: Sequence[float]) -> None:
    """Join spans of one kind; each step's computation is a span of its own."""
    last = found[-1] if found else None
    goes_on = last is not None and last.name == span.name and last.stop_s == span.start_s
    if last is not None and goes_on and not (span.name == COMPUTE and span.start_s in ends_s):
        found[-1] = last._replace(stop_s=span.stop_s)
    else:
        found.append(span)


def _joined(behind: Sequence[Span]) -> list[Span]:
    """Messages of one exchange, one after the other, as one."""
    joined: list[Span] = []
    for span in sorted(behind, key=lambda span: span.start_s):
        if joined and span.start_s <= joined[-1].stop_s + 1e-9:
            joined[-1] = joined[-1]._replace(stop_s=max(joined[-1].stop_s, span.stop_s))
        else:
            joined.append(span._replace(name=EXCHANGE))
    return joined
