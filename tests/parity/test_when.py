"""When things happen in a step: by waiting for what must come in time, not by clocks. LeNet, ranks as threads."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from samovar.collectives.engine import PlannedCollectives
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.layout import Bucket
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import build_net
from samovar.model.model import Model, layout_of
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.build import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.owned import OwnedSync
from samovar.strategies.sync import Sync
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport, create_segment

TIMEOUT_S = 20.0
BATCH = 4
NET = Path(__file__).parents[2] / "examples" / "lenet" / "digits_train_test.prototxt"


@dataclass
class Rank:
    """LeNet on one thread, a bucket for each parameter."""

    group: Group
    model: Model
    strategy: Strategy
    buckets: tuple[Bucket, ...]
    weights: np.ndarray
    gradients: np.ndarray

    @classmethod
    def make(cls, overlap: str, transport: ShmTransport) -> "Rank":
        net = build_net(load_net(NET), "TRAIN", {"data": (BATCH, 1, 28, 28), "label": (BATCH,)}, 1)
        parameters = {info.name: info.parameter for info in net.parameter_infos}
        layout = layout_of(parameters)
        size = layout.num_elements
        window = transport.open_window("model", 2 * size * 4, 0)
        weights, gradients = (Region.of(window, half * size * 4, size, np.float32) for half in range(2))
        buckets = layout.buckets(1)
        flat = FlatBuffer(layout, weights.array), FlatBuffer(layout, gradients.array)
        model = Model(net, parameters, *flat, buckets)
        strategy = build_strategy(
            StrategyConfig("sync", "tree", 1, overlap=overlap),
            PlannedCollectives(transport, lambda _num_bytes: "tree"),
            buckets,
            Buffers(weights, gradients),
            partial(Deadline.after, TIMEOUT_S),
        )
        return cls(transport.group, model, strategy, buckets, weights.array, gradients.array)

    def forward_backward(self, before_forward: Callable[[Bucket], None], gradient_final: Callable[[Bucket], None]):
        generator = torch.Generator().manual_seed(self.group.rank)
        batch = {
            "data": torch.rand(BATCH, 1, 28, 28, generator=generator),
            "label": torch.randint(0, 10, (BATCH,), generator=generator),
        }
        self.model.forward_backward(
            batch,
            loss_scale=1.0,
            first_part=True,
            last_part=True,
            before_forward=before_forward,
            gradient_final=gradient_final,
        )

    def update(self, bucket: Bucket, scale: float) -> None:
        part = slice(bucket.start, bucket.stop)
        self.weights[part] -= np.float32(0.01 * scale) * self.gradients[part]


def on_ranks(world_size: int, overlap: str, work: Callable[[Rank], None]) -> None:
    descriptor = create_segment(world_size)
    transports = [ShmTransport(descriptor, Group(rank, world_size), oversubscribed=True) for rank in range(world_size)]
    try:
        with ThreadPoolExecutor(world_size) as pool:
            list(pool.map(lambda transport: work(Rank.make(overlap, transport)), transports))
    finally:
        for transport in transports:
            transport.close()
        os.close(descriptor)


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_last_layers_gradient_is_exchanged_before_the_first_layers_backward_ends(world_size: int) -> None:
    """Every rank holds its backward pass, in its last hook, until the first bucket's sum has come from all others."""

    def work(rank: Rank) -> None:
        strategy = rank.strategy
        assert isinstance(strategy, Sync)

        def gradient_final(bucket: Bucket) -> None:
            if bucket.index == len(rank.buckets) - 1:
                strategy._channels[0][1].finish(Deadline.after(TIMEOUT_S))
            strategy.gradient_final(bucket)

        rank.forward_backward(strategy.before_forward, gradient_final)
        for _, channel in strategy._channels[1:]:
            channel.finish(Deadline.after(TIMEOUT_S))

    on_ranks(world_size, "backward", work)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_layers_weights_come_after_the_forward_pass_has_begun_and_nothing_waits_for_all(world_size: int) -> None:
    """The owner of the last layer updates it only when all others are in their next forward pass, in every step."""
    num_steps = 3
    begun = [[threading.Event() for _ in range(world_size)] for _ in range(num_steps + 1)]

    def work(rank: Rank) -> None:
        strategy, own = rank.strategy, rank.group.rank
        assert isinstance(strategy, OwnedSync)
        met = []

        def before_forward(step: int, bucket: Bucket) -> None:
            begun[step][own].set()
            strategy.before_forward(bucket)
            met.append((step, bucket.index))

        def update(step: int, bucket: Bucket, scale: float) -> None:
            if bucket.index == 0 and step < num_steps - 1:
                others = [event for other, event in enumerate(begun[step + 1]) if other != own]
                assert all(event.wait(TIMEOUT_S) for event in others), "somebody waits for what it does not need"
            rank.update(bucket, scale)

        for step in range(num_steps):
            strategy.begin_step(step)
            rank.forward_backward(partial(before_forward, step), strategy.gradient_final)
            strategy.finish_step(step, partial(update, step))
        strategy.drain()
        assert [index for _, index in met] == [b.index for b in reversed(rank.buckets)] * num_steps

    # The last layer's weight is the largest but one: its owner is whoever the spread says, the gate is for all.
    on_ranks(world_size, "full", work)
