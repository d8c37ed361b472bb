"""One run: N workers train in virtual time with a strategy's own code, and what they took for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.core.layout import ALIGNMENT_ELEMENTS, Bucket, Layout, ParameterSpec, rounded_up
from samovar.predict.center import CenterServers, SimulatedCenter
from samovar.predict.cluster import Cluster
from samovar.predict.work import Segment, Work
from samovar.report.profile import BYTES_OF_A_FLOAT
from samovar.strategies.base import Buffers, CenterSeat, Strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.transports.base import Array, Region
from samovar.transports.sim.network import PortUse, ServerMemory
from samovar.transports.sim.world import SimRun, SimTransport, simulated

# A net is simulated with this many numbers, each of which stands for several; more for more workers, up to a limit.
_LEAST_ELEMENTS, _ELEMENTS_OF_A_WORKER, _MOST_ELEMENTS = 1 << 12, 64, 1 << 15
_WARM_EXCHANGES = 1
_NOTHING = 1e-9  # of a step: the clock's rounding
_STEPS_WITH_JITTER = 64  # of all workers together, at least: each draws its own


@dataclass(frozen=True, slots=True)
class Scaled:
    """A net's segments as the simulator has them: last first, each of whole cache lines.

    A float32 there stands for `magnification` of the net's own.
    """

    layout: Layout
    magnification: float

    @classmethod
    def of(cls, segments: Sequence[Segment], num_workers: int) -> "Scaled":
        """Sizes in proportion, at least a line each; the sum is right."""
        total = sum(segment.num_parameters for segment in segments)
        for_workers = min(_ELEMENTS_OF_A_WORKER * num_workers, _MOST_ELEMENTS)
        wanted = max(_LEAST_ELEMENTS, for_workers, 2 * ALIGNMENT_ELEMENTS * len(segments))
        magnification = total / wanted
        specs: list[ParameterSpec] = []
        seen = placed = 0
        for index, segment in reversed(list(enumerate(segments))):
            seen += segment.num_parameters
            lines = round((seen / magnification - placed) / ALIGNMENT_ELEMENTS)
            size = ALIGNMENT_ELEMENTS * max(1, lines)
            placed += size
            specs.append(ParameterSpec(str(index), (size,)))
        return cls(Layout.pack(specs), total / placed)

    def buckets(self, lengths: Sequence[int] | None, size_bytes: int | None) -> tuple[Bucket, ...]:
        """In this cut, else of that many of the net's own bytes."""
        if lengths is not None:
            return self.layout.cut(lengths)
        return self.layout.buckets(None if size_bytes is None else max(1, round(size_bytes / self.magnification)))


@dataclass(frozen=True, slots=True)
class SharingChoice:
    """A strategy, the cut of the net, and the plan of an all-reduce of a number of bytes."""

    config: StrategyConfig
    collective: Callable[[int], str]
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """A simulated run. Seconds are means of workers over measured steps; shares are of the measured time.

    `forward_s`, `backward_s` and `update_s` include jitter. `exposed_s` is the rest of a step: waiting for data or
    slower workers. `bytes_per_step` is what the busiest worker sends. `busy` has a share of the time for each level:
    how long its busiest port sent, plus how long it received; and how long servers' memory worked. `staleness` is the
    mean at a center.
    """

    step_s: float
    samples_per_s: float
    forward_s: float
    backward_s: float
    update_s: float
    exposed_s: float
    bytes_per_step: float
    busy: dict[str, float]
    settled: StrategyConfig
    num_buckets: int
    plan: str
    staleness: float | None = None
    num_messages: int = 0


@dataclass(slots=True)
class _Told:
    """The measured steps of one worker."""

    num_steps: int = 0
    from_s: float = 0.0
    until_s: float = 0.0
    computed_s: float = 0.0
    parts_s: list[float] = field(default_factory=list)
    num_bytes: int = 0
    staleness: float | None = None
    use: list[PortUse] = field(default_factory=list)
    memory_s: list[float] = field(default_factory=list)


