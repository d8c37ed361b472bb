"""LeNet of the examples, laid out on a transport as a training run does it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from samovar.collectives.engine import PlannedCollectives
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.model.model import Model, layout_of
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region, Transport

BATCH = 4
NET = Path(__file__).parents[2] / "examples" / "lenet" / "digits_train_test.prototxt"


@dataclass
class Lenet:
    """The net, its buckets and buffers, and the strategy on them."""

    net: CaffeNet
    model: Model
    strategy: Strategy
    buckets: tuple[Bucket, ...]
    weights: np.ndarray
    gradients: np.ndarray

    @classmethod
    def make(cls, transport: Transport, config: StrategyConfig, timeout_s: float) -> "Lenet":
        net = build_net(load_net(NET), "TRAIN", {"data": (BATCH, 1, 28, 28), "label": (BATCH,)}, 1)
        parameters = {info.name: info.parameter for info in net.parameter_infos}
        layout = layout_of(parameters)
        size = layout.num_elements
        window = transport.open_window("model", 2 * size * 4, 0)
        weights, gradients = (Region.of(window, half * size * 4, size, np.float32) for half in range(2))
        buckets = layout.buckets(config.bucket_size_bytes)
        flat = FlatBuffer(layout, weights.array), FlatBuffer(layout, gradients.array)
        strategy = build_strategy(
            config,
            PlannedCollectives(transport, lambda _num_bytes: "tree"),
            buckets,
            Buffers(weights, gradients),
            partial(Deadline.after, timeout_s),
        )
        model = Model(net, parameters, *flat, buckets)
        return cls(net, model, strategy, buckets, weights.array, gradients.array)


def random_batch(generator: torch.Generator | None = None) -> dict[str, torch.Tensor]:
    return {
        "data": torch.rand(BATCH, 1, 28, 28, generator=generator),
        "label": torch.randint(0, 10, (BATCH,), generator=generator),
    }
