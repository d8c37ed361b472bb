"""Ranks that train a small net of all kinds of layers, a thread each, with the net's memory in one place or another."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.layout import Layout
from samovar.data.order import SAMPLE_NUMBERS
from samovar.data.stream import Batch
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import build_net
from samovar.model.model import Model, layout_of
from samovar.solver.flat import Solver, num_histories
from samovar.solver.policy import PolicyConfig, SolverConfig
from samovar.strategies.base import CenterSeat
from samovar.strategies.config import StrategyConfig
from samovar.training.build import _begin as begin_strategy
from samovar.training.build import _evaluated as evaluated_weights
from samovar.training.finite import FiniteCheck
from samovar.training.memory import RankMemory, make_strategy, open_memory
from samovar.training.run_center import RunCenter
from samovar.training.step import Parts, Worker
from samovar.transports.base import Region, Transport
from samovar.transports.torch_dist import NearCollectives
from tests.fake_device import AWAY, away_mode
from tests.fake_streams import FakeNccl, Meetings

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 6 dim: 3 dim: 9 dim: 9 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 32 kernel_size: 3
  weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "norm" type: "LRN" bottom: "bn" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "frozen" type: "InnerProduct" bottom: "pool" top: "frozen" param { lr_mult: 0 } param { lr_mult: 0 }
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "frozen" top: "frozen" }
layer { name: "ip" type: "InnerProduct" bottom: "frozen" top: "ip" inner_product_param { num_output: 5
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
BATCH, STEPS = 6, 7
SOLVER = SolverConfig("SGD", PolicyConfig("fixed", 0.05), momentum=0.9, weight_decay=0.001)


@dataclass(frozen=True)
class Setting:
    """A strategy on so many ranks, each step of so many parts; `device` None: in shared memory itself.

    With `meetings` the whole model is on the device, whose ranks exchange it there, or at a center of the host.
    """

    strategy: StrategyConfig
    world_size: int = 2
    num_parts: int = 1
    precision: str = "fp32"
    device: torch.device | None = None
    steps_then_saved: int = 0  # after so many, all state goes through `state_dict` into parts made anew
    meetings: Meetings | None = None


class Rank:
    """The parts of a rank of the command line, without its files."""

    def __init__(
        self,
        path: Path,
        setting: Setting,
        transport: Transport,
        name: str,
        closing: ExitStack,
        run_center: Callable[[Layout], RunCenter] | None = None,
    ) -> None:
        rank, world_size = transport.group.rank, transport.group.world_size
        self.net = build_net(load_net(path), "TRAIN", {}, 1)
        self.net.place(setting.device)
        infos = self.net.parameter_infos
        parameters = {info.name: info.parameter for info in infos}
        layout = layout_of(parameters)
        collectives: Any = PlannedCollectives(transport, lambda _num_bytes: "direct")
        host, center = collectives, None if run_center is None else run_center(layout)
        memory = memory_of(setting, layout, transport, name)
        if setting.meetings is not None and not setting.strategy.needs_center:
            assert setting.device is not None
            collectives = NearCollectives(FakeNccl(setting.meetings, rank), host, setting.device)
        weights, gradients = FlatBuffer(layout, memory.weights.array), FlatBuffer(layout, memory.gradients.array)
        histories = [FlatBuffer(layout, history.array) for history in memory.histories]
        buckets = layout.buckets(setting.strategy.bucket_size_bytes)
        self.model = Model(self.net, parameters, weights, gradients, buckets, setting.precision, setting.device)
        self.solver = Solver(SOLVER, weights, gradients, {}, histories)
        deadline = partial(Deadline.after, 50.0)
        seat = seat_of(setting, layout, transport, closing) if center is None else center.seat()
        with memory.on_host():
            self.strategy = make_strategy(setting.strategy, collectives, buckets, memory, None, deadline, seat)
            begin_strategy(self.strategy, None, center, pulls=memory.exchanged is not None)
        self.evaluated: Any = evaluated_weights(self.net, weights, self.strategy, host, deadline, center, memory)
        self.finite = FiniteCheck(weights, self.strategy, self.solver, rank)
        parts = Parts(setting.num_parts, world_size, setting.num_parts)
        self.batches = batches(rank, world_size)
        self.worker = Worker(self.model, self.solver, self.strategy, self, parts, 50.0)  # type: ignore[arg-type]

    def next(self, _deadline: Deadline) -> Batch:
        return next(self.batches)

    def evaluate(self) -> list[float]:
        """The loss of one batch with the weights that count, and those."""
        with self.evaluated.in_place(), self.model.outside_of_a_step():
            weights = self.model.weights.array_N.tolist()
            return [self.worker.forward().loss, *weights]

    def state(self) -> Any:
        self.strategy.drain()
        return self.model.state_dict(), self.solver.state_dict(), self.strategy.state_dict()

    def load(self, state: Any) -> None:
        parts: tuple[Any, ...] = (self.model, self.solver, self.strategy)
        for part, saved in zip(parts, state, strict=True):
            part.load_state_dict(saved)


def memory_of(setting: Setting, layout: Layout, transport: Transport, name: str) -> RankMemory:
    if setting.meetings is not None:
        return open_memory(transport, layout, None, setting.device, at_center=setting.strategy.needs_center)
    size, kept = layout.num_elements, num_histories(SOLVER) if setting.strategy.divides_updates else 0
    window = transport.open_window(f"{name} model", (2 + kept) * size * 4, 0)
    rows = [Region.of(window, row * size * 4, size, np.float32) for row in range(2 + kept)]
    return RankMemory(rows[0], rows[1], rows[1], tuple(rows[2:]))


def seat_of(setting: Setting, layout: Layout, transport: Transport, closing: ExitStack) -> CenterSeat | None:
    traits = setting.strategy.traits
    if not traits.has_center:
        return None
    velocity, locks = traits.has_velocity, traits.has_locks
    center = WindowCenter(transport, layout.num_elements, with_velocity=velocity, with_locks=locks)
    closing.callback(center.close)
    return CenterSeat(center, transport.group.rank == 0)


def batches(rank: int, world_size: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(rank)
    number = 0
    while True:
        first = (number * world_size + rank) * BATCH
        tensors = {
            "data": torch.rand(BATCH, 3, 9, 9, generator=generator),
            "label": torch.randint(0, 5, (BATCH,), generator=generator),
            SAMPLE_NUMBERS: torch.arange(first, first + BATCH),
        }
        yield Batch(number, tensors, BATCH, BATCH * world_size)
        number += 1


def learned(path: Path, setting: Setting, transport: Transport) -> dict[str, Any]:
    """All that a rank computes: losses, evaluations, weights, momentum, the strategy's state."""
    with ExitStack() as closing:
        if setting.device == AWAY:
            closing.enter_context(away_mode())
        torch.set_num_threads(1)
        rank = Rank(path, setting, transport, "first", closing)
        losses, evaluated = [], [rank.evaluate()]
        for step in range(STEPS):
            if step and step == setting.steps_then_saved:
                state, given = rank.state(), rank.batches
                rank = Rank(path, setting, transport, "second", closing)
                rank.load(state)
                rank.batches = given
            losses.append(rank.worker.step(step).loss)
            if step % 3 == 1:
                evaluated.append(rank.evaluate())
        evaluated.append(rank.evaluate())
        weights, history, strategy = rank.state()
    states = {**weights, **{f"h {n}": v for n, v in history.items()}, **{f"s {n}": v for n, v in strategy.items()}}
    return {"losses": losses, "evaluated": evaluated, **states}
