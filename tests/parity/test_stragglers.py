"""A rank whose backward pass takes 200 ms longer is named within 12 steps: whole training loops, ranks as threads.

It takes these from the moment when the others have come to the exchange, and as long again as its step has taken so
far where that is longer, so that it is the last by a share of the step that counts, however busy the machine is.
"""

import threading
import time
from functools import partial
from typing import Any

import torch

from samovar.collectives.engine import RecordExchange
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.data.stream import Batch
from samovar.report.steps import Arrival, StepDone, StragglerWatch
from samovar.solver.flat import Solver
from samovar.solver.policy import PolicyConfig, SolverConfig
from samovar.strategies.base import Strategy, Update
from samovar.strategies.config import StrategyConfig
from samovar.training.finite import FiniteCheck
from samovar.training.in_step import NUM_RECORD_FIELDS, InStep
from samovar.training.loop import Duties, Observer, Requests, Schedule, train_at
from samovar.training.step import Parts, Worker
from samovar.transports.shm import ShmTransport
from tests.parity.lenet import BATCH, Lenet, random_batch
from tests.threads import on_threads

TIMEOUT_S = 30.0
NUM_STEPS = 12
WORLD_SIZE, SLOW_RANK = 3, 1
DELAY_S = 0.2
SOLVER = SolverConfig("SGD", PolicyConfig("fixed", 1e-3))


class Same:
    """One batch, again and again."""

    def __init__(self, world_size: int) -> None:
        self._batch = Batch(0, random_batch(), BATCH, BATCH * world_size)

    def next(self, _deadline: Deadline) -> Batch:
        return self._batch


class Seen(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.done: list[StepDone] = []

    def step_done(self, done: StepDone) -> None:
        self.done.append(done)


class Slow(torch.autograd.Function):
    """The identity, whose backward pass takes its time, when all others have arrived: half of the step or more."""

    @staticmethod
    def forward(ctx, x, arrived):
        ctx.arrived, ctx.began_s = arrived, time.monotonic()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        for _ in range(WORLD_SIZE - 1):
            assert ctx.arrived.acquire(timeout=TIMEOUT_S)
        time.sleep(max(DELAY_S, time.monotonic() - ctx.began_s))
        return dy, None


def tell_arrivals(strategy: Strategy, arrived: threading.Semaphore) -> None:
    """From now on each exchange of this rank's is counted in `arrived` when it begins."""
    finish_step = strategy.finish_step

    def finish_counted(step: int, update: Update) -> None:
        arrived.release()
        finish_step(step, update)

    strategy.finish_step = finish_counted  # type: ignore[method-assign]


def train(arrived: threading.Semaphore, transport: ShmTransport) -> list[StepDone]:
    group = transport.group
    lenet = Lenet.make(transport, StrategyConfig(), TIMEOUT_S)
    if group.rank == SLOW_RANK:
        lenet.net.layer_modules[2].register_forward_hook(lambda _module, _inputs, tops: (Slow.apply(tops[0], arrived),))
    else:
        tell_arrivals(lenet.strategy, arrived)
    weights = lenet.model.weights
    solver = Solver(SOLVER, weights, FlatBuffer(weights.layout, lenet.gradients), {})
    parts = Parts(1, group.world_size, 1)
    batches: Any = Same(group.world_size)
    worker = Worker(lenet.model, solver, lenet.strategy, batches, parts, TIMEOUT_S)
    seen = Seen()
    schedule = Schedule(0, NUM_STEPS, save_at_end=False, test_at_end=False, test_at_start=False)
    pace = InStep(
        Duties(schedule, lambda: iter(()), lambda _steps: None, seen),
        schedule,
        RecordExchange(transport, NUM_RECORD_FIELDS),
        lenet.strategy.exchanges_at,
        worker.forward,
        lambda _steps: Requests(),
        FiniteCheck(weights, lenet.strategy, solver, group.rank),
        TIMEOUT_S,
    )
    train_at(pace, worker)
    return seen.done


def test_a_rank_with_a_slow_backward_pass_is_named() -> None:
    found = on_threads(WORLD_SIZE, partial(train, threading.Semaphore(0)))
    for rank, done in enumerate(found):
        watch = StragglerWatch()
        said = [watch.take(Arrival(one.last_rank, one.late_s, one.seconds)) for one in done]
        named = [sentence for sentence in said if sentence is not None]
        assert named, f"rank {rank} was told of nobody"
        assert named[0].startswith(f"rank {SLOW_RANK} is slower")
    assert all(one.times.backward_s >= DELAY_S for one in found[SLOW_RANK])
