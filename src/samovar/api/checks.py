"""The checks of a replica: before training, of the calls of the user's loop, and of the weights."""

import dataclasses
import hashlib
import json
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from samovar.api.figures import ReplicaFigures
from samovar.api.figures_wanted import warn
from samovar.api.process_group import Announcer, ProcessGroup
from samovar.collectives.engine import differing_ranks, digest_record
from samovar.core.errors import InputError, NotFinite, SamovarError
from samovar.core.layout import LOOK_EVERY_STEPS
from samovar.frontends.torch.late import LateLook
from samovar.frontends.torch.neighbours import unclaimed
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.parameters import (
    description,
    device_of,
    digest_of,
    first_not_finite,
    layout_of,
    require_kept,
    saved_buffers,
)
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import MomentumShares, shared_momentum
from samovar.strategies.recipe import Recipe

_COMPARED = ("model (its tensors' names, shapes, types or order, or which of them train)", "settings")


def require_agreement(
    processes: ProcessGroup,
    announcer: Announcer,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    config: StrategyConfig,
    recipe: Recipe | None,
) -> tuple[float, list[torch.Tensor]]:
    """The number of this run, drawn by rank 0, and the tensors that rank 0 sends at the start.

    These are all, or those that are saved if shapes of the others differ between ranks.

    Raises InputError that names the ranks whose model, trained parameters or settings differ from rank 0's.
    """
    run = float(secrets.randbits(48))
    if processes.group.world_size == 1:
        return run, []
    described = json.dumps(description(model, parameters)) + layout_of(parameters).fingerprint()
    settings = json.dumps([dataclasses.asdict(config), recipe is not None])
    shapes = json.dumps([[name, list(b.shape), str(b.dtype)] for name, b in model.named_buffers()])
    digests = [digest_record(hashlib.sha256(text.encode()).digest()) for text in (described, settings, shapes)]
    records = processes.collectives.records(1 + sum(map(len, digests)))
    records.post([run, *(word for digest in digests for word in digest)])
    rows = records.collect(announcer.deadline())
    *compared, of_shapes = np.split(rows[:, 1:], len(digests), axis=1)
    for what, part in zip(_COMPARED, compared, strict=True):
        if differing := differing_ranks(part):
            raise InputError(
                f"replicate: rank {processes.group.rank}: ranks {differing} differ from rank 0 in their {what}; run "
                "the same script with the same arguments on all ranks"
            )
    buffers = saved_buffers(model) if differing_ranks(of_shapes) else model.buffers()
    return float(rows[0, 0]), [*model.parameters(), *buffers]


def with_momentum(config: StrategyConfig, optimizers: Optimizers, num_workers: int) -> MomentumShares:
    """The places of momentum, with the unresolved `config` and notices for the user.

    Raises InputError if the strategy forbids an optimizer's momentum, or needs one.
    """
    momentum = max((float(group.get("momentum") or 0.0) for group in optimizers.param_groups), default=0.0)
    first_moment = max((_first_moment(group) for group in optimizers.param_groups), default=0.0)
    if config.traits.needs_momentum:
        return shared_momentum(config, momentum or first_moment, num_workers)
    shares = shared_momentum(config, momentum, num_workers)
    if shares.worker != momentum or (shares.is_nesterov and not optimizers.looks_ahead):
        raise InputError(f"replicate: {shares.refusal}")
    if config.traits.adds_steps and first_moment:
        notice = (
            f"{config.name}: {optimizers.title} averages gradients over steps (betas). At a center that adds up steps, "
            f"this acts as a momentum of each worker; betas=(0.0, ...) leaves it out"
        )
        return replace(shares, notices=(notice,))
    return shares


def _first_moment(group: Mapping[str, Any]) -> float:
    """Adam's beta1 and similar settings; 0 if the group has none."""
    betas = group.get("betas") or (0.0,)
    return float(betas[0] or 0.0)


def others_of(own: object, also: object) -> Sequence[Any]:
    """The replicas in `also`. Raises InputError if they are not other replicas than `own`, each once."""
    kind = type(own)
    if not isinstance(also, list | tuple) or len({id(o) for o in (own, *also) if isinstance(o, kind)}) <= len(also):
        raise InputError(f"backward: got also={also!r}; give a list of other replicas than this one, each once")
    return also


