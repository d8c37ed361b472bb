"""A stand-in for a GPU that computes: tensors away from the CPU, whose values the CPU works out unseen.

To the code under test they are on a device of another type (torch's "meta"): `.numpy()` and `data_ptr()` fail, native
kernels for the CPU's memory do not take them. Autograd keeps them there. An operator that is given tensors of both
places fails, as on a GPU, where it does not copy or take a single number. Inside `away_mode()` "meta" is that device.

It counts the bytes that cross the bus and the host's waits. With a seed its streams run late, in a drawn order
(`tests.fake_streams`), so that what forgot an event computes with other values: new memory is not a number.
Not imitated: memory that is given back while a stream still uses it.
"""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from tests.fake_streams import FakeDevice, here, on_device

AWAY = torch.device("meta")
_lock = threading.Lock()
_threads_inside: list[None] = []
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
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

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def set_(self, *given: Any) -> "Away":
        return Away(torch.empty(0, dtype=self.dtype).set_(*given))  # work on this one may still come

    def tolist(self) -> Any:
        return self.cpu().tolist()

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
def away_mode(seed: int | None = None) -> Iterator[FakeDevice]:
    """Inside, `AWAY` is a device that tensors and modules can be brought to, on this thread.

    Without a seed it does all work at once.
    """
    with _lock:
        _threads_inside.append(None)
        torch.__future__.set_swap_module_params_on_conversion(True)  # torch would not give a Parameter such memory
    try:
        with on_device(FakeDevice(seed)) as device, _AwayMode():
            yield device
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
    if function is torch.ops.aten.is_pinned.default:
        return args[0].untyped_storage().data_ptr() in here().pinned
    comes_from = is_away and not (function is torch.ops.aten.copy_.default and not isinstance(args[1], Away))
    target = kwargs.get("device")
    if target is not None:
        is_away = target.type == AWAY.type
        kwargs["device"] = torch.device("cpu")
    elif function is torch.ops.aten.copy_.default:
        is_away = isinstance(args[0], Away)
    if kwargs.pop("pin_memory", False):
        assert not is_away, f"{function}: only memory of the host can be pinned"
        pinned = function(*args, **kwargs)
        here().pinned.add(pinned.untyped_storage().data_ptr())
        return pinned
    if function in _BETWEEN and is_away != comes_from and given:
        return _copied(function, args, kwargs, is_away)
    if function in _READS and is_away:
        here().bytes_to_host += 8
        here().synchronize()
        return function(*tree_map(_inner, args))
    if not is_away:
        return function(*args, **kwargs)
    return _on_device(function, args, kwargs, given)


def _copied(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], to_device: bool) -> Any:
    """A copy over the bus. The host waits, unless it says otherwise and its memory is pinned."""
    device = here()
    is_in_place = function is torch.ops.aten.copy_.default
    source = args[1] if is_in_place else args[0]
    number = source.numel() * (args[0].element_size() if is_in_place else source.element_size())
    device.bytes_to_device += number if to_device else 0
    device.bytes_to_host += 0 if to_device else number
    host = args[int(to_device)] if is_in_place else source
    is_free = (args[2:] == (True,) or kwargs.get("non_blocking", False)) and (
        not isinstance(host, Away) and host.untyped_storage().data_ptr() in device.pinned
    )
    if not is_free and to_device and is_in_place:
        args = (args[0], args[1].clone())
    elif not is_free and to_device:
        args = (args[0].clone(), *args[1:])
    result = _on_device(function, args, kwargs, [tensor for tensor in args if isinstance(tensor, Away)])
    if not is_free:
        device.synchronize()
    if to_device:
        return result
    return args[0] if is_in_place else result.inner


def _on_device(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Any]) -> Any:
    """Work of the current stream, which may be done later; shapes are known at once."""
    by_inner = {id(tensor.inner): tensor for tensor in given if isinstance(tensor, Away)}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = by_inner.get(id(value))  # an operator in place gives what it was given
        return Away(value) if known is None else known

    args, kwargs = tree_map(_inner, (args, kwargs))
    if here().is_idle or _is_view(function):
        return tree_map(wrapped, function(*args, **kwargs))
    return tree_map(wrapped, _queued(function, args, kwargs))


def _queued(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results, whose values come when the work is done."""
    metas: dict[int, torch.Tensor] = {}
    tensors: dict[int, torch.Tensor] = {}  # by their meta's

    def as_meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return AWAY if isinstance(value, torch.device) else value
        if id(value) not in metas:
            meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=AWAY)
            metas[id(value)], tensors[id(meta)] = meta, value
        return metas[id(value)]

    results = tree_map(
        lambda value: tensors[id(value)] if id(value) in tensors else _unset(value),
        function(*tree_map(as_meta, args), **tree_map(as_meta, kwargs)),
    )

    def run() -> None:
        found = function(*args, **kwargs)
        for place, value in zip(tree_flatten(results)[0], tree_flatten(found)[0], strict=True):
            if isinstance(place, torch.Tensor) and place is not value:
                place.copy_(value)

    here().current.add(run)
    return results


def _unset(value: Any) -> Any:
    """New memory, which holds anything."""
    if not isinstance(value, torch.Tensor):
        return value
    empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return empty.fill_(math.nan if value.dtype.is_floating_point else 1)


def _is_view(function: Any) -> bool:
    infos = [result.alias_info for result in function._schema.returns]
    return bool(infos) and all(info is not None and not info.is_write for info in infos)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Away) else value
