"""The tensors of a module that no optimizer updates: BatchNorm's running statistics and the like."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.transports.base import Array


def mean_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Buffers that have a mean over ranks, each once: those of a floating type. Counters have none."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point() and buffer.numel()]


class BufferMean:
    """Copies buffers into `array` (float32, at least their number of elements), and their sum's mean back."""

    def __init__(self, model: nn.Module, array: Array) -> None:
        self._model = model
        self._flat = torch.from_numpy(array)

    def gather(self) -> None:
        for buffer, place in self._pairs():
            place.copy_(buffer.detach().reshape(-1))

    @contextmanager
    def replaced(self, scale: float) -> Iterator[None]:
        """The model's buffers are `scale` times what stands in the array, until the context ends."""
        kept = [buffer.detach().clone() for buffer, _ in self._pairs()]
        for buffer, place in self._pairs():
            buffer.detach().copy_((place * scale).view_as(buffer))
        try:
            yield
        finally:
            for (buffer, _), own in zip(self._pairs(), kept, strict=True):
                buffer.detach().copy_(own)

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        start = 0
        for buffer in mean_buffers(self._model):
            yield buffer, self._flat[start : start + buffer.numel()]
            start += buffer.numel()


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
        """Overwrite the tensors with those of rank 0, bit by bit; all ranks give equal shapes and types.

        Cost: the tensors' bytes once through the staging area, a broadcast for each filling.
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
    """The tensor's bytes in logical order: its own memory where it is contiguous, and the CPU's."""
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