class CallOrder:
    """The calls of one replica. If it `exchanges_gradients`, each step needs a call of its backward.

    A missing call would train wrong without an error.
    """

    def __init__(self, rank: int, *, exchanges_gradients: bool) -> None:
        self._rank = rank
        self._exchanges_gradients = exchanges_gradients
        self._more: bool | None = None  # what the last backward said; None if there was none since the step
        self._num_steps = self._num_backwards = 0

    def backward(self, *, more: bool) -> None:
        self._more = bool(more)
        self._num_backwards += 1

    def step(self) -> None:
        """Raises SamovarError if gradients of this step were not exchanged."""
        more, self._more = self._more, None
        self._num_steps += 1
        if not self._exchanges_gradients or more is False:
            return
        if more:
            raise SamovarError(
                f"step(): rank {self._rank}: the last backward(loss, more=True) promised another one, and none "
                "came, so gradients were not exchanged; leave more=True out in the last part of a step"
            )
        raise SamovarError(
            f"step(): rank {self._rank}: there was no replica.backward() since the last step, so gradients were not "
            "exchanged; call replica.backward(loss) in place of loss.backward(), and before step()"
        )

    def name_open_step(self) -> None:
        """Warn if a state that is taken now lacks gradients of a step under way."""
        if self._more is not None and not self._rank:
            warn(
                "save() or state_dict() before step(): the gradients since the last step are not in the state, and a "
                "run that resumes steps without them; call it after step()"
            )

    def require_steps(self, what: str) -> None:
        """Raises SamovarError if there were backward passes and never a step, and none is under way."""
        if self._num_backwards and not self._num_steps and not self._more:
            raise SamovarError(
                f"{what}: rank {self._rank}: there were {self._num_backwards} calls of replica.backward() and none of "
                "replica.step(), so nothing was learned together; call replica.step() in place of optimizer.step()"
            )


class WeightChecks:
    """The checks of one replica, on this rank. Ranks compare weights every `compare_steps` steps, if that is given."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        optimizers: Optimizers,
        processes: ProcessGroup,
        announcer: Announcer,
        config: StrategyConfig,
        compare_steps: int | None,
    ) -> None:
        self._model, self._parameters, self._optimizers = model, parameters, optimizers
        self._rank, self._announcer = processes.group.rank, announcer
        self._is_async = config.is_async
        self._keeps_equal = not config.exchanges_weights and not config.needs_center and processes.group.world_size > 1
        self._compare_steps = compare_steps
        self._first_exchange = (config.sync_period_steps or 0) if config.traits.is_elastic else 0
        self._late_look = LateLook()  # on a device

    def stepped(self, step: int, figures: ReplicaFigures) -> None:
        """After each step: look at the weights if it is time. The first step shows other weights, rates or momentum."""
        if step % LOOK_EVERY_STEPS == 0:
            if device_of(self._parameters) is None:
                self.require_finite(step, figures)
            elif not self._is_async and (found := self._late_look.look(step, self._parameters)) is not None:
                self._refuse(found[1], found[0], figures)  # what the look before found: none waits for the device
        if step == LOOK_EVERY_STEPS and not self._optimizers.has_stepped and not self._rank:
            warn(
                f"the function given to step() stepped no optimizer in {step} steps; give none, or one that updates "
                "the weights, such as lambda: scaler.step(optimizer), and compute gradients before step()"
            )
        if step % LOOK_EVERY_STEPS == 1:
            require_kept(self._model, self._parameters)
        if step == 1 or (self._compare_steps and step % self._compare_steps == 0):
            self.show_digest()

    def require_finite(self, step: int, figures: ReplicaFigures) -> None:
        """Raise NotFinite if ranks train in step and a weight is infinite or NaN; a center looks by itself."""
        if not self._is_async and (name := first_not_finite(self._parameters)):
            self._refuse(name, step, figures)

    def before_evaluation(self, step: int, figures: ReplicaFigures) -> None:
        """Require finite weights, let ranks compare equal ones, and warn if the center has learned nothing yet."""
        self.require_finite(step, figures)
        require_kept(self._model, self._parameters)
        self.show_digest()
        first, self._first_exchange = self._first_exchange, 0
        if 0 < step < first and not self._rank:
            warn(
                f"the center that is evaluated lacks all steps so far: the first exchange comes after step {first}, "
                f"and this is step {step}; make more steps, or give a shorter sync_period"
            )

    def _refuse(self, name: str, step: int, figures: ReplicaFigures) -> None:
        found = (group.get("lr") for group in self._optimizers.param_groups)
        rates = sorted({float(rate) for rate in found if rate is not None})
        raise NotFinite(
            f"rank {self._rank}: the weights of {name} are not finite after step {step} (loss {figures.loss:.4g}, "
            f"learning rate {', '.join(f'{rate:.4g}' for rate in rates)}); lower the learning rate, or look at this "
            "rank's data"
        )

    def show_digest(self) -> None:
        """Let ranks compare weights that the strategy keeps equal, at the next call that all make."""
        if self._keeps_equal:
            self._announcer.uneven.show_digest(digest_of(self._parameters))


def name_unclaimed(model: nn.Module) -> None:
    """Warn of parameters that require gradients and are in no optimizer at the first step."""
    if names := unclaimed(model):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        warnings.warn(
            f"{len(names)} parameter(s) require gradients but are in no optimizer, and stay as they are: {shown}",
            stacklevel=4,
        )
