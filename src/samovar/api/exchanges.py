"""The exchanges of a replica in backward and step: of gradients, of weights, or none."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from samovar.api.figures_wanted import say
from samovar.api.process_group import Announcer
from samovar.api.uneven_inputs import Event
from samovar.collectives.engine import Collectives, float32_region
from samovar.collectives.execute import PlanRunner
from samovar.core.buffer import pinned
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.core.layout import Bucket
from samovar.core.near import NearRegion
from samovar.core.stateful import State, StateValue
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.frontends.torch.factors import Factors, ScaledProduct, apart, factoring_of, matrices
from samovar.frontends.torch.gradients import FlatGradients, gradient_buckets, gradient_layout
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.parameters import device_of, layout_of, require_apart, require_dense_gradients
from samovar.frontends.torch.state import FlatWeights, OptimizerState, staged
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig, in_python
from samovar.strategies.traits import ALWAYS, NONE
from samovar.strategies.trial import TrialCallback
from samovar.transports.base import Region

# If nothing travels. For smaller matrices the copy costs less than a search of the loss's graph.
LEAST_IN_PLACE_BYTES = 12 << 20


def matrix_names(parameters: Mapping[str, nn.Parameter], config: StrategyConfig) -> tuple[str, ...]:
    """The parameters whose gradients may be products in a loss's graph.

    These are those that may travel as factors. If none may, they are matrices of 12 MiB and more.
    Raises InputError if there are none with factors='always'.
    """
    if config.factors is None:
        return matrices(parameters, LEAST_IN_PLACE_BYTES)
    names = apart(parameters, config.factors)
    if config.factors == ALWAYS and not names:
        raise InputError(
            "replicate: factors='always': the model has no float32 matrix or kernel on the CPU; choose "
            f"'auto' or '{NONE}'"
        )
    return names


Apply = Callable[[], Any]
Parameters = Mapping[str, nn.Parameter]


@dataclass(frozen=True, slots=True)
class Replicated:
    """A replica's own part in exchanges; `closing` ends what they open."""

    parameters: Parameters
    optimizers: Optimizers
    config: StrategyConfig
    announcer: Announcer
    closing: ExitStack


def require_exchangeable(model: nn.Module, parameters: Parameters, config: StrategyConfig) -> None:
    """Raises InputError for what this strategy cannot exchange."""
    if not config.exchanges_weights or config.traits.in_groups:
        require_dense_gradients(model)
    if config.exchanges_weights:
        require_apart(model, parameters)


class Exchange:
    """One replica's part in the exchanges of its ranks. Here a single process exchanges nothing: plain torch.

    It is made with a stack of what gives model and optimizers back to the user, with memory of their own. The replica
    closes that stack at its end, and after an error in between. No call there waits for another rank.
    """

    def backward(self, backward: BackwardPass, _step: int, _more: bool) -> None:
        backward.run()

    def step(self, _step: int, apply: Apply) -> None:
        apply()

    def shadow(self, _step: int, own_step: int, _event: Event) -> int:
        """Take part at a step without data. Gives this rank's step afterwards."""
        return own_step

    def even_out(self, _step: int, _highest: int) -> None:
        """All data has ended. This rank's next step, and the foremost one's, are given."""

    def evaluated(self) -> AbstractContextManager[None]:
        """Wait for all ranks. Then the model has the weights that count until the context ends."""
        return nullcontext()

    def finish(self, _step: int) -> None:
        """End training after this number of steps. From now on `evaluated` shows the final weights."""

    def center(self) -> dict[str, torch.Tensor] | None:
        return None

    def state_dict(self) -> State:
        return {}

    def meet(self, _what: str, _step: int, _run: float) -> None:
        """At a center: wait until all ranks, each at its own step, are at the call `what`, for a state of one run."""

    def load_state_dict(self, state: Mapping[str, StateValue], _step: int) -> None:
        """Take `state` back, and the next step."""


