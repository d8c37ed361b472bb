"""The probing job of a rank: how fast a setting of workers and threads takes the run's own steps."""

import contextlib
import math
import statistics
import time

from samovar.cli import build
from samovar.cli.rank_process import RankContext
from samovar.cli.sharing import portions
from samovar.cli.train_rank import for_large_batch
from samovar.data.stream import BatchStream
from samovar.frontends.caffe.solver import load_solver
from samovar.frontends.caffe.sources import load_source
from samovar.report.records import Probed
from samovar.worker.replicas import gather
from samovar.worker.step import Worker

WARM_UP_STEPS = 3
MEASURED_S = 2.0
LEAST_STEPS, MOST_STEPS = 5, 500


def run_probe(context: RankContext) -> None:
    """Train from the start for some steps and tell how fast; saves and tests nothing. Raises SamovarError."""
    config = context.config
    caffe = load_solver(config.model)
    definition = load_source(caffe.net, config.level, config.stages)
    seed = build.run_seed(config, caffe)
    with contextlib.ExitStack() as stack:
        reader = build.open_reader(definition, "TRAIN", config, seed)
        stack.callback(reader.close)
        caffe = for_large_batch(context, caffe, reader)
        net = build.net_for(definition, reader, seed)
        learner = build.build_learner(config, caffe, net, context.transport, None)
        global_batch = build.global_batch_size(config, reader, caffe.iter_size)
        stream = BatchStream(reader, portions(context.transport.group, global_batch, learner.slices), 0)
        stack.callback(stream.close)
        steps_s = _measure(context, build.build_worker(learner, stream, config, learner.solver, None), caffe.max_iter)
        learner.strategy.drain()
    if context.is_first:
        rate = global_batch * caffe.iter_size / statistics.median(steps_s)
        stopped = context.at_boundary(len(steps_s)).stop_signal
        context.writer.write(Probed(samples_per_second=rate, num_steps=len(steps_s), stop_signal=stopped))


def _measure(context: RankContext, worker: Worker, max_iter: int) -> list[float]:
    """Seconds of each step, after some that do not count; all ranks agree on how many there are."""
    last = max(0, max_iter - 1)  # what a learning-rate policy knows

    def step(number: int) -> float:
        started_s = time.perf_counter()
        worker.step(min(number, last))
        context.at_boundary(number + 1)
        return time.perf_counter() - started_s

    own_s = [step(number) for number in range(WARM_UP_STEPS)][-1]
    slowest_s = float(gather(context.transport, [own_s], context.config.timeout_s).max())
    count = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(MEASURED_S / max(slowest_s, 1e-6))))
    return [step(WARM_UP_STEPS + number) for number in range(count)]
