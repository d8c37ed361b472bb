"""The measuring jobs of a rank: the time of a net's layers, and the speed of a setting of workers and threads."""

import math
import statistics
import time
from dataclasses import asdict
from functools import partial

from samovar.core.device import BF16
from samovar.data.reader import BatchReader
from samovar.frontends.caffe.costs import LayerCounts, LayerSeconds, NetTimer, layer_counts
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net, load_source
from samovar.frontends.caffe.layers.registry import DATA_TYPES
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import load_solver
from samovar.frontends.caffe.spec import Phase
from samovar.model.device import computed
from samovar.model.half import use_half
from samovar.report.records import READING, LayerTime, Probed, Timed
from samovar.training import build
from samovar.training.context import RankContext
from samovar.training.evaluation import gather
from samovar.training.loop import StepMade, train_at
from samovar.training.near import near_of
from samovar.training.opening import open_training

DEFAULT_NUM_ITERATIONS = 50  # Caffe's


def run_timing(context: RankContext) -> None:
    """Time the net's passes and report them; raises SamovarError."""
    config = context.config
    definition = _definition(context)
    phase: Phase = "TEST" if config.phase == "TEST" else "TRAIN"
    with build.open_reader(definition, phase, config, 0) as reader:
        net = build.net_for(definition, reader, 0, config)
        net.place(context.device)
        timer = NetTimer(net, partial(computed, context.device))
        if config.precision == BF16:
            use_half(info.parameter for info in net.parameter_infos)
        sources = [outline.name for outline in net.layers_for_caffemodel() if outline.type in DATA_TYPES]
        reading = LayerSeconds("+".join(sources), READING)
        initial_loss = timer.warm_up(reader.read(0, reader.batch_size))
        for iteration in range(config.iterations or DEFAULT_NUM_ITERATIONS):
            context.at_boundary(iteration)
            started_s = time.perf_counter()
            batch = reader.read(iteration * reader.batch_size, reader.batch_size)
            reading.forward_s += time.perf_counter() - started_s
            timer.run(batch)
    for text in (*definition.warnings, *build.computing_notices(config, context.device)):
        context.tell("warning", text)
    context.writer.write(_timed(context, net, reader, timer, reading, initial_loss))


def _definition(context: RankContext) -> CaffeNetDefinition:
    config = context.config
    if config.is_solver:
        return load_source(load_solver(config.model).net, config.level, config.stages)
    return load_net(config.model, config.level, config.stages)


def _timed(
    context: RankContext,
    net: CaffeNet,
    reader: BatchReader,
    timer: NetTimer,
    reading: LayerSeconds,
    initial_loss: float | None,
) -> Timed:
    """Means in milliseconds; reading, if any, is the first layer, and is not in the sums."""
    seconds, config = timer.seconds, context.config
    num_iterations = len(seconds.passes_s)

    def mean_ms(total_s: float) -> float:
        return 1e3 * total_s / num_iterations

    counts = layer_counts(net)

    def layer_time(layer: LayerSeconds) -> LayerTime:
        counted = asdict(counts.get(layer.name, LayerCounts()))
        forward_ms, backward_ms = mean_ms(layer.forward_s), mean_ms(layer.backward_s)
        return LayerTime(name=layer.name, type=layer.type, forward_ms=forward_ms, backward_ms=backward_ms, **counted)

    layers = [reading, *seconds.layers] if reading.name else seconds.layers
    hosts, rank = config.hosts, context.transport.group.rank
    return Timed(
        rank=rank,
        host="" if hosts is None else hosts.of(rank).name,
        net_name=net.name or net.path.stem,
        phase=config.phase,
        batch_size=reader.batch_size,
        threads=config.threads_per_worker,
        precision=config.precision,
        iterations=num_iterations,
        layers=tuple(map(layer_time, layers)),
        forward_ms=mean_ms(seconds.forward_s),
        backward_ms=mean_ms(seconds.backward_s),
        iteration_ms=tuple(1e3 * passed_s for passed_s in seconds.passes_s),
        initial_loss=initial_loss,
    )


WARM_UP_STEPS = 3
MEASURED_S = 2.0
LEAST_STEPS, MOST_STEPS = 5, 500


def run_probe(context: RankContext) -> None:
    """Train some steps from the start and report the speed; save and test nothing. Raises SamovarError."""
    config = context.config
    with open_training(context) as opened, near_of(context) as near:
        caffe = opened.caffe
        learner = build.build_learner(config, caffe, opened.net, context.transport, None, connect_near=near)
        with opened.stream(learner.slices, 0) as stream:
            worker = build.build_worker(learner, stream, config, learner.solver, None)
            pace = ProbePace(context, caffe.max_iter)
            train_at(pace, worker)
            learner.strategy.drain()
    if context.is_first:
        rate = opened.global_batch * caffe.iter_size / statistics.median(pace.seconds)
        stopped = context.at_boundary(len(pace.seconds)).stop_signal
        context.writer.write(Probed(samples_per_second=rate, num_steps=len(pace.seconds), stop_signal=stopped))


class ProbePace:
    """A `samovar.training.loop.Pace`: some steps that do not count, then as many as all ranks agree to measure.

    `seconds` are those of the steps that count. A learning-rate policy knows `max_iter` steps.
    """

    def __init__(self, context: RankContext, max_iter: int) -> None:
        self.steps_done = 0
        self.seconds: list[float] = []
        self._context = context
        self._last_step = max(0, max_iter - 1)
        self._count = 0

    def begin(self) -> None:
        """Start immediately."""

    def next_rate_step(self) -> int | None:
        is_over = self._count and len(self.seconds) == self._count
        return None if is_over else min(self.steps_done, self._last_step)

    def stepped(self, made: StepMade) -> None:
        self.steps_done += 1
        self._context.at_boundary(self.steps_done)
        if self.steps_done > WARM_UP_STEPS:
            self.seconds.append(made.seconds)
        elif self.steps_done == WARM_UP_STEPS:
            slowest_s = float(gather(self._context.transport, [made.seconds], self._context.config.timeout_s).max())
            self._count = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(MEASURED_S / max(slowest_s, 1e-6))))

    def end(self) -> None:
        """Return no outcome: only `seconds` count."""
