"""What a net takes of the memory, counted from its shapes before a tensor of it is made."""

import math
from dataclasses import dataclass

from samovar.core.host import address_space_left, available_bytes
from samovar.frontends.caffe.spec import LayerSpec, Phase, Shape, text

_VALUE_BYTES = 4
# Their tops are views of their bottoms.
_VIEWS = ("Flatten", "Reshape", "Slice", "Split")


@dataclass(frozen=True, slots=True)
class Room:
    """Who else will take the memory: `processes` that build the same net at once, `blobs` sets of its blobs in all.

    Blobs of half precision are half a set; with 0 only parameters count.
    """

    processes: int = 1
    blobs: float = 1.0


class Footprint:
    """Adds up the least that a net needs; raises InputError, naming the layer, where more than what is free.

    In training: weights, their gradients and every blob, of which backward needs nearly all. Else weights, and the
    largest blob.
    """

    def __init__(self, phase: Phase, room: Room) -> None:
        self._is_training = phase == "TRAIN"
        self._room = room
        self._num_weights = 0
        self._num_values = 0
        self._free_bytes = _free_bytes(room.processes)

    def add_parameter(self, spec: LayerSpec, index: int, shape: Shape) -> None:
        self._num_weights += math.prod(shape)
        self._check(spec, f"parameter {index} of shape {text(shape)}")

    def add_top(self, spec: LayerSpec, top: str, shape: Shape) -> None:
        """A blob that is not another one, overwritten."""
        if spec.type in _VIEWS:
            return
        size = math.prod(shape)
        self._num_values = self._num_values + size if self._is_training else max(self._num_values, size)
        self._check(spec, f"top '{top}' of shape {text(shape)}")

    @property
    def needed_bytes(self) -> int:
        """By all processes."""
        weights = self._num_weights * (2 if self._is_training else 1) * self._room.processes
        return math.ceil(_VALUE_BYTES * (weights + self._num_values * self._room.blobs))

    def _check(self, spec: LayerSpec, what: str) -> None:
        if self._free_bytes is None or self.needed_bytes <= self._free_bytes:
            return
        kinds = "weights, gradients and blobs" if self._is_training else "weights and blobs"
        count = self._room.processes
        whose = "the net needs" if count == 1 else f"the nets of {count} workers need"
        raise spec.error(
            f"with {what} {whose} at least {self.needed_bytes >> 20:,} MiB ({kinds}), {self._free_bytes >> 20:,} MiB "
            "are free; make the layer or the batch smaller" + (", or give fewer workers" if count > 1 else "")
        )


def _free_bytes(processes: int) -> int | None:
    """What the machine has free for all, or its processes' limits of address space, whichever is less."""
    machine, own = available_bytes(), address_space_left()
    limits = [machine, None if own is None else own * processes]
    known = [value for value in limits if value is not None]
    return min(known) if known else None
