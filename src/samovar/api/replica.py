"""One rank's model and optimizer, and what a user's training loop calls on them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from samovar.api.agreement import require_agreement, with_momentum
from samovar.api.buffer_mean import ReplicaBuffers
from samovar.api.center import BoxChoice, SharedCenter
from samovar.api.center_exchange import CenterExchange, HybridExchange
from samovar.api.exchanges import Exchange, GradientExchange, NoExchange, WeightExchange
from samovar.api.metrics import ReplicaMetrics, Shard
from samovar.api.process_group import ProcessGroup, step_group_of
from samovar.api.state import checked, from_arrays, to_arrays
from samovar.api.uneven_inputs import Call, Event
from samovar.core.errors import InputError, NotFinite, SamovarError
from samovar.core.layout import LOOK_EVERY_STEPS
from samovar.frontends.torch.parameters import (
    claim,
    first_not_finite,
    layout_of,
    require_dense_gradients,
    trained_parameters,
)
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved


class Replica:
    """What `samovar.replicate` returns. All ranks make the same calls in the same order, except where told.

    `config` is the strategy with every setting given, for `num_workers`: all ranks, and who else shares a box with
    them at the start. `notices` are sentences for the user.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        processes: ProcessGroup,
        config: StrategyConfig,
        timeout_s: float,
        box: BoxChoice | None = None,
    ) -> None:
        self._parameters = parameters = trained_parameters(model, optimizer)
        config, self.notices = with_momentum(config, optimizer, processes.group.world_size)
        self.num_workers = processes.group.world_size
        self.config = resolved(config, processes.group.world_size)
        if not self.config.exchanges_weights or self.config.traits.in_groups:
            require_dense_gradients(model)
        self._model, self._optimizer, self._team = model, optimizer, processes
        self._step_group = step_group_of(processes, self.config)
        self._announcer = self._step_group.announcer(self, timeout_s)
        self._metrics = ReplicaMetrics()
        claim(parameters)
        require_agreement(processes, self._announcer, model, parameters, self.config)
        processes.broadcast.run([*model.parameters(), *model.buffers()], self._announcer.deadline)
        if config.needs_center:
            self._exchange: Exchange = self._with_center(parameters, config, box)
        else:
            self._exchange = _exchange(parameters, optimizer, processes, self.config, self._announcer)
        self._is_async = config.is_async
        self._buffers = ReplicaBuffers(model, processes, self._announcer.deadline, is_async=self._is_async)
        self._num_updated = _num_parameters(optimizer)
        self._frozen = [p for group in optimizer.param_groups for p in group["params"] if not p.requires_grad]
        self._shards: list[Shard] = []
        self._loaded_epochs: list[int] = []
        self._is_evaluating = False
        self._is_finished = False
        self._step = 0

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self._team.group.rank

    @property
    def world_size(self) -> int:
        """How many processes train together."""
        return self._team.group.world_size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and saves what is needed once."""
        return self.rank == 0

    @property
    def step_count(self) -> int:
        """Steps so far, those included that were answered without data."""
        return self._step

    def backward(self, loss: torch.Tensor, *, more: bool = False) -> None:
        """loss.backward(); where gradients are exchanged, `p.grad` is then the mean over ranks that have data.

        A parameter's gradient is None where no rank had one. `more` says that another backward pass follows before
        the step: gradients add up on this rank, and are not exchanged yet. Without it each call exchanges, which gives
        the same mean. Waits for all ranks where it exchanges. Raises ReplicasDiffer where they are not all here,
        DeadlineExceeded, RankFailed.
        """
        self._require_training("backward()")
        self._require_same_parameters()
        self._exchange.backward(loss, self._step, more)
        self._metrics.lost(loss)

    def step(self, apply: Callable[[], Any] | None = None) -> None:
        """optimizer.step(), or `apply()` in its place, which must update the weights: `lambda: scaler.step(optimizer)`.

        Where weights are exchanged, this is where: after the update, at the steps that the strategy says, it waits for
        all ranks. Raises what `backward` does, and NotFinite where weights are infinite or no numbers; it looks every
        8 steps, and before weights are evaluated or saved.
        """
        self._require_training("step()")
        if apply is not None and not callable(apply):
            raise InputError(
                f"step: got a {type(apply).__name__}; give nothing, or a function without arguments "
                "that updates the weights"
            )
        self._exchange.step(self._step, apply or self._optimizer.step)
        self._step += 1
        self._buffers.stepped()
        if self._step % LOOK_EVERY_STEPS == 0:
            self._require_finite()

    def shard(self, loader: DataLoader[Any], *, seed: int = 0) -> Shard:
        """The loader's data divided among ranks; see `samovar.api.metrics.Shard`.

        `seed` and the number of the epoch give the order of samples, alike on all ranks and at every run. The same
        loader gives the same shard again, so that this may stand inside the loop over epochs.
        """
        for shard in self._shards:
            if shard.source is loader and shard.seed == seed:
                return shard
        number = len(self._shards)
        epoch = self._loaded_epochs[number] if number < len(self._loaded_epochs) else 0
        shard = Shard(loader, self._team.group, self._step_group, self._announcer, seed, epoch, self._metrics)
        self._shards.append(shard)
        return shard

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The weights that count stand in the model: the strategy's center; and BatchNorm's mean statistics.

        Where there is no center, those are the model's own, equal on all ranks. Buffers of floating types are the mean
        over ranks. Afterwards the model is as before. Waits at its beginning for all ranks, which must all come; what
        runs inside may differ. Where ranks step at their own speed any of them may, and none waits: the center is then
        that of the moment. model.eval() remains the caller's.
        """
        if self._is_finished:
            yield
            return
        self._require_training("evaluating()")
        self._require_finite()
        if not self._is_async:
            self._announcer.announce(Event.EVALUATING, self._step)
            self._announcer.num_active(Event.EVALUATING, self._step)
        with ExitStack() as stack:
            stack.enter_context(self._exchange.evaluated())
            stack.enter_context(self._buffers.mean())
            self._is_evaluating = True
            stack.callback(setattr, self, "_is_evaluating", False)
            yield

    def finish(self) -> None:
        """The end of training: what `evaluating` shows stays in the model, the same on all ranks.

        Waits for all ranks, which must all call it; those that died are not waited for where ranks step at their own
        speed. Raises DeadlineExceeded where a wait is too long, or none of those that lag behind makes a step.
        """
        self._require_training("finish()")
        self._require_finite()
        self._exchange.finish(self._step)
        tensors = [*self._model.parameters(), *self._model.buffers()]
        with torch.no_grad():
            with self.evaluating():
                final = [tensor.detach().clone() for tensor in tensors]
            for tensor, value in zip(tensors, final, strict=True):
                tensor.copy_(value)
        self._is_finished = True

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on with the same bits: numbers, strings and tensors, copied. Never waits for data.

        Every rank saves and loads its own. Generators of random numbers are the caller's.
        """
        self._require_training("state_dict()")
        self._require_finite()
        # Before the weights: what is under way may move them.
        strategy_state = from_arrays(self._exchange.state_dict())
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "strategy": self.config.name,
            "step": self._step,
            "epochs": [shard.epoch for shard in self._shards],
            "model": {name: value.detach().clone() for name, value in self._model.state_dict().items()},
            "optimizer": from_arrays(self._optimizer.state_dict()),
            "strategy_state": strategy_state,
            "center": self._exchange.center(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave on this rank; raises InputError where it does not fit.

        A state of another number of ranks or another strategy gives its center, or else the weights, of what rank 0
        loads, to all ranks; all must call this then. Each keeps the optimizer's state that it loads.
        """
        self._require_training("load_state_dict()")
        state, is_own = checked(state, self.rank, self.world_size, self.config.name)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        with_momentum(self.config, self._optimizer, self.world_size)
        if not is_own:
            self._take_common_weights(state["center"])
        self._step = int(state["step"])
        self._exchange.load_state_dict(to_arrays(state["strategy_state"]) if is_own else {}, self._step)
        self._loaded_epochs = list(state["epochs"])
        for shard, epoch in zip(self._shards, self._loaded_epochs, strict=False):
            shard.epoch = epoch

    def shadow(self, call: Call) -> None:
        """Where inputs are uneven: take part in what the others do, without data."""
        self._step = self._exchange.shadow(call.step, self._step, call.event)
        if call.event is Event.EVALUATING:
            self._buffers.sum()

    def even_out(self) -> None:
        """Where inputs are uneven: everybody's data has ended."""
        highest = max(step for step, _ in self._announcer.gathered(self._step, 0.0))
        self._exchange.even_out(self._step, highest)
        self._step = highest

    def __repr__(self) -> str:
        return f"Replica({self.config.name}, rank {self.rank} of {self.world_size}, step {self._step})"

    def _with_center(
        self, parameters: Mapping[str, nn.Parameter], config: StrategyConfig, box: BoxChoice | None
    ) -> Exchange:
        """Where workers share a center; the number of them in all gives the settings that were not given."""
        shared = SharedCenter(
            self._team, self.config, layout_of(parameters), box, self._announcer.deadline, self._metrics
        )
        self.num_workers = shared.num_pushers * (self.config.group_size or 1)
        self.config = resolved(config, self.num_workers)
        if config.traits.in_groups:
            return HybridExchange(parameters, self._optimizer, self._step_group, config, self._announcer, shared)
        return CenterExchange(parameters, self._step_group, config, self._announcer, shared)

    def _take_common_weights(self, center: Mapping[str, torch.Tensor] | None) -> None:
        named = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, value in (center or {}).items():
                named[name].copy_(value)
        self._team.broadcast.run([*self._model.parameters(), *self._model.buffers()], self._announcer.deadline)

    def _require_training(self, what: str) -> None:
        if self._is_finished:
            raise SamovarError(f"{what}: training is over since finish(); make another model and replica to train on")
        if self._is_evaluating:
            raise SamovarError(f"{what}: the model holds other weights inside evaluating(); call it after that ends")

    def _require_finite(self) -> None:
        """NotFinite where ranks go in step and a weight is infinite or no number; a center looks for itself."""
        if self._is_async or not (name := first_not_finite(self._parameters)):
            return
        rates = sorted({float(group["lr"]) for group in self._optimizer.param_groups if "lr" in group})
        raise NotFinite(
            f"rank {self.rank}: the weights of {name} are not finite after step {self._step} (loss "
            f"{self._metrics.loss:.4g}, learning rate {', '.join(f'{rate:.4g}' for rate in rates)}); lower the "
            "learning rate, or look at this rank's data"
        )

    def _require_same_parameters(self) -> None:
        if _num_parameters(self._optimizer) != self._num_updated or any(p.requires_grad for p in self._frozen):
            raise SamovarError(
                "the optimizer updates other parameters than at replicate() (one was added or unfrozen), which would "
                "not be exchanged; let all that will ever train want a gradient before replicate()"
            )


def _exchange(
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    processes: ProcessGroup,
    config: StrategyConfig,
    announcer: Any,
) -> Exchange:
    if config.exchanges_weights:
        return WeightExchange(parameters, processes.collectives, config, announcer)
    if processes.group.world_size == 1:
        return NoExchange()
    return GradientExchange(parameters, optimizer, processes.collectives, config, announcer)


def _num_parameters(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)
