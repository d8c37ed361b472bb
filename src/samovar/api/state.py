"""A replica's state as plain tensors, numbers and strings, which `torch.save` and safe loading understand."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from samovar.collectives.engine import digest_number
from samovar.core.errors import InputError
from samovar.core.stateful import State
from samovar.frontends.torch.neighbours import state_of
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.state import mean_buffers
from samovar.strategies.config import StrategyConfig
from samovar.strategies.traits import KINDS

_FIELDS = ("rank", "world_size", "strategy", "step", "epochs", "model", "optimizer", "strategy_state", "center")


def checked(
    state: Mapping[str, Any], rank: int, world_size: int, config: StrategyConfig
) -> tuple[Mapping[str, Any], bool, bool]:
    """The state, whether this rank saved it, and whether optimizers keep theirs.

    They do not if ranks must have the same, and those that saved had one each.
    Raises InputError if another rank of the same run saved it, or none.
    """
    missing = [field for field in _FIELDS if field not in state]
    if missing:
        raise InputError(f"load_state_dict: {', '.join(missing)} missing; give what replica.state_dict() returned")
    found = num_tensors(state)
    if found != state.get("num_tensors", found):
        raise InputError(
            f"load_state_dict: {found} of {state['num_tensors']} tensors are in the state; give all that "
            "replica.state_dict() returned. With torch.distributed.checkpoint, give it "
            "samovar.DistributedState(replica, folder)"
        )
    saved_by = state["world_size"], state["strategy"], state.get("group_size", config.group_size)
    is_own = saved_by == (world_size, config.name, config.group_size)
    if is_own and state["rank"] != rank:
        raise InputError(
            f"load_state_dict: this is the state of rank {state['rank']}, and here is rank {rank}: every rank loads "
            "what it saved itself"
        )
    kind = KINDS.get(state["strategy"])
    had_the_same = state["world_size"] == 1 or (kind is not None and not kind.traits.exchanges_weights)
    may_differ = config.exchanges_weights and not config.traits.in_groups
    return state, is_own, is_own or had_the_same or may_differ


def require_fitting(state: Mapping[str, Any], model: nn.Module, optimizers: Optimizers) -> None:
    """Raises InputError if the state is of another model, or of other optimizers."""
    found, here = (
        {name: tuple(np.shape(value)) for name, value in tensors.items() if not name.endswith("_extra_state")}
        for tensors in (state["model"], state_of(model))
    )
    for name in here | found:
        if here.get(name) != found.get(name):
            raise InputError(
                f"load_state_dict: the state is of another model: shape of {name!r}: {found.get(name, 'missing')} "
                f"there, {here.get(name, 'missing')} here; build the model of the run that saved it"
            )
    optimizers.require_fitting(state["optimizer"])


def identity_of(state: Mapping[str, Any]) -> float:
    """48 bits that are equal for all states that the ranks of one run saved at one step; at a center, at any steps."""
    kind = KINDS.get(state["strategy"])
    fields = ("world_size", "strategy", *(() if kind is not None and kind.traits.is_async else ("step",)))
    named = repr([state.get("run"), *(state[field] for field in fields)])
    return digest_number(named)


def num_tensors(value: Any) -> int:
    """The number of tensors in a state."""
    if isinstance(value, Mapping):
        return sum(map(num_tensors, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(num_tensors, value))
    return int(isinstance(value, torch.Tensor))


@torch.no_grad()
def keep(model: nn.Module, parameters: Iterable[nn.Parameter], shown: AbstractContextManager[None]) -> None:
    """These parameters, and the means of buffers, that the model has inside `shown` stay in it."""
    tensors = [*parameters, *mean_buffers(model)]
    with shown:
        final = [tensor.detach().clone() for tensor in tensors]
    for tensor, value in zip(tensors, final, strict=True):
        tensor.copy_(value)


def from_arrays(value: Any) -> Any:
    """A deep copy on the CPU, where a model fits twice, with tensors in place of NumPy arrays."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copy = {key: from_arrays(item) for key, item in value.items()}
        return Counter(copy) if isinstance(value, Counter) else copy  # schedulers count on it
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(from_arrays, value))  # a named one, too
    return value


def to_arrays(state: Mapping[str, Any]) -> State:
    """The state of a strategy, back from tensors."""
    return {name: value.cpu().numpy() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
