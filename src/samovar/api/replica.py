"""One rank's model and optimizer, and what a user's training loop calls on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from samovar.api.center import BoxChoice, SharedCenter
from samovar.api.center_exchange import CenterExchange, HybridExchange
from samovar.api.checks import CallOrder, WeightChecks, name_unclaimed, others_of, require_agreement, with_momentum
from samovar.api.exchanges import Exchange, Replicated, exchange_in_step, require_exchangeable
from samovar.api.figures import FigureCalls, ReplicaFigures
from samovar.api.figures_wanted import FiguresWanted, warn
from samovar.api.process_group import ProcessGroup, step_group_of
from samovar.api.reductions import RankReduction, ReplicaBuffers, untraced
from samovar.api.saving import Checkpoints
from samovar.api.shards import PLACE_FIELDS, OnDemandShard, Shard, Shards
from samovar.api.state import checked, from_arrays, identity_of, keep, num_tensors, require_fitting, to_arrays
from samovar.api.uneven_inputs import Call, Event
from samovar.core.closing import Closing
from samovar.core.errors import InputError, SamovarError
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.frontends.torch.neighbours import LoadHook, claim, guard_weights, keep_alone, let_go, release, state_of
from samovar.frontends.torch.optimizers import Given, Optimizers
from samovar.frontends.torch.parameters import device_of, digest_of, layout_of, saved_buffers, trained_parameters
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import by_recipe, resolved
from samovar.strategies.recipe import Recipe
from samovar.strategies.traits import KINDS


class Replica(Checkpoints, FigureCalls, Closing):
    """One rank's model and optimizer, as `samovar.replicate` returns them.

    All ranks make the same calls in the same order. At a center each rank makes them when it comes to them. No wait for
    another rank is longer than `timeout_s`; then DeadlineExceeded names the ranks that are missing.

    `config` is the strategy with every setting. `num_workers` are all ranks, and those of other jobs that share the box
    at the start. `notices` are sentences for the user. `recipe` is None if there is none; `rate_factor` is that of the
    learning rates, by it, `keep_momentum` or `look_ahead`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Given,
        processes: ProcessGroup,
        config: StrategyConfig,
        timeout_s: float,
        box: BoxChoice | None = None,
        compare_weights_steps: int | None = None,
        wanted: FiguresWanted | None = None,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        self._optimizers = optimizers = Optimizers(optimizer)
        self._parameters = trained_parameters(model, optimizers)
        self.num_workers = processes.group.world_size
        if recipe is not None:
            config = by_recipe(config, self.num_workers, is_adaptive=optimizers.are_adaptive)
        shares = with_momentum(config, optimizers, self.num_workers)
        self.notices, config = shares.notices, shares.config
        self.config = resolved(config, self.num_workers)
        require_exchangeable(model, self._parameters, self.config)
        self._model, self.recipe, self._step_group = model, recipe, step_group_of(processes, self.config)
        self._announcer = self._step_group.announcer(self, timeout_s)
        super().__init__(processes, self._announcer.among(processes))
        wanted = (wanted or FiguresWanted()).of_replica(self._announcer.number)
        self._figures = ReplicaFigures(processes, self.config, wanted, optimizers.learning_rate)
        self._run, self._loads = 0.0, LoadHook()
        self._exchange = Exchange()
        with ExitStack() as closing:
            closing.callback(self._writer.settle)
            closing.callback(self._step_group.forget, self._announcer)
            self._scale_rates(shares.rate_factor if box is None else 1.0, recipe, closing)
            self._join(config, box, closing)
            self._closing = closing.pop_all()
        of_run = (processes, self._announcer, self.config, compare_weights_steps)
        self._checks = WeightChecks(model, self._parameters, optimizers, *of_run)
        self._order = CallOrder(self.rank, exchanges_gradients=not config.exchanges_weights or config.traits.in_groups)
        self._shards, self._step = Shards(), 0
        self._is_finished = self._is_closed = False

    @property
    def device(self) -> torch.device:
        """The device of the parameters that train here."""
        return next(iter(self._parameters.values())).device

    @property
    def step_count(self) -> int:
        """The steps so far, with those that this rank took part in without data."""
        return self._step

    @untraced
    def backward(
        self,
        loss: torch.Tensor,
        *,
        more: bool = False,
        gradient: torch.Tensor | None = None,
        retain_graph: bool | None = None,
        inputs: Sequence[torch.Tensor] | torch.Tensor | None = None,
        also: Sequence["Replica"] = (),
    ) -> None:
        """Call this in place of `loss.backward()`.

        With `sync`, `p.grad` is then the mean over the ranks that have data, and None if no rank had a gradient.
        `hybrid-easgd` does this among the ranks of a group. With other strategies `p.grad` is this rank's own.

        `more=True` says that another backward pass follows before the step. Its gradients add up on this rank, and
        nothing is exchanged yet. Without it each pass exchanges its part, which gives the same mean. `gradient`,
        `retain_graph` and `inputs` are those of `Tensor.backward`. The replicas in `also` take the gradients of their
        own parameters from the same pass.

        Waits for all ranks of the exchange. Raises ReplicasDiffer if another rank is at a different call, RankFailed,
        and DeadlineExceeded. Cost: one all-reduce of the gradients.
        """
        leaves = (inputs,) if isinstance(inputs, torch.Tensor) else None if inputs is None else tuple(inputs)
        others = tuple(partial(other._backward, more) for other in others_of(self, also))
        self._backward(more, BackwardPass(loss, gradient, retain_graph, leaves, others))

    def _backward(self, more: bool, backward: BackwardPass) -> None:
        self._require_training("backward()")
        if self._optimizers.is_allowed:
            raise SamovarError("backward() inside step(): its function only updates weights; call backward() before")
        self._optimizers.require_same_parameters()
        backward = backward.inside(self._figures.run_backward)
        self._exchange.backward(backward if more else self._figures.paced(backward), self._step, more)
        self._order.backward(more=more)
        self._figures.passed(backward.loss)

    @untraced
    def step(self, apply: Callable[[], Any] | None = None) -> None:
        """Call this in place of `optimizer.step()`, once for each step.

        `apply` updates the weights instead of the optimizer, for example `lambda: scaler.step(optimizer)`.

        Strategies that exchange weights do so here, after the update, at some steps. At those steps it waits for the
        other ranks; at a center it does not. Raises what `backward` raises, and SamovarError if gradients of this step
        were not exchanged, because `loss.backward()` was called. Raises NotFinite if weights are infinite or NaN: it
        looks every 8 steps, and before weights are evaluated or saved.
        """
        self._require_training("step()")
        if apply is not None and not callable(apply):
            raise InputError(
                f"step: got a {type(apply).__name__}; give nothing, or a function without arguments "
                "that updates the weights"
            )
        if not self._step and self.is_first:
            name_unclaimed(self._model)
        self._order.step()
        self._optimizers.require_same_parameters()
        if self.config.traits.adds_steps:
            with_momentum(self.config, self._optimizers, self.world_size)  # a scheduler may have brought one
        with self._optimizers.allowed():
            self._exchange.step(self._step, self._figures.updating(apply or self._optimizers.step))
        self._step += 1
        self._figures.stepped(self._step)
        self._buffers.stepped(self._step)
        self._checks.stepped(self._step, self._figures)

    def shard(self, loader: DataLoader[Any], *, seed: int = 0, on_demand: bool = False) -> Shard:
        """This rank's part of the loader's data: `for x, y in replica.shard(loader)` is one epoch.

        It keeps the loader's batch size, which is that of each rank. With `recipe="auto"` it is that of all together.
        `seed`, the epoch and the number of loaders before give the order of samples, on all ranks and at every run. The
        same loader gives the same shard again. `len` gives the number of batches, and `epoch` that of epochs so far.
        `on_demand`, at a center: each rank asks the job's store for its next batch, so slow ranks take fewer.

        Waits for all ranks at the start and the end of an epoch, except at a center. Raises InputError for a loader
        that cannot be divided or whose order does not repeat, and ReplicasDiffer if ranks draw different orders.
        """
        made = (loader, self._team.group, self._step_group, self._announcer, self._figures, self.recipe is not None)
        make = partial(OnDemandShard, self._team, self.config, *made) if on_demand else partial(Shard, *made)
        return self._shards.of(loader, seed, make, on_demand=on_demand)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context in which the model has the weights that count.

        These are the center, the mean of the ranks' weights (`local-sgd`), or the weights that all have (`sync`).
        Floating-point buffers, such as BatchNorm's statistics, are the mean over ranks. Afterwards the model is as
        before. Call `model.eval()` yourself.

        All ranks must enter, and wait for each other there. At a center any rank may enter, and none waits: it sees the
        center of this moment. Calls that train raise SamovarError inside. Cost: a copy of the weights.
        """
        if self._is_finished:
            yield
            return
        self._require_training("evaluating()")
        self._order.require_steps("evaluating()")
        self._checks.before_evaluation(self._step, self._figures)
        if not self.config.is_async:
            self._announcer.agree(Event.EVALUATING, self._step)
        with self._exchange.evaluated(), self._buffers.mean(), self._loads.opened(), ExitStack() as stack:
            stack.callback(self._figures.skip)
            yield

    def finish(self) -> None:
        """End training: the weights that `evaluating` shows stay in the model, on all ranks.

        All ranks must call it, and wait for each other. At a center it does not wait for ranks that died, and waits for
        ranks that still train, however long they take. Raises DeadlineExceeded if none of these takes a step for
        `timeout_s`, and ReplicasDiffer if ranks that keep equal weights end with different ones.
        """
        self._require_training("finish()")
        self._order.require_steps("finish()")
        self._checks.require_finite(self._step, self._figures)
        self._exchange.finish(self._step)
        self._end()
        if not self.config.is_async and self.world_size > 1:
            self._announcer.uneven.show_digest(digest_of(self._parameters))
            self._announcer.agree(Event.FINISHING, self._step)
        self._figures.finished(self._step)

    def leave(self) -> None:
        """End training on this rank alone, in an elastic job; the others continue. See `ElasticReplica.leave`."""
        raise SamovarError("leave(): only in an elastic job (samovar run --elastic NAME); call finish() instead")

    def close(self) -> None:
        """Give model and optimizers back, with memory of their own. They may be replicated again.

        That begins with rank 0's own weights. Call `finish` before, and it begins with those that count.
        The memory that ranks share goes back to the system when all ranks have closed.

        Brings an update under way to the center, and waits for no other rank, except for those that write the file of
        a `save`. A second call does nothing. A `with replicate(...) as replica:` block calls it at the end.
        """
        if not self._is_closed:
            self._is_closed = self._is_finished = True
            self._closing.close()
            self._exchange = Exchange()

    def state_dict(self) -> dict[str, Any]:
        """The state that this rank needs to resume with the same bits: numbers, strings and tensors on the CPU.

        It holds the model, the optimizers, the strategy, the step, and the place of each shard: its epoch, and the
        batches that the loop got of it. Call it after `step()`. Every rank saves and loads its own.
        Generators of random numbers, schedulers and scalers are yours to save. Never waits for other ranks' data.
        With strategies that exchange weights in step it meets them, and all must call it. Ranks that keep equal weights
        compare them at the next exchange.
        """
        self._require_training("state_dict()")
        if self.config.exchanges_weights and not self.config.is_async:  # the mean that counts is of all ranks
            self._announcer.agree(Event.STATE, self._step)
        self._checks.require_finite(self._step, self._figures)
        self._checks.show_digest()
        self._order.name_open_step()
        # Before the weights, because an exchange that is not over may change them.
        strategy_state = from_arrays(self._exchange.state_dict())
        state = {
            "run": self._run,
            "rank": self.rank,
            "world_size": self.world_size,
            "rate_factor": self.rate_factor,
            "strategy": self.config.name,
            "group_size": self.config.group_size,
            "step": self._step,
            **self._shards.state_dict(),
            "model": from_arrays(state_of(self._model)),
            "optimizer": from_arrays(self._optimizers.state_dict()),
            "strategy_state": strategy_state,
            "center": self._exchange.center(),
        }
        return state | {"num_tensors": num_tensors(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave on this rank. All ranks call this, and wait for each other.

        A state of another number of ranks, strategy or size of groups gives its center to all ranks, or its weights if
        it has no center. These, the step and the shards' places are those that rank 0 loads. Each rank keeps the
        optimizers' state that it loads. It begins again if ranks had one each, and must have one here (`sync`, and a
        group of `hybrid-easgd`).

        Raises InputError if the state does not fit. Raises SamovarError, before anything is loaded, if another rank is
        at a different call, or the states are not all of one save (at a center: of one run).
        """
        self._require_training("load_state_dict()")
        state, is_own, keeps_momentum = checked(state, self.rank, self.world_size, self.config)
        self._meet_at_center("load_state_dict()", float(state.get("run", 0.0)))
        if not self.config.is_async:
            self._announcer.agree(Event.LOADING, 0, identity_of(state))
        self._together(lambda: require_fitting(state, self._model, self._optimizers))
        of_first = self.broadcast({name: state.get(name, []) for name in ("step", *PLACE_FIELDS)})
        state = state if is_own else {**state, **of_first}  # ranks that saved at a center were at different places
        asks = any(KINDS[name].traits.adds_steps for name in (self.config.name, state["strategy"]) if name in KINDS)
        of_strategy = ("momentum", "nesterov") if asks and not is_own else ()
        self._optimizers.load_state_dict(state["optimizer"], of_strategy)
        if not keeps_momentum:
            self._optimizers.begin_again()
        self._optimizers.multiply_rates(self.rate_factor / state.get("rate_factor", self.rate_factor))
        with_momentum(self.config, self._optimizers, self.world_size)
        with self._loads.opened():
            self._model.load_state_dict(state["model"])
        self._run = state.get("run", self._run)
        if not is_own:
            self._take_common_weights(state["center"])
        self._step = int(state["step"])
        self._exchange.load_state_dict(to_arrays(state["strategy_state"]) if is_own else {}, self._step)
        self._figures.go_to(self._step)
        self._shards.load_state_dict(state, has_same_ranks=state["world_size"] == self.world_size)
        self._checks.show_digest()

    def _scale_rates(self, factor: float, recipe: Recipe | None, closing: ExitStack) -> None:
        if recipe is not None:
            factor *= recipe.rate_factor(self.config, self.num_workers, is_adaptive=self._optimizers.are_adaptive)
        self.rate_factor = factor
        self._optimizers.scale_rates(self.rate_factor)
        closing.callback(self._optimizers.multiply_rates, 1.0 / self.rate_factor)

    def shadow(self, call: Call) -> None:
        """Take part, without data, in a call of the other ranks."""
        if call.event in (Event.SAVING, Event.SHARD):
            return  # they refuse to save, and a shard's step is its epoch
        if call.event is Event.REDUCING:
            self._reductions.take_part(RankReduction(call.step), int(call.detail))
            return
        self._step = self._exchange.shadow(call.step, self._step, call.event)
        if call.event is Event.EVALUATING:
            self._buffers.sum()

    def even_out(self) -> None:
        """Come to the same step as the others, when all ranks' data has ended."""
        highest = max(step for step, _ in self._announcer.gathered(self._step, 0.0))
        self._exchange.even_out(self._step, highest)
        self._step = highest

    def __repr__(self) -> str:
        return f"Replica({self.config.name}, rank {self.rank} of {self.world_size}, step {self._step})"

    def _join(self, config: StrategyConfig, box: BoxChoice | None, closing: ExitStack) -> None:
        """Take what the other ranks and the model's owner lend; `closing` gives it back, also after an error here."""
        model, parameters, deadline = self._model, self._parameters, self._announcer.deadline
        claim(parameters)
        closing.callback(release, parameters)
        self._figures.is_foreseen &= box is None
        if not self._team.is_back:
            of_all = (self._team, self._announcer, model, parameters, self.config, self.recipe)
            self._run, sent = require_agreement(*of_all)
            self._team.broadcast.run(sent, deadline)
        if config.needs_center:
            self._exchange = self._with_center(parameters, config, box, closing)
        else:
            self._exchange = self._in_step(parameters, closing)
        period = 1 if device_of(parameters) is None else self.config.sync_period_steps or 1
        self._buffers = ReplicaBuffers(model, self._team, deadline, is_async=config.is_async, period=period)
        closing.callback(self._buffers.close)
        self._optimizers.guard(model)
        closing.callback(self._optimizers.release)
        keep_alone(model)
        closing.callback(let_go, model)
        has_center = config.needs_center or any(config.traits.setting(name) for name in ("moving_rate", "outer_rate"))
        has_own_weights = config.exchanges_weights and (has_center or self.world_size > 1)
        guard_weights(model, self._loads, closing, has_center=has_center, tell=warn if has_own_weights else None)
        closing.callback(self._figures.close)
        self._figures.begin(self._announcer, model)

    def _in_step(self, parameters: Mapping[str, nn.Parameter], closing: ExitStack) -> Exchange:
        collectives = self._figures.traced(self._team.collectives_for(self.config, device_of(parameters)))
        own = Replicated(parameters, self._optimizers, self.config, self._announcer, closing)
        return exchange_in_step(own, collectives)

    def _with_center(
        self, parameters: Mapping[str, nn.Parameter], config: StrategyConfig, box: BoxChoice | None, closing: ExitStack
    ) -> Exchange:
        """The exchange with a center. The number of workers that share it gives the settings that are left out."""
        of_this = (layout_of(parameters), box, self._announcer.deadline, self._figures)
        shared = SharedCenter(self._team, self.config, *of_this)
        closing.callback(shared.close)
        self.num_workers = shared.num_pushers * (self.config.group_size or 1)
        self.config = resolved(replace(config, group_size=self.config.group_size), self.num_workers)
        made = (Replicated(parameters, self._optimizers, config, self._announcer, closing), self._step_group, shared)
        return HybridExchange(*made) if config.traits.in_groups else CenterExchange(*made)

    def _take_common_weights(self, center: Mapping[str, torch.Tensor] | None) -> None:
        named = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, value in (center or {}).items():
                named[name].copy_(value)
        self._team.broadcast.run([*self._model.parameters(), *saved_buffers(self._model)], self._announcer.deadline)

    def _end(self) -> None:
        """The weights that `evaluating` shows stay in the model."""
        self._figures.end()
        keep(self._model, self._parameters.values(), self.evaluating())
        self._is_finished = self._loads.is_open = True
        self._optimizers.release()

    def _require_training(self, what: str) -> None:
        if self._is_finished:
            raise SamovarError(f"{what}: finish() has ended training; close() and replicate again to train more")
        if self._loads.is_open:
            raise SamovarError(f"{what}: the model holds other weights inside evaluating(); call it after that block")
