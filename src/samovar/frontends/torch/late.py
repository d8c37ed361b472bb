"""Values of a device that come to the host without a wait."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from samovar.frontends.torch.parameters import finite_flags


class LateCopy:
    """A copy of a small tensor that is on a device, in pinned memory; it comes when the device is so far."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.Event | None = None
        if tensor.device.type == "cpu":
            self._host = tensor.detach().clone()
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._host.copy_(tensor.detach(), non_blocking=True)
        # Of the tensor's device: by itself an event takes the stream of the current one.
        self._event = torch.accelerator.current_stream(tensor.device).record_event()

    def has_come(self) -> bool:
        """Whether `values` may be read."""
        return self._event is None or bool(self._event.query())

    def values(self) -> list[Any]:
        """The tensor as a list. Waits if it has not come."""
        if self._event is not None and not self._event.query():
            self._event.synchronize()
        return list(self._host.tolist())


class LateLook:
    """Looks at whether weights on a device are finite. None waits: each gives what the one before found."""

    def __init__(self) -> None:
        self._looked: tuple[int, LateCopy] | None = None  # after which step

    def look(self, step: int, weights: Mapping[str, torch.Tensor]) -> tuple[int, str] | None:
        """After which step the last look found a weight that is not finite, and its name."""
        if self._looked is not None:
            looked_step, flags = self._looked
            if not flags.has_come():
                return None
            if not all(flags.values()):
                return looked_step, list(weights)[flags.values().index(False)]
        self._looked = step, LateCopy(finite_flags(weights))
        return None


class Losses:
    """The losses of steps. On a device they come late, without a wait; `last` is the last that came, NaN before."""

    def __init__(self) -> None:
        self.last = math.nan
        self._kept: list[torch.Tensor] = []
        self._late: tuple[LateCopy, int, int] | None = None  # under way, how many, and of how many steps

    def add(self, loss: torch.Tensor) -> None:
        """Copies it: a CUDA graph writes the next loss to the same memory."""
        kept = loss.reshape(1).clone() if _is_number(loss) else loss.new_full((1,), math.nan, dtype=torch.float32)
        self._kept.append(kept)

    def take(self, num_steps: int) -> tuple[list[float], int] | None:
        """Losses since the last call, and of how many steps, at most `num_steps`; None if they have not come."""
        kept = self._kept
        if not kept or kept[-1].device.type == "cpu":
            self._kept = []
            return [float(loss) for loss in kept], num_steps
        if self._late is None:
            self._late = LateCopy(torch.cat(kept)), len(kept), num_steps
        copy, number, steps_of_copy = self._late
        if not copy.has_come():
            return None
        self._kept, self._late, self.last = kept[number:], None, copy.values()[-1]
        return copy.values(), steps_of_copy


def number_of(loss: torch.Tensor) -> float:
    """A loss as a number; NaN if it is not one number."""
    return float(loss) if _is_number(loss) else math.nan


def _is_number(loss: torch.Tensor) -> bool:
    return loss.numel() == 1 and not loss.is_complex()
