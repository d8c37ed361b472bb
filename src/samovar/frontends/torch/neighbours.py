"""PyTorch's own wrappers and layers that exchange the gradients of a model. They are refused by name."""

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from samovar.core.errors import InputError

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDPModule")
# DistributedDataParallel looks for a set of names here, when it is made.
_LOOKED_FOR = "_ddp_params_and_buffers_to_ignore"


class _Replicated:
    """A set that raises when DistributedDataParallel reads it. Copies and pickles of it are an empty set."""

    def __iter__(self) -> Iterator[str]:
        raise InputError(
            "DistributedDataParallel got a model that samovar.replicate has already; both would exchange its "
            "gradients: leave one of them out"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return set, ()


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


def keep_alone(model: nn.Module) -> None:
    """From now on DistributedDataParallel raises InputError if it gets this model."""
    setattr(model, _LOOKED_FOR, _Replicated())


def let_go(model: nn.Module) -> None:
    if isinstance(getattr(model, _LOOKED_FOR, None), _Replicated):
        delattr(model, _LOOKED_FOR)


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