class GradientExchange(Exchange):
    """The last backward pass of a step leaves the mean of all active ranks' gradients in `p.grad`.

    Memory: 1N floats that all ranks reach, in place of the gradients that torch would hold.
    """

    def __init__(self, own: Replicated, collectives: Collectives) -> None:
        parameters, config, announcer = own.parameters, own.config, own.announcer
        names = matrix_names(parameters, config)
        first = names if config.takes_factors else ()
        layout = gradient_layout(parameters, first)
        counts_apart = config.codec is not None
        buckets = gradient_buckets(layout, config.bucket_size_bytes, counts_apart=counts_apart, num_apart=len(first))
        region = float32_region(collectives, "gradients", layout.num_elements)
        self._staged = staged(parameters, layout, region.array)
        self._flat = self._staged.host
        self._group, self._announcer = collectives.group, announcer
        tell = partial(_tell, collectives.group.rank)
        self._scale = scale = 1.0 / self._group.world_size
        factoring = factoring_of(collectives, config, announcer.deadline, tell)
        for bucket in buckets[: len(first)]:
            factoring.add(bucket, region, ScaledProduct(), scale)
        factors = Factors({name: parameters[name] for name in names}, factoring.by_name) if names else None
        self._gradients = FlatGradients(parameters, self._staged.near, buckets, scale, factors)
        own.closing.callback(self._gradients.release)
        self._parameters, self._optimizers = parameters, own.optimizers
        self._collectives, self._region = collectives, region
        num_counts = 0 if config.codec is None else buckets[-1].size
        buffers = Buffers(region.part(0, 0), region, num_exact=num_counts)
        made = (config, collectives, buckets, buffers, announcer.deadline)
        self._strategy = build_strategy(*made, callback=TrialCallback(tell=tell), factoring=factoring)
        self._exact_sum: PlanRunner | None = None
        self._num_exchanges = self._num_in_step = 0
        self._num_shadowed = 0
        self._is_torn = False

    def backward(self, backward: BackwardPass, _step: int, more: bool) -> None:
        if self._is_torn:
            raise SamovarError(
                f"backward(): rank {self._group.rank}: the backward pass before this one failed when its exchange with "
                "the other ranks had begun; end this process, or close() and replicate again on all ranks"
            )
        if more:
            backward.run()
            return
        call, final = (Event.BACKWARD, self._num_exchanges, float(self._num_in_step)), list[Bucket]()
        if not backward.others:
            self._announcer.announce(*call)
        self._is_torn = True
        self._gradients.backward(backward, final.append if backward.others else self._gradient_final)
        if backward.others:  # their exchanges are over: all ranks begin one replica's after another's
            self._announcer.announce(*call)
        for bucket in final:
            self._gradient_final(bucket)
        num_active = self._announcer.num_active(*call)
        self._complete(num_active)
        self._num_in_step += 1
        self._is_torn = False

    def step(self, step: int, apply: Apply) -> None:
        self._num_in_step = 0
        self._require_none_late()
        super().step(step, apply)
        self._require_none_late()  # from a pass inside the update

    def _require_none_late(self) -> None:
        if late := self._gradients.came_late:
            raise SamovarError(
                f"step(): rank {self._group.rank}: a backward pass added to the gradient of {late!r} after its "
                "exchange; use replica.backward(loss, more=True) for all passes of a step but the last, and before "
                "step()"
            )

    def shadow(self, step: int, own_step: int, event: Event) -> int:
        if event is Event.BACKWARD:
            self._gradients.contribute_nothing(self._gradient_final)
            self._complete(len(self._announcer.uneven.last_active))
            self._num_exchanges, self._num_in_step = step + 1, 0
            self._num_shadowed += 1
            self._optimizers.step()  # for a state that others can fill, and for what optimizers keep in their groups
            for parameter in self._parameters.values():
                parameter.grad = None  # a loop that zeroes gradients after its step would add to it
        return own_step

    def even_out(self, step: int, _highest: int) -> None:
        """Copy weights and the optimizer's state from a rank that had data to the end to those that had not."""
        answered = [detail for _, detail in self._announcer.gathered(step, self._num_shadowed)]
        self._num_shadowed = self._num_in_step = 0
        if any(answered):
            self._copy_from(answered.index(0.0))

    def state_dict(self) -> State:
        return self._strategy.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue], _step: int) -> None:
        self._strategy.load_state_dict(state)

    def _gradient_final(self, bucket: Bucket) -> None:
        self._staged.store(bucket.start, bucket.stop)
        self._strategy.gradient_final(bucket)

    def _complete(self, num_active: int) -> None:
        """Run the first half of the step. The optimizer steps later, when the user calls it."""
        for bucket, scale in self._strategy.reduced(self._num_exchanges):
            if scale != self._scale:  # a user's own strategy's
                self._region.array[bucket.start : bucket.stop] *= np.float32(scale / self._scale)
        self._staged.fetch()
        self._num_exchanges += 1
        self._gradients.publish(self._group.world_size / num_active)

    @torch.no_grad()
    def _copy_from(self, leader: int) -> None:
        memory = OptimizerState(self._optimizers, self._parameters)
        fingerprints = [detail for _, detail in self._announcer.gathered(0, memory.fingerprint())]
        differing = [rank for rank, value in enumerate(fingerprints) if value != fingerprints[leader]]
        if differing:
            raise SamovarError(
                f"rank {self._group.rank}: uneven data: the optimizers of ranks {differing} hold other state than rank "
                f"{leader}'s, which can therefore not be copied; give every rank data for at least one step"
            )
        for name, parameter in self._parameters.items():
            self._flat.view(name).copy_(parameter.data)
        self._sum_of(leader)
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._flat.view(name))
        for quantity in memory.quantities():
            memory.write(quantity, self._flat)
            self._sum_of(leader)
            memory.read(quantity, self._flat)
        self._flat.tensor_N.zero_()
        self._staged.fetch()

    def _sum_of(self, leader: int) -> None:
        """Bring the leader's flat buffer to all ranks, uncompressed."""
        if self._exact_sum is None:
            self._exact_sum = self._collectives.all_reduce("state of another rank", self._region)
        if self._group.rank != leader:
            self._flat.tensor_N.zero_()
        self._exact_sum.run(self._announcer.deadline())


