"""The state of any module in flat buffers: weights, buffers that no optimizer updates, and the optimizer's state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from samovar.collectives.engine import Collectives, digest_number
from samovar.core.buffer import FlatBuffer, FlatTensor, StagedBuffer, tensor_of
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.core.layout import Layout
from samovar.core.near import NearArray
from samovar.frontends.torch.optimizers import Optimizers
from samovar.frontends.torch.parameters import device_of, require_exchangeable, saved_buffers
from samovar.transports.base import Array


class FlatWeights:
    """Parameters in a flat buffer. Those of float32 become views of it; the Parameter objects stay the same.

    Others (bfloat16, float16) keep their memory. `gather` copies them into the buffer, and `scatter` back, rounded. On
    a GPU parameters are views of a copy of the buffer, which `gather` and `scatter` copy too.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], layout: Layout, array: Array) -> None:
        self._adopted = {name: p for name, p in parameters.items() if p.dtype == torch.float32}
        self._mirrored = {name: p for name, p in parameters.items() if p.dtype != torch.float32}
        self._staged = staged(parameters, layout, array)
        self._flat, self._near = self._staged.host, self._staged.near
        for name, parameter in self._adopted.items():
            view = self._near.view(name)
            view.copy_(parameter.data)
            parameter.data = _apart(view)
        self.gather()

    def gather(self) -> None:
        """Bring the buffer up to date with parameters of other types, or on a GPU."""
        for name, parameter in self._mirrored.items():
            require_exchangeable(name, parameter)
            self._near.view(name).copy_(parameter.data)
        self._staged.store()

    def scatter(self) -> None:
        """Bring parameters of other types, or on a GPU, up to date with the buffer."""
        self._staged.fetch()
        for name, parameter in self._mirrored.items():
            parameter.data.copy_(self._near.view(name))

    @contextmanager
    def in_buffer(self) -> Iterator[None]:
        """A context without gradients in which changes of the buffer change the parameters."""
        with torch.no_grad():
            self.gather()
            yield
            self.scatter()

    def require_in_place(self) -> None:
        """Raises SamovarError if a parameter got other memory, which an exchange would not see."""
        for name, parameter in self._adopted.items():
            if parameter.data_ptr() != self._near.view(name).data_ptr():
                raise SamovarError(
                    f"parameter {name!r} was given other memory after replicate(); write into it instead, and send "
                    "clones to other processes (load_state_dict without assign=True, no .to(), no p.data = ...)"
                )

    def release(self) -> None:
        """Parameters get memory of their own again."""
        for parameter in self._adopted.values():
            parameter.data = parameter.data.clone()

    @contextmanager
    def replaced(self, values_N: Array) -> Iterator[None]:
        """A context in which the model has other weights, in the order of the buffer."""
        self.gather()
        own = self._flat.tensor_N.clone()
        self._set(tensor_of(values_N))
        try:
            yield
        finally:
            self._set(own)

    def named(self, values_N: Array) -> dict[str, torch.Tensor]:
        flat = FlatTensor(self._flat.layout, tensor_of(values_N).clone())
        return {entry.spec.name: flat.view(entry.spec.name) for entry in self._flat.layout.entries}

    def _set(self, values_N: torch.Tensor) -> None:
        self._staged.settle()
        self._flat.tensor_N.copy_(values_N)
        self.scatter()


def staged(parameters: Mapping[str, nn.Parameter], layout: Layout, array: Array | NearArray) -> StagedBuffer:
    """A buffer in `array`, float32 (N,), with a copy near the parameters if they are on a device and it is not."""
    flat = FlatBuffer(layout, array)
    return StagedBuffer(flat, None if flat.is_near else device_of(parameters))


