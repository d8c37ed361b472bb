"""A stand-in for a GPU that computes: tensors away from the CPU, whose values the CPU works out unseen.

To the code under test they are on a device of another type (torch's "meta"): `.numpy()` and `data_ptr()` fail, native
kernels for the CPU's memory do not take them, autograd keeps them there. An operator that is given tensors of both
places fails, as on a GPU, where it does not copy or take a single number. Inside `away_mode()` "meta" is that device.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

AWAY = torch.device("meta")
_lock = threading.Lock()
_threads_inside: list[None] = []
_BETWEEN = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)  # may see both places


class Away(torch.Tensor):
    """A tensor on the device; `inner` holds its values."""

    inner: torch.Tensor  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Away":
        place: dict[str, Any] = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        kind: dict[str, Any] = {"dtype": inner.dtype, "device": AWAY}
        away: Away = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **place, **kind)
        away.inner = inner
        return away

    @property
    def data(self) -> torch.Tensor:
        return Away(self.inner)  # with a version counter of its own, as torch's

    @data.setter  # type: ignore[override]
    def data(self, value: "Away") -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Away({self.inner!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _computed(function, args, dict(kwargs or {}))


class _AwayMode(TorchDispatchMode):
    """Makes what is asked for on the device; leaves the rest alone."""

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _computed(function, args, dict(kwargs or {}))


@contextmanager
def away_mode() -> Iterator[None]:
    """Inside, `AWAY` is a device that tensors and modules can be brought to, on this thread."""
    with _lock:
        _threads_inside.append(None)
        torch.__future__.set_swap_module_params_on_conversion(True)  # torch would not give a Parameter such memory
    try:
        with _AwayMode():
            yield
    finally:
        with _lock:
            _threads_inside.pop()
            torch.__future__.set_swap_module_params_on_conversion(bool(_threads_inside))


def _computed(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    is_away = any(isinstance(tensor, Away) for tensor in given)
    if function not in _BETWEEN and is_away:
        strays = [tensor for tensor in given if not isinstance(tensor, Away) and tensor.dim()]
        assert not strays, f"{function}: a tensor of shape {tuple(strays[0].shape)} is on the CPU, others are away"
    target = kwargs.get("device")
    if target is not None:
        is_away = target.type == AWAY.type
        kwargs["device"] = torch.device("cpu")
    elif function is torch.ops.aten.copy_.default:
        is_away = isinstance(args[0], Away)
    result = function(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if not is_away:
        return result
    by_inner = {id(tensor.inner): tensor for tensor in given if isinstance(tensor, Away)}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = by_inner.get(id(value))  # an operator in place gives what it was given
        return Away(value) if known is None else known

    return tree_map(wrapped, result)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Away) else value