class WeightExchange(Exchange):
    """Steps of the worker's own, and exchanges of weights after some of them, as the strategy says.

    Memory: 1N floats for the weights, and the strategy's own.
    """

    def __init__(
        self,
        own: Replicated,
        collectives: Collectives,
        shared_deadline: Callable[[], Deadline] | None = None,
        center: CenterSeat | None = None,
    ) -> None:
        layout = layout_of(own.parameters)
        if center is not None and (device := device_of(own.parameters)) is not None:
            region = cast(Region, NearRegion(pinned(layout.num_elements, device)))  # no other rank reads it
        else:
            region = float32_region(collectives, "weights", layout.num_elements)
        self._weights = FlatWeights(own.parameters, layout, region.array)
        own.closing.callback(self._weights.release)
        self._announcer = own.announcer
        buffers = Buffers(region, region.part(0, 0))
        made = (own.config, collectives, layout.buckets(), buffers, shared_deadline or own.announcer.deadline)
        told = TrialCallback(tell=partial(_tell, collectives.group.rank))
        self._strategy = build_strategy(*made, center, told)
        self._strategy.on_host = self._weights.in_buffer
        if center is None:
            self._strategy.begin_step(0)

    def step(self, step: int, apply: Apply) -> None:
        self._weights.require_in_place()
        if self._strategy.exchanges_at(step):
            self._announcer.agree(Event.STEP, step)
        self._finish(step, apply)

    def shadow(self, step: int, own_step: int, event: Event) -> int:
        # In evaluating() the others have not begun that step yet.
        last = step if event is Event.STEP else step - 1
        self._go_through(own_step, last + 1)
        if event in (Event.EVALUATING, Event.STATE):
            self._drain()
        return max(own_step, last + 1)

    def even_out(self, step: int, highest: int) -> None:
        self._go_through(step, highest)

    def _go_through(self, start: int, stop: int) -> None:
        """Make steps without data, because the others wait for the exchanges among them."""
        for step in range(start, stop):
            self._finish(step, lambda: None)

    def _finish(self, step: int, apply: Apply) -> None:
        apply()
        self._strategy.end_step(step)
        self._strategy.begin_step(step + 1)

    def evaluated(self) -> AbstractContextManager[None]:
        self._weights.require_in_place()
        self._drain()
        center = self._strategy.center()
        return nullcontext() if center is None else self._weights.replaced(center.copy())

    def center(self) -> dict[str, torch.Tensor] | None:
        center = self._strategy.center()
        return None if center is None else self._weights.named(center)

    def state_dict(self) -> State:
        self._drain()
        return self._strategy.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue], _step: int) -> None:
        self._weights.require_in_place()
        self._weights.gather()
        self._strategy.load_state_dict(state)

    def _drain(self) -> None:
        """Complete an exchange under way. It may change these weights."""
        with self._weights.in_buffer():
            self._strategy.forget_drained()
            self._strategy.drain()


def exchange_in_step(own: Replicated, collectives: Collectives) -> Exchange:
    """The exchange of ranks that train in step, without a center."""
    if own.config.exchanges_weights:
        return WeightExchange(own, collectives)
    return Exchange() if collectives.group.world_size == 1 else GradientExchange(own, collectives)


def _tell(rank: int, sentence: str) -> None:
    if rank == 0:
        say(in_python(sentence))
