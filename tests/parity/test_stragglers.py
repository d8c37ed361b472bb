"""A rank whose backward pass takes 200 ms longer is named within 20 steps: whole training loops, ranks as threads."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.records import RecordExchange
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.data.stream import Batch
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import build_net
from samovar.model.model import Model, layout_of
from samovar.report.time_spent import Arrival, StragglerWatch
from samovar.strategies.base import Buffers
from samovar.strategies.build import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport, create_segment
from samovar.worker.step import Parts, Worker
from samovar.worker.training import NUM_RECORD_FIELDS, Requests, Schedule, StepDone, Training

TIMEOUT_S = 30.0
NUM_STEPS = 20
BATCH = 4
SLOW_RANK = 1
DELAY_S = 0.2
NET = Path(__file__).parents[2] / "examples" / "lenet" / "digits_train_test.prototxt"


class Same:
    """One batch, again and again."""

    def __init__(self, world_size: int) -> None:
        tensors = {"data": torch.rand(BATCH, 1, 28, 28), "label": torch.randint(0, 10, (BATCH,))}
        self._batch = Batch(0, tensors, BATCH, BATCH * world_size)

    def next(self, _deadline: Deadline) -> Batch:
        return self._batch


class Seen:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.done: list[StepDone] = []

    def step_done(self, done: StepDone) -> None:
        self.done.append(done)

    def tested(self, *_: object) -> None: ...
    def forwarded(self, *_: object) -> None: ...
    def ended(self) -> None: ...


class Slow(torch.autograd.Function):
    """The identity, whose backward pass takes its time."""

    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, dy):
        time.sleep(DELAY_S)
        return dy


def train(transport: ShmTransport) -> list[StepDone]:
    group = transport.group
    net = build_net(load_net(NET), "TRAIN", {"data": (BATCH, 1, 28, 28), "label": (BATCH,)}, 1)
    if group.rank == SLOW_RANK:
        net.layer_modules[2].register_forward_hook(lambda _module, _inputs, tops: (Slow.apply(tops[0]),))
    parameters = {info.name: info.parameter for info in net.parameter_infos}
    layout = layout_of(parameters)
    size = layout.num_elements
    window = transport.open_window("model", 2 * size * 4, 0)
    weights, gradients = (Region.of(window, half * size * 4, size, np.float32) for half in range(2))
    buckets = layout.buckets()
    model = Model(net, parameters, FlatBuffer(layout, weights.array), FlatBuffer(layout, gradients.array), buckets)
    collectives = PlannedCollectives(transport, lambda _num_bytes: "tree")
    deadline = partial(Deadline.after, TIMEOUT_S)
    strategy = build_strategy(StrategyConfig(), collectives, buckets, Buffers(weights, gradients), deadline)
    solver = type("NoUpdate", (), {"update": lambda *_: None})()
    worker = Worker(model, solver, strategy, Same(group.world_size), Parts(1, group.world_size, 1), TIMEOUT_S)
    seen = Seen()
    Training(
        worker,
        RecordExchange(transport, NUM_RECORD_FIELDS),
        Schedule(0, NUM_STEPS, save_at_end=False, test_at_end=False, test_at_start=False),
        lambda: iter(()),
        worker.forward,
        seen,
        lambda _steps: None,
        lambda _steps: Requests(),
        TIMEOUT_S,
    ).run()
    return seen.done


def test_a_rank_with_a_slow_backward_pass_is_named() -> None:
    world_size = 3
    descriptor = create_segment(world_size)
    transports = [ShmTransport(descriptor, Group(rank, world_size), oversubscribed=True) for rank in range(world_size)]
    try:
        with ThreadPoolExecutor(world_size) as pool:
            found = list(pool.map(train, transports))
    finally:
        for transport in transports:
            transport.close()
        os.close(descriptor)
    for rank, done in enumerate(found):
        watch = StragglerWatch()
        said = [watch.take(Arrival(one.last_rank, one.late_s, one.seconds)) for one in done]
        named = [sentence for sentence in said if sentence is not None]
        assert named, f"rank {rank} was told of nobody"
        assert named[0].startswith(f"rank {SLOW_RANK} is slower")
    assert all(one.times.backward_s >= DELAY_S for one in found[SLOW_RANK])
