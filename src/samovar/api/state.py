"""A replica's state: what fits, copies of it, and the same as JSON with named tensors. Nothing is pickled."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors.torch
import torch
from torch import nn

from samovar.checkpoint.arrays import DTYPE_CODES
from samovar.checkpoint.one_file import Block, Part
from samovar.collectives.engine import digest_number
from samovar.core.errors import InputError
from samovar.core.host import create_empty
from samovar.core.stateful import State
from samovar.frontends.torch.neighbours import state_of
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.state import mean_buffers
from samovar.membership.rounds import Given
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
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        copy = {key: from_arrays(item) for key, item in value.items()}
        return Counter(copy) if isinstance(value, Counter) else copy  # schedulers count on it
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(from_arrays, value))  # a named one, too
    return value


def to_arrays(state: Mapping[str, Any]) -> State:
    """The state of a strategy, back from tensors."""
    return {name: value.cpu().numpy() if isinstance(value, torch.Tensor) else value for name, value in state.items()}


# None, a bool, number, string or list is itself. An object with one field is a tensor (real, or
# complex as pairs), a dict, a Counter, a tuple or a float.
Tree: TypeAlias = Any
_CODES: Mapping[torch.dtype, str] = {
    **{getattr(torch, name): code for name, code in DTYPE_CODES.items()},
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def taken_apart(state: Any) -> tuple[Tree, dict[str, torch.Tensor]]:
    """The tree of `state`, and its tensors by their places in it. Raises InputError for another kind of object."""
    tensors: dict[str, torch.Tensor] = {}
    return _tree(state, "", tensors), tensors


def put_together(tree: Tree, tensor: Callable[[str], torch.Tensor]) -> Any:
    """The state whose tree this is. `tensor(place)` gives its tensors."""
    if isinstance(tree, list):
        return [put_together(item, tensor) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    match kind:
        case "tensor" | "complex":
            return tensor(value) if kind == "tensor" else torch.view_as_complex(tensor(value))
        case "dict" | "counter":
            items = {key: put_together(item, tensor) for key, item in value}
            return items if kind == "dict" else Counter(items)
        case "tuple":
            return tuple(put_together(item, tensor) for item in value)
    return float(value)


def part_of(state: Any) -> Part:
    """`state` for a checkpoint file; it shares the memory of tensors that are on the CPU and contiguous."""
    tree, tensors = taken_apart(state)
    return Part(tree, {place: block_of(tensor) for place, tensor in tensors.items()})


def block_of(tensor: torch.Tensor) -> Block:
    own = tensor.detach().cpu().contiguous()
    return Block(_CODES[tensor.dtype], tuple(tensor.shape), own.reshape(-1).view(torch.uint8).numpy().data)


def _tree(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Tree:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    is_complex = isinstance(value, torch.Tensor) and value.is_complex()
    if isinstance(value, torch.Tensor) and (is_complex or value.dtype in _CODES) and not value.is_sparse:
        while place in tensors:  # keys 0 and "0", for example
            place += "'"
        tensors[place] = torch.view_as_real(value.detach().resolve_conj()) if is_complex else value
        return {"complex" if is_complex else "tensor": place}
    if isinstance(value, Mapping) and all(isinstance(key, str | int | float | None) for key in value):
        pairs = [[key, _tree(item, _inner(place, key), tensors)] for key, item in value.items()]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    if isinstance(value, list | tuple):
        items = [_tree(item, _inner(place, index), tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    kind = f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
    hint = ". Give its state_dict()" if hasattr(value, "state_dict") else ""
    raise InputError(
        f"save: {place or 'the state'} is a {kind}; a checkpoint holds numbers, strings, None, dense tensors, and "
        f"lists, tuples and dicts of these{hint}"
    )


def _inner(place: str, key: object) -> str:
    return f"{place}/{key}" if place else str(key)


_BUFFER = "buffer/"
_STRATEGY = "strategy/"
_WEIGHTS = "weights"


def packed(state: Given) -> tuple[dict[str, Any], int]:
    """Numbers, and the descriptor of a new file with the tensors in safetensors' format, which the caller owns."""
    numbers = {name: value for name, value in state["strategy"].items() if not isinstance(value, np.ndarray)}
    arrays = {f"{_STRATEGY}{name}": value for name, value in state["strategy"].items() if isinstance(value, np.ndarray)}
    tensors = {name: torch.from_numpy(value) for name, value in {**arrays, _WEIGHTS: state["weights"]}.items()}
    # Copies: buffers may share a tensor, which safetensors refuses.
    copies = {name: buffer.detach().to("cpu", copy=True) for name, buffer in state["buffers"].items()}
    buffers = {f"{_BUFFER}{name}": copy.contiguous() for name, copy in copies.items()}
    descriptor = create_empty()
    _file_of(descriptor).write_bytes(safetensors.torch.save({**tensors, **buffers}))
    return {"strategy": numbers, "replica": state["replica"]}, descriptor


def unpacked(content: Mapping[str, Any], descriptor: int) -> Given:
    """The state again. The descriptor stays the caller's."""
    tensors = safetensors.torch.load(_file_of(descriptor).read_bytes())
    weights = tensors.pop(_WEIGHTS).numpy()
    buffers = {name.removeprefix(_BUFFER): value for name, value in tensors.items() if name.startswith(_BUFFER)}
    arrays = {
        name.removeprefix(_STRATEGY): value.numpy() for name, value in tensors.items() if name.startswith(_STRATEGY)
    }
    return {
        "weights": weights,
        "strategy": {**content["strategy"], **arrays},
        "buffers": buffers,
        "replica": content["replica"],
    }


def _file_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


@torch.no_grad()
def take_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Take the values of buffers, and of parameters that nothing trains. A cache may have another size here."""
    own, saved = {**dict(model.named_parameters()), **dict(model.named_buffers())}, state_of(model)
    for name, value in buffers.items():
        if name in saved or (name in own and own[name].shape == value.shape):
            own[name].copy_(value)
