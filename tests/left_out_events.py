"""Copies between a device and the host from which an event is left out, for tests that must notice it."""

import torch

from samovar.core.buffer import StagedBuffer


def copies_early(buffer: StagedBuffer, to: torch.Tensor, source: torch.Tensor) -> None:
    """Not behind the work that writes what is copied."""
    assert buffer._copies is not None
    with buffer._copies:
        to.copy_(source, non_blocking=True)


def store_goes_on(buffer: StagedBuffer, start: int = 0, stop: int | None = None) -> None:
    """The host does not wait for the copy that it reads."""
    if buffer.is_apart:
        buffer._copy(buffer.host.tensor_N[start:stop], buffer._near[start:stop])


def fetch_goes_on(buffer: StagedBuffer, start: int = 0, stop: int | None = None) -> None:
    """Later work does not wait for the weights that it reads."""
    if buffer.is_apart:
        buffer._copy(buffer._near[start:stop], buffer.host.tensor_N[start:stop])


# By what is left out: the method of StagedBuffer, and the mistake in its place.
COPIES_LEFT_OUT = {
    "a copy's beginning": ("_copy", copies_early),
    "a copy's end, for the host": ("store", store_goes_on),
    "a copy's end, for the device": ("fetch", fetch_goes_on),
}