def _apart(view: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own: tools that save weights take tensors of one storage for tied ones."""
    start, size = view.storage_offset() * view.element_size(), view.numel() * view.element_size()
    own = view.untyped_storage()[start : start + size]
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(own, 0, view.shape, view.stride())


def mean_buffers(model: nn.Module) -> list[torch.Tensor]:
    """The buffers that have a mean over ranks, each once: those of a floating-point type. Counters have none."""
    return [buffer for buffer in saved_buffers(model) if buffer.is_floating_point() and buffer.numel()]


# The error of a sum of a few equal values, in units of its type; and values whose sum in float32 may be too large.
_ROUNDING, _HUGE = 8.0, 2.0**100


class BufferMean:
    """Copies a model's buffers, which have `size` values, into an array of floats, and their mean back.

    A float64 value that the array's type rounds to its mean stays as it is: ranks that have it equal keep all its
    digits. So does a huge one whose sum is infinite, such as a mask of torch.finfo(torch.float64).min.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.size = sum(buffer.numel() for buffer in mean_buffers(model))

    def gather(self, out: Array) -> None:
        for buffer, place in self._pairs(out):
            place.copy_(buffer.detach().reshape(-1))

    @contextmanager
    def replaced(self, values: Array) -> Iterator[None]:
        """A context in which the model's buffers are this mean."""
        pairs = list(self._pairs(values))
        kept = [buffer.detach().clone() for buffer, _ in pairs]
        for buffer, place in pairs:
            mean, own = place.view_as(buffer), buffer.detach().to("cpu", torch.float64)
            stays = mean.isinf() & (own.abs() > _HUGE)
            if buffer.dtype == torch.float64:
                stays |= (mean - own).abs() <= own.abs() * _ROUNDING * torch.finfo(mean.dtype).eps
            buffer.detach().copy_(torch.where(stays, own, mean))
        try:
            yield
        finally:
            for (buffer, _), own in zip(self._pairs(values), kept, strict=True):
                buffer.detach().copy_(own)

    def _pairs(self, values: Array) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Raises SamovarError if the buffers have another size than before."""
        buffers = mean_buffers(self._model)
        if (found := sum(buffer.numel() for buffer in buffers)) != self.size:
            raise SamovarError(
                f"the model's buffers have {found:,} values, and had {self.size:,} at replicate(), so they have "
                "no mean over ranks; register a buffer whose size changes with persistent=False"
            )
        parts = torch.split_with_sizes(torch.from_numpy(values[: self.size]), [buffer.numel() for buffer in buffers])
        yield from zip(buffers, parts, strict=True)


_STAGING_BYTES = 1 << 22


class Broadcast:
    """Sends tensors of any type from rank 0 through a staging area of 4 MiB."""

    def __init__(self, collectives: Collectives) -> None:
        self._is_alone = collectives.group.world_size == 1
        if not self._is_alone:
            region = collectives.region("broadcast", _STAGING_BYTES)
            self._runner = collectives.broadcast("broadcast", region)
            self._staging = torch.from_numpy(region.array)

    @torch.no_grad()
    def run(self, tensors: Sequence[torch.Tensor], deadline: Callable[[], Deadline]) -> None:
        """Overwrite the tensors with those of rank 0, bit by bit. All ranks give equal shapes and types.

        Cost: the tensors' bytes once through the staging area, with a broadcast for each filling.
        """
        if self._is_alone:
            return
        flats = [_bytes(tensor) for tensor in tensors]
        for pieces in _fillings(flats, _STAGING_BYTES):
            torch.cat(pieces, out=self._staging[: sum(len(piece) for piece in pieces)])
            self._runner.run(deadline())
            start = 0
            for piece in pieces:
                piece.copy_(self._staging[start : start + len(piece)])
                start += len(piece)
        for tensor, flat in zip(tensors, flats, strict=True):
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in logical order: its own memory if it is contiguous and on the CPU."""
    if tensor.layout != torch.strided:
        raise InputError(f"replicate: a buffer or frozen parameter is {tensor.layout}; make it dense to send it")
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _fillings(flats: Sequence[torch.Tensor], size: int) -> Iterator[list[torch.Tensor]]:
    """The bytes of all tensors in pieces, gathered into lists of at most `size` bytes."""
    pieces: list[torch.Tensor] = []
    room = size
    for flat in flats:
        start = 0
        while start < len(flat):
            piece = flat[start : start + room]
            pieces.append(piece)
            start, room = start + len(piece), room - len(piece)
            if not room:
                yield pieces
                pieces, room = [], size
    if pieces:
        yield pieces


class OptimizerState:
    """An optimizer's quantities, such as momentum, by name: at most one number per element of a parameter."""

    def __init__(self, optimizers: Optimizers, parameters: Mapping[str, nn.Parameter]) -> None:
        self._optimizers = optimizers
        self._parameters = dict(parameters)

    def quantities(self) -> list[str]:
        """The names, in an order that is the same on all ranks."""
        return sorted({key for _, keys in self._rows() for key in keys})

    def fingerprint(self) -> float:
        """48 bits that are equal if the same parameters have the same quantities."""
        return digest_number(repr(self._rows()))

    def write(self, quantity: str, flat: FlatTensor) -> None:
        """Copy the quantity into `flat`. Parameters without it are zero there."""
        flat.tensor_N.zero_()
        for place, value, _ in self._places(quantity, flat):
            place.copy_(torch.as_tensor(value).reshape(place.shape))

    def read(self, quantity: str, flat: FlatTensor) -> None:
        """Take the quantity back from `flat`."""
        for place, value, state in self._places(quantity, flat):
            if isinstance(value, torch.Tensor):
                value.copy_(place.reshape(value.shape))
            else:
                state[quantity] = type(value)(place.item())

    def _rows(self) -> list[tuple[str, list[str]]]:
        """The quantities of each parameter."""
        return [
            (name, sorted(key for key, value in self._optimizers.state_of(p).items() if _can_move(key, value, p)))
            for name, p in self._parameters.items()
        ]

    def _places(self, quantity: str, flat: FlatTensor) -> Iterator[tuple[torch.Tensor, Any, dict[str, Any]]]:
        for name, parameter in self._parameters.items():
            state, place = self._optimizers.state_of(parameter), flat.view(name)
            value: Any = state.get(quantity)
            if not _can_move(quantity, value, parameter):
                continue
            shape = value.shape if isinstance(value, torch.Tensor) else torch.Size()
            start = place.as_strided((shape.numel(),), (1,), place.storage_offset())
            yield place if shape == parameter.shape else start, value, state


def _can_move(quantity: str, value: object, parameter: nn.Parameter) -> bool:
    """Whether there is a value to copy. Raises SamovarError if it does not fit into the parameter's place."""
    if not parameter.numel():
        return False
    fits = isinstance(value, torch.Tensor) and value.numel() <= parameter.numel()
    if fits or isinstance(value, int | float | str | None):
        return not isinstance(value, str | None)
    raise SamovarError(
        f"uneven data: the optimizer's state {quantity!r} is a {type(value).__name__} that others cannot get: only "
        "numbers, and tensors up to the parameter's size, are copied. Give every rank the same number of batches"
    )
