"""The timing job of a rank: how long a net's layers take."""

import math
import statistics
import time
from contextlib import ExitStack
from functools import partial

from samovar.core.device import BF16
from samovar.data.reader import BatchReader
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net, load_source
from samovar.frontends.caffe.layers.registry import DATA_TYPES
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import load_solver
from samovar.frontends.caffe.spec import Phase
from samovar.frontends.caffe.timing import LayerSeconds, NetTimer
from samovar.model.device import computed, device_notices
from samovar.model.half import precision_warnings, use_half
from samovar.model.model import layout_of
from samovar.report.records import READING, LayerTime, Notice, Probed, Timed
from samovar.training import build
from samovar.training.context import RankContext
from samovar.training.evaluated import gather
from samovar.training.opening import open_training
from samovar.training.run_center import RunCenter
from samovar.training.step import Worker

DEFAULT_NUM_ITERATIONS = 50  # Caffe's


def run_timing(context: RankContext) -> None:
    """Time the net's passes and tell; raises SamovarError."""
    config = context.config
    definition = _definition(context)
    phase: Phase = "TEST" if config.phase == "TEST" else "TRAIN"
    with build.open_reader(definition, phase, config, 0) as reader:
        net = build.net_for(definition, reader, 0, config)
        net.place(context.device)
        timer = NetTimer(net, partial(computed, context.device))
        if config.precision == BF16:
            use_half(info.parameter for info in net.parameter_infos)
        reading = LayerSeconds("+".join(_data_layers(net)), READING)
        initial_loss = timer.warm_up(reader.read(0, reader.batch_size))
        for iteration in range(config.iterations or DEFAULT_NUM_ITERATIONS):
            context.at_boundary(iteration)
            started_s = time.perf_counter()
            batch = reader.read(iteration * reader.batch_size, reader.batch_size)
            reading.forward_s += time.perf_counter() - started_s
            timer.run(batch)
    notices = (
        *definition.warnings,
        *precision_warnings(config.precision, context.device),
        *device_notices(context.device, config.workers, config.device),
    )
    for text in notices:
        context.writer.write(Notice(level="warning", text=text))
    context.writer.write(_timed(context, net, reader, timer, reading, initial_loss))


def _definition(context: RankContext) -> CaffeNetDefinition:
    config = context.config
    if config.is_solver:
        return load_source(load_solver(config.model).net, config.level, config.stages)
    return load_net(config.model, config.level, config.stages)


def _data_layers(net: CaffeNet) -> list[str]:
    return [outline.name for outline in net.layers_for_caffemodel() if outline.type in DATA_TYPES]


def _timed(
    context: RankContext,
    net: CaffeNet,
    reader: BatchReader,
    timer: NetTimer,
    reading: LayerSeconds,
    initial_loss: float | None,
) -> Timed:
    """Means in milliseconds; reading is the first layer, if there is any, and is in no sum."""
    seconds, config = timer.seconds, context.config
    num_iterations = len(seconds.passes_s)

    def mean_ms(total_s: float) -> float:
        return 1e3 * total_s / num_iterations

    layers = [reading, *seconds.layers] if reading.name else seconds.layers
    return Timed(
        net_name=net.name or net.path.stem,
        phase=config.phase,
        batch_size=reader.batch_size,
        threads=config.threads_per_worker,
        precision=config.precision,
        iterations=num_iterations,
        layers=tuple(
            LayerTime(
                name=layer.name,
                type=layer.type,
                forward_ms=mean_ms(layer.forward_s),
                backward_ms=mean_ms(layer.backward_s),
            )
            for layer in layers
        ),
        forward_ms=mean_ms(seconds.forward_s),
        backward_ms=mean_ms(seconds.backward_s),
        iteration_ms=tuple(1e3 * passed_s for passed_s in seconds.passes_s),
        initial_loss=initial_loss,
    )


WARM_UP_STEPS = 3
MEASURED_S = 2.0
LEAST_STEPS, MOST_STEPS = 5, 500


def run_probe(context: RankContext) -> None:
    """Train from the start for some steps and tell how fast; saves and tests nothing. Raises SamovarError."""
    config = context.config
    with ExitStack() as stack:
        opened = stack.enter_context(open_training(context))
        caffe = opened.caffe
        center = None
        if config.strategy.needs_center:
            layout = layout_of({info.name: info.parameter for info in opened.net.parameter_infos})
            center = RunCenter(context, layout, 0, caffe.max_iter, stack)
        learner = build.build_learner(config, caffe, opened.net, context.transport, None, center=center)
        with opened.stream(learner.slices, 0) as stream:
            worker = build.build_worker(learner, stream, config, learner.solver, None)
            steps_s = _measure(context, worker, caffe.max_iter)
            learner.strategy.drain()
    if context.is_first:
        rate = opened.global_batch * caffe.iter_size / statistics.median(steps_s)
        stopped = context.at_boundary(len(steps_s)).stop_signal
        context.writer.write(Probed(samples_per_second=rate, num_steps=len(steps_s), stop_signal=stopped))


def _measure(context: RankContext, worker: Worker, max_iter: int) -> list[float]:
    """Seconds of each step, after some that do not count; all ranks agree on how many there are."""
    last = max(0, max_iter - 1)  # what a learning-rate policy knows

    def step(number: int) -> float:
        started_s = time.perf_counter()
        worker.step(number, min(number, last))
        context.at_boundary(number + 1)
        return time.perf_counter() - started_s

    own_s = [step(number) for number in range(WARM_UP_STEPS)][-1]
    slowest_s = float(gather(context.transport, [own_s], context.config.timeout_s).max())
    count = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(MEASURED_S / max(slowest_s, 1e-6))))
    return [step(WARM_UP_STEPS + number) for number in range(count)]
