"""When things happen in a step: by waiting for what must come in time, not by clocks. LeNet, ranks as threads."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.strategies.config import StrategyConfig
from samovar.strategies.owned import OwnedSync
from samovar.strategies.sync import Sync
from samovar.transports.shm import ShmTransport
from tests.parity.lenet import Lenet, random_batch
from tests.threads import on_threads

TIMEOUT_S = 60.0


class Rank(Lenet):
    """A bucket for each parameter."""

    def forward_backward(self, before_forward: Callable[[Bucket], None], gradient_final: Callable[[Bucket], None]):
        self.model.forward_backward(
            random_batch(torch.Generator().manual_seed(1)),
            loss_scale=1.0,
            first_part=True,
            last_part=True,
            before_forward=before_forward,
            gradient_final=gradient_final,
        )

    def update(self, bucket: Bucket, scale: float) -> None:
        part = slice(bucket.start, bucket.stop)
        self.weights[part] -= np.float32(0.01 * scale) * self.gradients[part]


def on_ranks(world_size: int, overlap: str, work: Callable[[Rank, int], None]) -> None:
    """work(the rank's net, its number) on every rank."""

    def start(transport: ShmTransport) -> None:
        config = StrategyConfig("sync", "tree", 1, overlap=overlap)
        rank: Any = Rank.make(transport, config, TIMEOUT_S)
        work(rank, transport.group.rank)

    on_threads(world_size, start)


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_last_layers_gradient_is_exchanged_before_the_first_layers_backward_ends(world_size: int) -> None:
    """Every rank holds its backward pass, in its last hook, until the first bucket's sum has come from all others."""

    def work(rank: Rank, _own: int) -> None:
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

    def work(rank: Rank, own: int) -> None:
        strategy = rank.strategy
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