def run(
    choice: SharingChoice, cluster: Cluster, work: Work, num_workers: int, steps: tuple[int, int] | None = None
) -> SimulatedSteps:
    """Let the workers train until the strategy has exchanged some times, and measure behind the first of these.

    `steps` are those before measuring, and those measured, if they are to be others.

    Cost: about 20 us for each message and each computation.
    """
    settled = resolved(choice.config, num_workers)
    scaled = Scaled.of(work.segments, num_workers)
    servers = servers_of(cluster, num_workers, work) if settled.needs_center else None
    warm, measured = steps or num_steps(settled, cluster, num_workers)
    buckets = scaled.buckets(choice.lengths, settled.bucket_size_bytes)
    program = partial(_train, choice, settled, cluster, work, scaled, buckets, servers, (warm, measured))
    server_hosts = cluster.server_hosts(num_workers) if servers else ()
    made = simulated(program, num_workers, cluster.machine, scaled.magnification, server_hosts)
    return _outcome(made, choice, settled, cluster, work, scaled, buckets)


def num_steps(settled: StrategyConfig, cluster: Cluster, num_workers: int) -> tuple[int, int]:
    """Steps before measuring, and measured ones: whole periods of exchanges, two if workers go their own ways.

    Nothing is under way after a step of strategies without a center whose exchange ends in its step. The first steps
    of these are as good as later ones.
    """
    period = settled.sync_period_steps or 1
    measured = 2 * period if settled.needs_center else period
    if cluster.worker.jitter:
        measured = rounded_up(max(measured, -(-_STEPS_WITH_JITTER // num_workers)), period)
    is_prompt = settled.overlap in (None, "none", "backward") and not settled["delay_steps"]
    ends_in_its_step = is_prompt and not settled.needs_center
    return 0 if ends_in_its_step else _WARM_EXCHANGES * period, measured


def servers_of(cluster: Cluster, num_workers: int, work: Work) -> CenterServers:
    memories = [ServerMemory(num_workers + index) for index in range(cluster.server.count)]
    return CenterServers(memories, BYTES_OF_A_FLOAT * (work.num_parameters + work.num_unlearned), cluster.server.memory)


def _train(
    choice: SharingChoice,
    settled: StrategyConfig,
    cluster: Cluster,
    work: Work,
    scaled: Scaled,
    buckets: Sequence[Bucket],
    servers: CenterServers | None,
    steps: tuple[int, int],
    transport: SimTransport,
) -> _Told:
    """One worker. It starts with the others, and ends when all have ended."""
    place = Workplace(transport, scaled, buckets, choice.collective, settled, cluster.node.workers, servers)
    place.meet()
    segments = [[work.segments[int(entry.spec.name)] for entry in bucket.entries] for bucket in buckets]
    worker = SimulatedWorker(work, segments, place, cluster.worker.jitter)
    told = _measured(worker, place.strategy, steps, transport, servers)
    place.strategy.drain()
    place.meet()
    return told


class Workplace:
    """One worker's memory, and its strategy on it. `meet` waits for all workers.

    `start` fills the weights before the strategy is made.
    """

    def __init__(
        self,
        transport: SimTransport,
        scaled: Scaled,
        buckets: Sequence[Bucket],
        collective: Callable[[int], str],
        settled: StrategyConfig,
        ranks_per_node: int,
        servers: CenterServers | None,
        start: Callable[[Array], None] = lambda _weights: None,
    ) -> None:
        rank, world_size = transport.group.rank, transport.group.world_size
        size = scaled.layout.num_elements
        self.transport, self.buckets, self.settled = transport, buckets, settled
        window = transport.open_window("model", 2 * BYTES_OF_A_FLOAT * size, 0)
        weights, gradients = (Region.of(window, half * BYTES_OF_A_FLOAT * size, size, np.float32) for half in range(2))
        self.weights, self.gradients = weights.array, gradients.array
        start(self.weights)
        collectives = PlannedCollectives(
            transport, lambda num_bytes: collective(round(num_bytes * scaled.magnification)), ranks_per_node
        )
        self._barrier = collectives.planned("barrier", dissemination_barrier(rank, world_size), weights.part(0, 0))
        seat = None if servers is None else CenterSeat(SimulatedCenter(transport, servers, size), rank == 0)
        self._forever = partial(transport.deadline, math.inf)
        buffers = Buffers(weights, gradients)
        self.strategy = build_strategy(settled, collectives, buckets, buffers, self._forever, seat)

    def meet(self) -> None:
        self._barrier.run(self._forever())


def _measured(
    worker: "SimulatedWorker",
    strategy: Strategy,
    steps: tuple[int, int],
    transport: SimTransport,
    servers: CenterServers | None,
) -> _Told:
    told = _Told(num_steps=steps[1])
    for step in range(sum(steps)):
        if step == steps[0]:
            worker.settle()
            told.from_s, told.computed_s, told.num_bytes = transport.now_s, -worker.computed_s, -transport.bytes_sent
            told.parts_s = [-seconds for seconds in worker.parts_s]
            _look(told, transport, servers)
        worker.advance(step, strategy)
    worker.settle()
    told.until_s = transport.now_s
    told.parts_s = [sum(pair) for pair in zip(worker.parts_s, told.parts_s, strict=True)]
    told.computed_s += worker.computed_s
    told.num_bytes += transport.bytes_sent
    _look(told, transport, servers)
    staleness = getattr(strategy, "staleness", None)
    told.staleness = None if staleness is None else staleness.mean
    return told


def _look(told: _Told, transport: SimTransport, servers: CenterServers | None) -> None:
    """On the last worker, which is not on the node of a server if there are several: how busy everything was so far."""
    if transport.group.rank == transport.group.world_size - 1:
        told.use.append(transport.port_use())
        told.memory_s.append(max(one.busy_s(transport.now_s) for one in servers.memories) if servers else 0.0)


_FORWARD, _BACKWARD, _UPDATE = range(3)


class SimulatedWorker:
    """The computation of one worker, step by step, as `samovar.training.step` orders it; `segments` of each bucket.

    `parts_s` are the seconds asked for forward, backward and for updates, `computed_s` those that they all took.
    """

    def __init__(self, work: Work, segments: Sequence[Sequence[Segment]], place: Workplace, jitter: float) -> None:
        settled, transport = place.settled, place.transport
        self.computed_s = self._owed_s = 0.0
        self.parts_s = [0.0, 0.0, 0.0]
        self._work, self._buckets, self._jitter = work, place.buckets, jitter
        self._period = settled.sync_period_steps or 1
        shares_gradients = not settled.exchanges_weights or settled.traits.in_groups
        self._looks_at_each_step = shares_gradients or settled.overlap == "step"
        self._is_due = True
        self._transport = transport
        self._random = Random(transport.group.rank)
        self._update_s_of_an_element = work.update_s / len(place.weights)
        self._forward_s = [sum(segment.forward_s for segment in own) for own in segments]
        # Workers that add up gradients in step make large ones in their place.
        is_fresh = settled.exchanges_weights or settled.needs_center or transport.group.world_size == 1
        self._backward_s = [sum(one.backward_s - (0 if is_fresh else one.fresh_s) for one in own) for own in segments]
        self._forward_s[-1] += work.before_s
        self._all_forward_s, self._all_backward_s = sum(self._forward_s), sum(self._backward_s) + work.after_s

    def advance(self, number: int, strategy: Strategy) -> None:
        """Time passes only where the strategy may look at it: the rest is summed up."""
        longer = 1.0 + self._jitter * self._random.random() if self._jitter else 1.0
        self._hook(strategy.begin_step, number)
        for bucket in reversed(self._buckets):
            self._hook(strategy.before_forward, bucket)
            self._owed_s += longer * self._forward_s[bucket.index]
        self.make_gradients()
        for bucket in self._buckets:
            self._owed_s += longer * self._backward_s[bucket.index]
            self._hook(strategy.gradient_final, bucket)
        self._owed_s += longer * self._work.after_s
        self.parts_s[_FORWARD] += longer * self._all_forward_s
        self.parts_s[_BACKWARD] += longer * self._all_backward_s
        is_end = (number + 1) % self._period == 0
        self._is_due = self._looks_at_each_step or is_end or strategy.exchanges_at(number)
        if self._is_due:
            self.settle()
        strategy.finish_step(number, self.update)

    def make_gradients(self) -> None:
        """All weights of the step have come. Nothing is computed where only times count."""

    def update(self, bucket: Bucket, _scale: float) -> None:
        update_s = self._update_s_of_an_element * bucket.size
        self._owed_s += update_s
        self.parts_s[_UPDATE] += update_s
        if self._is_due:
            self.settle()

    def settle(self) -> None:
        """Compute for as long as has been summed up."""
        if self._owed_s:
            start_s, owed_s, self._owed_s = self._transport.now_s, self._owed_s, 0.0
            self._transport.compute(owed_s)
            self.computed_s += self._transport.now_s - start_s

    def _hook(self, hook: Callable[..., None], *arguments: object) -> None:
        """Call it; one that a strategy has not made its own does nothing."""
        if getattr(hook, "__func__", None) not in _IDLE_HOOKS:
            self.settle()
            hook(*arguments)


_IDLE_HOOKS = {Strategy.begin_step, Strategy.before_forward, Strategy.gradient_final}


def _outcome(
    made: SimRun[_Told],
    choice: SharingChoice,
    settled: StrategyConfig,
    cluster: Cluster,
    work: Work,
    scaled: Scaled,
    buckets: Sequence[Bucket],
) -> SimulatedSteps:
    told = made.results
    seconds = _seconds(told, settled)
    step_s = sum(seconds) / sum(one.num_steps for one in told)
    parts_s = _computed(told)
    compute_s = sum(parts_s)
    rates = [one.num_steps / taken_s for one, taken_s in zip(told, seconds, strict=True)]
    known = [one.staleness for one in told if one.staleness is not None]
    largest = max(bucket.size for bucket in buckets) * BYTES_OF_A_FLOAT
    server_hosts = cluster.server_hosts(len(told)) if settled.needs_center else ()
    return SimulatedSteps(
        step_s=step_s,
        samples_per_s=work.batch_size * sum(rates),
        forward_s=parts_s[_FORWARD],
        backward_s=parts_s[_BACKWARD],
        update_s=parts_s[_UPDATE],
        exposed_s=step_s - compute_s if step_s - compute_s > _NOTHING * step_s else 0.0,
        bytes_per_step=max(one.num_bytes for one in told) / told[0].num_steps,
        busy=_busy(told[-1], len(told), server_hosts),
        settled=settled,
        num_buckets=len(buckets),
        plan=_plan(choice, settled, round(largest * scaled.magnification), len(told)),
        staleness=sum(known) / len(known) if known else None,
        num_messages=made.num_messages,
    )


def _computed(told: Sequence[_Told]) -> list[float]:
    """Of a mean step, the seconds of forward, backward and updates: parts of the computation as they were asked."""
    num_steps, asked_s = sum(one.num_steps for one in told), sum(sum(one.parts_s) for one in told)
    longer = sum(one.computed_s for one in told) / asked_s if asked_s else 0.0
    return [longer * sum(one.parts_s[part] for one in told) / num_steps for part in (_FORWARD, _BACKWARD, _UPDATE)]


def _seconds(told: Sequence[_Told], settled: StrategyConfig) -> list[float]:
    """Each worker's measured time. Where all go in step, one that leaves an exchange early waits at the next one."""
    if settled.needs_center:
        return [one.until_s - one.from_s for one in told]
    taken_s = max(one.until_s for one in told) - max(one.from_s for one in told)
    return [taken_s] * len(told)


def _plan(choice: SharingChoice, settled: StrategyConfig, num_bytes: int, num_workers: int) -> str:
    """Of the largest bucket, or of a group; "" if workers have no plan in common."""
    if settled.traits.in_groups:
        return settled.collective if settled.group_size != 1 else ""
    if num_workers == 1 or settled.needs_center:
        return ""
    return "to owners" if settled.has_owners else choice.collective(num_bytes)


def _busy(last: _Told, num_workers: int, server_hosts: Sequence[int]) -> dict[str, float]:
    """Of each level, how busy the busiest one was, in both directions together; nodes with a server are apart."""
    before, after = last.use
    hosts = {host: new - old for host, (old, new) in enumerate(zip(before.hosts_s, after.hosts_s, strict=True))}
    places = _differences(before.places_s, after.places_s)  # inside nodes: of workers, and behind these of servers
    levels = {
        "a worker's port": places[:num_workers],
        "a node's link": [busy_s for host, busy_s in hosts.items() if host not in server_hosts],
        "the server's link": [*(hosts[host] for host in server_hosts), *places[num_workers:]],
        "a rack's uplink": _differences(before.racks_s, after.racks_s),
        "the server's memory": _differences(last.memory_s[:1], last.memory_s[1:]),
    }
    return {name: max(busy_s, default=0.0) / (last.until_s - last.from_s) for name, busy_s in levels.items()}


def _differences(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [new - old for old, new in zip(before, after, strict=True)]
