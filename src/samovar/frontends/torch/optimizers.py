"""The optimizers of one model. They step together, and only when the replica steps."""

import math
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from samovar.core.errors import InputError, SamovarError
from samovar.frontends.torch.neighbours import is_claimed

Given: TypeAlias = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]

_REFUSED: Mapping[type[torch.optim.Optimizer], str] = {
    torch.optim.LBFGS: (
        "LBFGS evaluates the loss several times per step, in an order that only it knows, so ranks cannot exchange in "
        "step; use SGD, Adam or AdamW"
    ),
}


class Optimizers:
    """One optimizer, or several that update different parameters of a model.

    Once they are guarded, `optimizer.step()` raises SamovarError outside `allowed()`, because such a step would have no
    exchange. So does that of another optimizer of the same parameters. Raises InputError if one of them cannot be used.
    """

    def __init__(self, given: Given) -> None:
        self.all = _checked(given)
        self.is_allowed = self.has_stepped = False
        self._factor, self._is_loading = 1.0, False
        self._hooks: list[RemovableHandle] = []
        self._updated: frozenset[int] = frozenset()
        self._starts_empty = [not optimizer.state for optimizer in self.all]
        self._frozen: list[nn.Parameter] = []
        self._trained: set[int] = set()

    def guard(self, model: nn.Module) -> None:
        """From now on they step only with the replica, and the same parameters of the model train."""
        self._updated = self._members()
        self._frozen = [p for p in model.parameters() if not p.requires_grad]
        self._trained = {id(p) for group in self.param_groups for p in group["params"] if p.requires_grad}
        own = weakref.WeakMethod(self._require_allowed)  # torch keeps the hooks of all optimizers
        self._hooks = [register_optimizer_step_pre_hook(lambda *step: (check := own()) and check(*step))]
        loaded = weakref.WeakMethod(self._loaded)
        for optimizer in self.all:
            with suppress(AttributeError):  # one that wraps another may have no hooks
                self._hooks.append(optimizer.register_load_state_dict_post_hook(lambda o: (f := loaded()) and f(o)))
        self._follow_layouts()  # the exchange has taken the weights by then

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.all for group in optimizer.param_groups]

    def learning_rate(self) -> float:
        """That of the first group of parameters; NaN if it has none, as if its optimizer finds its own."""
        rate = self.param_groups[0].get("lr")
        return math.nan if rate is None else float(rate)

    @property
    def looks_ahead(self) -> bool:
        """Whether all momentum is in Nesterov's form."""
        return all(group.get("nesterov") for group in self.param_groups if group.get("momentum"))

    @property
    def are_adaptive(self) -> bool:
        """Whether steps are divided by the size of gradients, as Adam's are, and not as those of SGD."""
        return not any("dampening" in one.defaults or isinstance(one, torch.optim.ASGD) for one in self.all)

    @property
    def title(self) -> str:
        return " and ".join(type(optimizer).__name__ for optimizer in self.all)

    def scale_rates(self, factor: float) -> None:
        """Multiply all learning rates; raises InputError if a scheduler has them already, and would put them back."""
        if factor == 1.0:
            return
        if any("initial_lr" in group for group in self.param_groups):
            raise InputError(
                f"replicate: multiplies learning rates by {factor:g}, and a scheduler, or the state of a run with one, "
                "keeps the ones before; make the scheduler, and load that state, after replicate"
            )
        self._factor = factor
        self.multiply_rates(factor)

    def multiply_rates(self, factor: float) -> None:
        """Multiply all learning rates, and those that schedulers begin with."""
        for group in self.param_groups if factor != 1.0 else ():
            group.update({name: group[name] * factor for name in ("lr", "initial_lr") if group.get(name)})

    def step(self) -> None:
        with self.allowed():
            for optimizer in self.all:
                optimizer.step()
        self.has_stepped = True  # one that wraps another may call no hooks of its own

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A context in which they may step."""
        self.is_allowed = True
        try:
            yield
        finally:
            self.is_allowed = False

    def begin_again(self) -> None:
        """Forget what they keep of past steps, because it belongs to weights that are lost.

        A step makes missing state again, which need not be zero. Where it was there at the start, it becomes zero.
        """
        for optimizer, starts_empty in zip(self.all, self._starts_empty, strict=True):
            if starts_empty:
                optimizer.state.clear()
        for _, state in self._states():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        # Reading a missing entry of an optimizer's defaultdict would make one.
        return next((o.state[parameter] for o in self.all if parameter in o.state), {})

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer as it gives it; of several optimizers a list."""
        states = [optimizer.state_dict() for optimizer in self.all]
        return states[0] if len(states) == 1 else {"optimizers": states}

    def require_fitting(self, state: Mapping[str, Any]) -> None:
        """Raises InputError if the state is of other optimizers, or of other groups of parameters."""
        states = [own["param_groups"] for own in state.get("optimizers", [state])]
        all_groups = (states, [optimizer.param_groups for optimizer in self.all])
        there, here = ([[len(group["params"]) for group in groups] for groups in each] for each in all_groups)
        # Torch adds switches in new versions, and gives them to an older state.
        needed = [{name for name, it in o.defaults.items() if not isinstance(it, bool | None)} for o in self.all]
        lacking = sorted(set().union(*(names.difference(*own) for names, own in zip(needed, states, strict=False))))
        if there != here or lacking:
            raise InputError(
                f"load_state_dict: the state is not of {self.title}: groups of {there} parameters there, {here} here; "
                f"settings that it lacks: {lacking}. Give replicate the optimizers of the run that saved it"
            )

    def load_state_dict(self, state: Mapping[str, Any], kept: Sequence[str] = ()) -> None:
        """Load a state, except the settings `kept` of each group."""
        own = [{name: group[name] for name in kept if name in group} for group in self.param_groups]
        self._is_loading = True
        try:
            for optimizer, saved in zip(self.all, state.get("optimizers", [state]), strict=True):
                optimizer.load_state_dict(dict(saved))
        finally:
            self._is_loading = False
        for group, settings in zip(self.param_groups, own, strict=True):
            group.update(settings)
        self._follow_layouts()

    def _follow_layouts(self) -> None:
        """Lay the state out in memory as its parameters are: fused optimizers read both in one order."""
        for p, state in self._states():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == p.shape and value.stride() != p.stride():
                    state[key] = torch.empty_like(p, dtype=value.dtype).copy_(value)

    def _states(self) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
        """Each parameter with its state. An optimizer may keep more, under other keys."""
        for optimizer in self.all:
            yield from ((p, state) for p, state in optimizer.state.items() if isinstance(p, torch.Tensor))

    def require_same_parameters(self) -> None:
        """Raises SamovarError if a parameter was added, removed, or unfrozen with no other replica that has it."""
        unfrozen = any(p.requires_grad and not is_claimed(p) for p in self._frozen)
        if self._members() != self._updated or unfrozen:
            raise SamovarError(
                "other parameters train than at replicate(): one was added, removed or unfrozen. Call finish() and "
                "close(), and replicate again, or let all that will train require a gradient before replicate()"
            )

    def release(self) -> None:
        """Give the optimizers back to the user."""
        for hook in self._hooks:
            hook.remove()

    def _members(self) -> frozenset[int]:
        return frozenset(id(p) for group in self.param_groups for p in group["params"])

    def _loaded(self, optimizer: torch.optim.Optimizer) -> None:
        self._follow_layouts()
        if not self._is_loading and self._factor != 1.0:
            warnings.warn(
                f"{type(optimizer).__name__}.load_state_dict() after replicate(): the rates of the state replace those "
                f"that replicate multiplied by {self._factor:g}. If the state is of a run without that factor, "
                "multiply lr and initial_lr of all groups by replica.rate_factor",
                stacklevel=6,
            )

    def _require_allowed(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        is_own = any(optimizer is one for one in self.all)
        if not (is_own or self._changes(optimizer)):
            return
        if not self.is_allowed:
            hint = "call replica.step(), or replica.step(lambda: scaler.step(optimizer)) if something calls it for you"
            raise SamovarError(
                f"{type(optimizer).__name__}.step() was called outside of replica.step(), and would have no exchange; "
                f"{hint if is_own else 'replicate() got another optimizer of these parameters: give it this one'}"
            )
        self.has_stepped = True  # this one, or one inside it, as SAM's

    def _changes(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer of the user's has gradients of parameters that train here."""
        every = (p for group in optimizer.param_groups for p in group["params"])
        return any(id(p) in self._trained and p.grad is not None for p in every)


def _checked(given: Given) -> tuple[torch.optim.Optimizer, ...]:
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not several:
        raise InputError("replicate: got an empty list of optimizers; give at least one")
    for optimizer in several:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(
                f"replicate: optimizer is a {type(optimizer).__name__}; give a torch.optim optimizer, or a list of them"
            )
        for kind, sentence in _REFUSED.items():
            if isinstance(optimizer, kind):
                raise InputError(f"replicate: {sentence}")
    seen: set[int] = set()
    for optimizer in several:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if own & seen:
            raise InputError(
                f"replicate: {len(own & seen)} parameters are in two of the optimizers; give each parameter to one"
            )
        seen |= own
    return several
