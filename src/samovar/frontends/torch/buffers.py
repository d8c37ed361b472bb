"""The tensors of a module that no optimizer updates: BatchNorm's running statistics and the like."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

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
