"""Others that exchange the gradients of a model: replicas, and PyTorch's own wrappers and layers. They are refused."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from samovar.core.errors import InputError, SamovarError

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDPModule")
# DistributedDataParallel looks for a set of names here, when it is made.
_LOOKED_FOR = "_ddp_params_and_buffers_to_ignore"
_MARK = "samovar_replica"


class _Replicated:
    """A set that raises when DistributedDataParallel reads it. Copies and pickles of it are an empty set."""

    def __iter__(self) -> Iterator[str]:
        raise InputError(
            "DistributedDataParallel got a model that samovar.replicate has already; both would exchange its "
            "gradients: leave one of them out"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return set, ()


class _Hook:
    """A hook of a model, whose copies do nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, ("", "format")  # takes anything, and is read without Samovar


class LoadHook(_Hook):
    """Refuses weights that come into a model past its replica, while it is not open."""

    is_open = False

    def __call__(self, *_given: Any) -> None:
        if not self.is_open:
            raise SamovarError(
                "load_state_dict() of the model after replicate(): the strategy's center would not see these weights; "
                "load them before replicate(), or use replica.load()"
            )

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context in which weights may come and go."""
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False


class SaveHook(_Hook):
    """Tells once if a worker's own weights leave a model, while others count."""

    is_quiet = False

    def __init__(self, loads: LoadHook, tell: Callable[[str], None]) -> None:
        self._loads, self._tell, self._has_told = loads, tell, False

    def __call__(self, *_given: Any) -> None:
        if not (SaveHook.is_quiet or self._has_told or self._loads.is_open):
            self._has_told = True
            self._tell(
                "model.state_dict() outside of evaluating(): these are this worker's own weights, and not the center "
                "or mean of all; call it inside `with replica.evaluating():`, or after replica.finish()"
            )


def state_of(model: nn.Module) -> dict[str, Any]:
    """The model's state for Samovar's own use, without a SaveHook's word."""
    SaveHook.is_quiet = True
    try:
        return dict(model.state_dict())
    finally:
        SaveHook.is_quiet = False


def guard_weights(
    model: nn.Module, loads: LoadHook, closing: ExitStack, *, has_center: bool, tell: Callable[[str], None] | None
) -> None:
    """Until `closing`, refuse weights that a center would not see, and `tell` of a worker's own that leave."""
    hooks: list[Any] = []
    for module in model.modules() if has_center else ():
        if not isinstance(module, torch.jit.ScriptModule):
            hooks.append(module.register_load_state_dict_pre_hook(loads))  # type: ignore[no-untyped-call]
    if tell is not None and not isinstance(model, torch.jit.ScriptModule):
        hooks.append(model.register_state_dict_pre_hook(SaveHook(loads, tell)))  # type: ignore[no-untyped-call]
    for hook in hooks:
        closing.callback(hook.remove)


def require_alone(model: nn.Module) -> None:
    """Raises InputError if the model, or a part of it, is in a wrapper that exchanges, or has a layer that does."""
    for name, module in model.named_modules():
        kinds = [kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS]
        if kinds:
            raise InputError(
                f"replicate: the model is wrapped in {kinds[0]}, which exchanges itself; give the model inside"
            )
        if isinstance(module, nn.SyncBatchNorm):
            raise InputError(
                f"replicate: layer {name!r} is a SyncBatchNorm, which takes its statistics over torch.distributed; "
                "give BatchNorm layers, whose statistics replicate averages when the model is evaluated"
            )
    _require_unwrapped(model)


def unclaimed(model: nn.Module) -> list[str]:
    """The names of parameters that require a gradient and belong to no replica, so nothing updates them."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.numel() and not is_claimed(p)]


def release(parameters: Mapping[str, nn.Parameter]) -> None:
    """The parameters belong to no replica any more."""
    for parameter in parameters.values():
        vars(parameter).pop(_MARK, None)


def is_claimed(parameter: nn.Parameter) -> bool:
    """Whether the parameter belongs to a replica."""
    return bool(getattr(parameter, _MARK, None) == _mark_of(parameter))


def claim(parameters: Mapping[str, nn.Parameter]) -> None:
    """Note the parameters as those of a replica. Raises InputError if one belongs to another replica."""
    for name, parameter in parameters.items():
        if is_claimed(parameter):
            raise InputError(
                f"replicate: parameter {name!r} already belongs to a replica; call replicate once for it, or close() "
                "that replica first"
            )
    for parameter in parameters.values():
        setattr(parameter, _MARK, _mark_of(parameter))


def _mark_of(parameter: nn.Parameter) -> tuple[int, int]:
    """A copy, or a model that was saved whole and loaded, keeps the mark and is another."""
    return os.getpid(), id(parameter)


def keep_alone(model: nn.Module) -> None:
    """From now on DistributedDataParallel raises InputError if it gets this model."""
    setattr(model, _LOOKED_FOR, _Replicated())


def let_go(model: nn.Module) -> None:
    if isinstance(getattr(model, _LOOKED_FOR, None), _Replicated):
        setattr(model, _LOOKED_FOR, set())  # a traced model takes attributes and gives none back


def _require_unwrapped(model: nn.Module) -> None:
    """Look for a wrapper that holds the model, because the model does not know its wrapper."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    own = {id(parameter) for parameter in model.parameters()}
    wrapper = torch.nn.parallel.DistributedDataParallel
    for other in gc.get_objects():
        if issubclass(type(other), wrapper) and any(id(parameter) in own for parameter in other.module.parameters()):
            raise InputError(
                "replicate: a DistributedDataParallel has this model already; both would exchange its gradients: "
                "leave one of them out"
            )
