"""Sides of comparisons between hosts: a plain torch loop on one rank, and how its ranks share what they learn."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import samovar
from samovar.collectives.engine import Collectives, float32_region
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.frontends.torch.parameters import layout_of
from samovar.frontends.torch.state import FlatWeights
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import shared_momentum

MOMENTUM = 0.9
TIMEOUT_S = 600.0
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


class Side:
    """The loop of a process that is alone.

    `computed_at_s` is when the last step had computed what it computes, on the clock of the thread's own time, and
    `updated_at_s` when it had updated its weights, on the wall's.
    """

    waits_for_nobody = False

    def __init__(
        self, net: nn.Module, rate: float, batches: Batches, momentum: float = MOMENTUM, optimizer: str = "sgd"
    ) -> None:
        self.net = net
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(net.parameters(), lr=rate, fused=True)
            if optimizer == "adamw"
            else torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
        )
        self._batches = batches
        self.computed_at_s = self.updated_at_s = 0.0

    def compute(self) -> torch.Tensor:
        """The loss of the next batch."""
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        return F.cross_entropy(self.net(images), labels)

    def step(self) -> None:
        self.compute().backward()
        self._apply()

    def _apply(self) -> None:
        self._optimizer.step()
        self.computed_at_s, self.updated_at_s = time.thread_time(), time.perf_counter()

    def settle(self) -> None:
        """Complete what is under way, so that the link is free for others; nothing here."""

    def evaluated(self) -> AbstractContextManager[None]:
        """Inside, the net has the evaluated weights; all ranks must enter."""
        return nullcontext()


class Ddp(Side):
    """The same loop with DistributedDataParallel."""

    def __init__(self, net: nn.Module, rate: float, batches: Batches, bucket_mib: int = 25) -> None:
        super().__init__(DistributedDataParallel(net, bucket_cap_mb=bucket_mib), rate, batches)


class Replicated(Side):
    """The same loop with three lines changed; `settings` are the strategy's."""

    def __init__(self, net: nn.Module, rate: float, batches: Batches, optimizer: str = "sgd", **settings: Any) -> None:
        super().__init__(net, rate, batches, optimizer=optimizer)
        self._replica = samovar.replicate(net, self._optimizer, timeout_s=TIMEOUT_S, **settings)

    def step(self) -> None:
        self._replica.backward(self.compute())
        self._replica.step(self._apply)

    def settle(self) -> None:
        with self.evaluated():
            pass

    def evaluated(self) -> AbstractContextManager[None]:
        return self._replica.evaluating()


class AtCenter(Side):
    """Workers that share a center. If the center adds up steps, only the center may have momentum.

    Without it, the rate makes up for the missing momentum, as in `samovar train`.

    `collectives` hold this rank's weights, and carry turns, if any.
    """

    def __init__(
        self,
        net: nn.Module,
        rate: float,
        batches: Batches,
        strategy: StrategyConfig,
        seat: CenterSeat,
        collectives: Collectives,
    ) -> None:
        assert seat.num_workers is not None
        self.waits_for_nobody = strategy.name != "round-robin-easgd"
        self._center = seat.center
        shares = shared_momentum(strategy, MOMENTUM, seat.num_workers)
        super().__init__(net, rate * shares.rate_factor, batches, shares.worker)
        parameters = dict(net.named_parameters())
        layout = layout_of(parameters)
        region = float32_region(collectives, "weights", layout.num_elements)
        self._weights = FlatWeights(parameters, layout, region.array)
        buffers = Buffers(region, region.part(0, 0))
        self.strategy: Any = build_strategy(shares.config, collectives, layout.buckets(), buffers, in_time, seat)
        self._step = 0
        self._is_updated = False

    def step(self) -> None:
        self.strategy.begin_step(self._step)
        self.compute().backward()
        self._is_updated = False
        self.strategy.finish_step(self._step, self._update)
        self._step += 1

    def settle(self) -> None:
        self.strategy.drain()

    def evaluated(self) -> AbstractContextManager[None]:
        self.settle()
        center = self.strategy.center()
        assert center is not None
        return self._weights.replaced(center.copy())

    def versions(self) -> list[int]:
        """How many updates the center's chunks hold: the fewest and the most."""
        versions = self._center.read(np.empty(self._center.num_elements, np.float32), in_time())
        return [int(versions.min()), int(versions.max())]

    def _update(self, _bucket: Bucket, _gradient_scale: float) -> None:
        """The strategy asks for each bucket; an optimizer updates all at once."""
        if not self._is_updated:
            self._optimizer.step()
            self._is_updated = True
            self.computed_at_s = time.thread_time()
