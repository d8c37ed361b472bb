"""Values of a device that come to the host without a wait."""

from typing import Any

import torch


class LateCopy:
    """A copy of a small tensor that is on a device, in pinned memory; it comes when the device is so far."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor.detach(), non_blocking=True)
        self._event = torch.Event(tensor.device)
        self._event.record()

    def has_come(self) -> bool:
        """Whether `values` may be read."""
        return bool(self._event.query())

    def values(self) -> list[Any]:
        assert self.has_come()
        return list(self._host.tolist())
