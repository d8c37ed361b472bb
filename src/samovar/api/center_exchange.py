"""A replica's part in exchanges with a center: each worker with its own, or a group of workers together."""

import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import nn

from samovar.api.center import SharedCenter
from samovar.api.exchanges import Apply, GradientExchange, Replicated, WeightExchange
from samovar.api.process_group import ProcessGroup
from samovar.api.uneven_inputs import Event
from samovar.collectives.engine import PlannedCollectives, float32_region
from samovar.core.errors import InputError
from samovar.core.stateful import State, StateValue
from samovar.frontends.torch.parameters import first_not_finite, layout_of
from samovar.frontends.torch.state import FlatWeights
from samovar.strategies.base import Buffers
from samovar.strategies.catalog import build_hybrid
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.config import StrategyConfig
from samovar.strategies.hybrid_easgd import GroupMembers


class CenterExchange(WeightExchange):
    """Steps of the worker's own, and exchanges with the center after some of them.

    Memory: 1N floats for the weights, and the strategy's own.
    """

    def __init__(self, own: Replicated, step_group: ProcessGroup, shared: SharedCenter) -> None:
        _require_float32(own.parameters, own.config)
        super().__init__(own, step_group.collectives, shared.deadline, shared.strategy_seat())
        assert isinstance(self._strategy, CenterSteps), self._strategy
        shared.strategy = self._strategy
        self._optimizers, self._shared = own.optimizers, shared
        own.closing.callback(weakref.finalize(self, shared.leave))  # which the interpreter's exit calls too
        shared.filled()
        with torch.no_grad():
            if shared.joins:
                self._strategy.adopt_center()
            self._strategy.begin_step(0)
            self._weights.scatter()
        _require_finite_center(own.parameters, shared)

    def step(self, step: int, apply: Apply) -> None:
        super().step(step, apply)
        self._shared.look(step + 1, self._optimizers)

    def even_out(self, step: int, highest: int) -> None:
        super().even_out(step, highest)
        with self._weights.in_buffer():
            self._shared.drain()

    def finish(self, step: int) -> None:
        with self._weights.in_buffer():
            self._shared.finish(step)

    def meet(self, what: str, step: int, run: float) -> None:
        with self._weights.in_buffer():
            self._shared.drain()  # a center that others read then lacks no update
        self._shared.meet(what, step, run)

    def load_state_dict(self, state: Mapping[str, StateValue], step: int) -> None:
        super().load_state_dict(state, step)
        self._shared.filled()
        with torch.no_grad():
            self._strategy.begin_step(step)
            self._weights.scatter()


class HybridExchange(GradientExchange):
    """`HybridEasgd` whose gradients may travel as factors, and whose leader is the first worker that has data.

    Memory: 1N floats for gradients and 1N for weights, and the strategy's own.
    """

    def __init__(self, own: Replicated, step_group: ProcessGroup, shared: SharedCenter) -> None:
        group = step_group.collectives
        layout, config = layout_of(own.parameters), own.config
        region = float32_region(group, "weights", layout.num_elements)
        self._weights = FlatWeights(own.parameters, layout, region.array)
        own.closing.callback(self._weights.release)
        inside = StrategyConfig(collective=config.collective, factors=config.factors)
        super().__init__(replace(own, config=inside), group)
        assert isinstance(group, PlannedCollectives), group
        leaders = range(group.group.world_size)
        broadcasts = {leader: group.broadcast_from("group's weights", region, leader) for leader in leaders}
        members = GroupMembers(group.group, self._strategy, broadcasts)
        buffers = Buffers(region, region.part(0, 0))
        seat_there = shared.strategy_seat()
        self._hybrid = build_hybrid(config, members, layout.buckets(), buffers, shared.deadline, seat_there)
        shared.strategy = self._hybrid
        self._shared = shared
        own.closing.callback(weakref.finalize(self, shared.leave))  # which the interpreter's exit calls too
        shared.filled()
        if shared.joins:
            self._adopt()
        _require_finite_center(own.parameters, shared)

    def step(self, step: int, apply: Apply) -> None:
        self._weights.require_in_place()
        super().step(step, apply)
        if self._hybrid.is_due(step):
            self._announcer.agree(Event.STEP, step)
            self._exchange(step)
        self._shared.look(step + 1, self._optimizers)

    def shadow(self, step: int, own_step: int, event: Event) -> int:
        own_step = super().shadow(step, own_step, event)
        if event is Event.STEP:
            self._shared.drain()
            self._exchange(step)
        return own_step

    def even_out(self, step: int, highest: int) -> None:
        super().even_out(step, highest)
        self._shared.drain()

    def evaluated(self) -> AbstractContextManager[None]:
        self._weights.require_in_place()
        self._shared.drain()
        center = self._hybrid.center()
        assert center is not None
        return self._weights.replaced(center.copy())

    def finish(self, step: int) -> None:
        self._shared.finish(step)

    def center(self) -> dict[str, torch.Tensor] | None:
        center = self._hybrid.center()
        assert center is not None
        return self._weights.named(center)

    def state_dict(self) -> State:
        return self._hybrid.state_dict() | self._strategy.state_dict()

    def meet(self, what: str, step: int, run: float) -> None:
        self._shared.drain()
        self._shared.meet(what, step, run)

    def load_state_dict(self, state: Mapping[str, StateValue], _step: int) -> None:
        self._weights.require_in_place()
        self._weights.gather()
        self._strategy.load_state_dict(state)
        self._hybrid.load_state_dict({name: value for name, value in state.items() if not name.startswith("factors/")})
        self._shared.filled()

    @torch.no_grad()
    def _exchange(self, step: int) -> None:
        self._hybrid.leader = self._announcer.uneven.last_active[0]
        self._weights.gather()
        self._hybrid.updated(step)
        self._weights.scatter()

    @torch.no_grad()
    def _adopt(self) -> None:
        """Start all ranks of a group from the center of one moment."""
        self._hybrid.adopt_center()
        self._weights.scatter()


def _require_float32(parameters: Mapping[str, nn.Parameter], config: StrategyConfig) -> None:
    rounded = [name for name, p in parameters.items() if p.dtype != torch.float32]
    if rounded and config.traits.adds_steps:
        raise InputError(
            f"replicate: {config.name}: parameter {rounded[0]!r} is {parameters[rounded[0]].dtype}; the center would "
            "add up the rounding of each read: use float32 weights (and autocast), or an elastic strategy"
        )


def _require_finite_center(parameters: Mapping[str, nn.Parameter], shared: SharedCenter) -> None:
    """InputError if this rank joined a center that nobody can learn from; nothing was brought to it."""
    if shared.joins and (name := first_not_finite(parameters)):
        raise InputError(
            f"replicate: the center that was to be joined has weights of {name} that are not finite; drop it, or load "
            "a snapshot into it (samovar box load)"
        )
