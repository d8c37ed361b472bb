"""The probing job of a rank: how fast a setting of workers and threads takes the run's own steps."""

import math
import statistics
import time
from contextlib import ExitStack

from samovar.model.model import layout_of
from samovar.report.records import Probed
from samovar.training import build
from samovar.training.context import RankContext
from samovar.training.opening import open_training
from samovar.training.replicas import gather
from samovar.training.run_center import RunCenter
from samovar.training.step import Worker

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
