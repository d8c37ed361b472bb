"""The parameters of a module that take part in an exchange, and the modules that cannot."""

import hashlib
import itertools
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from samovar.core.errors import InputError, SamovarError
from samovar.core.layout import Layout, ParameterSpec, all_finite
from samovar.frontends.torch.neighbours import require_alone
from samovar.frontends.torch.optimizers import Optimizers

# The flat buffers are float32. These types are copied into them, which rounds nothing, and back.
MIRRORED_DTYPES = (torch.bfloat16, torch.float16)
_ACCELERATOR = torch.accelerator.current_accelerator()
DEVICE_TYPES = ("cpu", "cuda", *({_ACCELERATOR.type} - {"cuda"} if _ACCELERATOR else ()))


def trained_parameters(model: nn.Module, optimizers: Optimizers) -> dict[str, nn.Parameter]:
    """The parameters of `model` that require a gradient and that `optimizers` update, by name, in the model's order.

    A tied parameter appears once, under its first name. Raises InputError if model and optimizers cannot be used, or do
    not belong together.
    """
    _check_model(model)
    updated = {id(p) for group in optimizers.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    strangers = len(updated - {id(p) for p in named.values()})
    if strangers:
        raise InputError(
            f"replicate: the optimizer updates {strangers} parameters that the model does not have; give one module "
            "that holds all of them (torch.nn.ModuleList), or one optimizer per model"
        )
    trained = {name: p for name, p in named.items() if p.requires_grad and id(p) in updated and p.numel()}
    if not trained:
        raise InputError("replicate: the optimizer updates no parameter of the model that is trained; check both")
    for name, parameter in trained.items():
        require_exchangeable(name, parameter)
    _require_one_device(trained)
    return trained


def device_of(parameters: Mapping[str, nn.Parameter]) -> torch.device | None:
    """The device of all parameters; None on the CPU, where ranks share the memory of the model itself."""
    device = next(iter(parameters.values())).device
    return None if device.type == "cpu" else device


def require_kept(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raises SamovarError if the model does not compute with one of the parameters that the optimizer updates."""
    kept = {id(parameter) for parameter in model.parameters()}
    if name := next((name for name, parameter in parameters.items() if id(parameter) not in kept), None):
        raise SamovarError(
            f"parameter {name!r} of the model was replaced after replicate(), so its training has no effect; write "
            "into it instead (load_state_dict without assign=True), or close() and replicate again"
        )


def require_apart(model: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
    """Raises InputError if another tensor of the model has the memory of one that trains, which an exchange moves."""
    places = {parameter.data_ptr(): name for name, parameter in trained.items()}
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        other = places.get(tensor.data_ptr() if tensor.layout == torch.strided else 0, name)
        if other != name:
            raise InputError(
                f"replicate: {name!r} and {other!r} share memory but are two tensors, and one would stay behind; "
                "tie them by using one Parameter object in both places"
            )


def require_dense_gradients(model: nn.Module) -> None:
    """Raises InputError if a layer makes sparse gradients."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise InputError(
                f"replicate: layer {name!r} makes sparse gradients, and only dense ones are exchanged: "
                "give it sparse=False"
            )


def layout_of(parameters: Mapping[str, nn.Parameter], *extra: ParameterSpec) -> Layout:
    """The layout in the order in which backward usually finishes (the reverse of the model's), then `extra`."""
    last = torch.channels_last
    specs = [
        ParameterSpec(
            name, tuple(p.shape), p.dim() == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=last)
        )
        for name, p in parameters.items()
    ]
    return Layout.pack([*reversed(specs), *extra])


def description(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[list[object]]:
    """The properties that must be equal on all ranks besides the layout: tensors that are saved, and their types."""
    saved = set(map(id, saved_buffers(model)))
    tensors = [*model.named_parameters(), *((name, b) for name, b in model.named_buffers() if id(b) in saved)]
    return [[name, list(t.shape), str(t.dtype), name in parameters] for name, t in tensors]


def saved_buffers(model: nn.Module) -> list[torch.Tensor]:
    """The buffers that are saved, each once. Any other (`persistent=False`) is a cache, of any size on each rank."""
    parts = ((part._buffers, part._non_persistent_buffers_set) for part in model.modules())
    found = (buffer for buffers, caches in parts for name, buffer in buffers.items() if name not in caches)
    return list({id(buffer): buffer for buffer in found if buffer is not None}.values())


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"replicate: model is a {type(model).__name__}; give a torch.nn.Module")
    require_alone(model)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise InputError(f"replicate: {name!r} has no shape yet (a lazy module); run one forward pass before")
        if tensor.layout == torch.strided and any(
            size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise InputError(
                f"replicate: elements of {name!r} share memory (expand()), and nothing can write them: clone() it"
            )
        if tensor.device.type not in DEVICE_TYPES:
            raise InputError(
                f"replicate: {name!r} is on {tensor.device}; models are trained on {' or '.join(DEVICE_TYPES)} here: "
                "move it, or use DistributedDataParallel"
            )


def _require_one_device(parameters: Mapping[str, nn.Parameter]) -> None:
    first, device = next((name, parameter.device) for name, parameter in parameters.items())
    for name, parameter in parameters.items():
        if parameter.device != device:
            raise InputError(
                f"replicate: parameter {first!r} is on {device} and {name!r} on {parameter.device}; each rank trains "
                "on one device: move the model there, and start a rank for each device"
            )


def require_exchangeable(name: str, parameter: nn.Parameter) -> None:
    """Raise InputError for a parameter that exchanges would round, or that is sparse."""
    if parameter.dtype not in (torch.float32, *MIRRORED_DTYPES):
        raise InputError(
            f"replicate: parameter {name!r} is {parameter.dtype}; exchanges add in float32, which would round it: "
            "use float32, bfloat16 or float16, or freeze it"
        )
    if parameter.layout != torch.strided:
        raise InputError(f"replicate: parameter {name!r} is {parameter.layout}; only dense parameters can be exchanged")


def first_not_finite(parameters: Mapping[str, torch.Tensor]) -> str:
    """The name of the first with a value that is infinite or NaN, or "". Cost: one read, and on a device one wait."""
    tensors = [parameter.detach() for parameter in parameters.values()]
    if all(tensor.device.type == "cpu" for tensor in tensors):
        flags: Iterable[bool] = map(_is_finite, tensors)
    else:
        flags = finite_flags(parameters).tolist()
    return next((name for name, is_finite in zip(parameters, flags, strict=True) if not is_finite), "")


def finite_flags(parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Whether each parameter is finite, in their order, where they are. Cost: one read."""
    return torch.stack([torch.isfinite(parameter.detach()).all() for parameter in parameters.values()])


def _is_finite(weights: torch.Tensor) -> bool:
    if weights.dtype == torch.float32 and weights.is_contiguous():
        return all_finite(weights.view(-1).numpy())
    return bool(torch.isfinite(weights).all())


def digest_of(parameters: Mapping[str, nn.Parameter]) -> float:
    """48 bits of a hash of the parameters' bytes, never 0. Cost: one read, at about 1 GB/s."""
    digest = hashlib.blake2b(digest_size=6)
    for parameter in parameters.values():
        values = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(values.data)
    return float(int.from_bytes(digest.digest(), "big") or 1)
