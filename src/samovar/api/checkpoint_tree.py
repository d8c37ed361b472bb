"""A state as JSON and named tensors, and back. Nothing is pickled."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from samovar.checkpoint.arrays import DTYPE_CODES
from samovar.checkpoint.one_file import Block, Part
from samovar.core.errors import InputError

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
