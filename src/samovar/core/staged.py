"""Compute on the device, share on the host: a flat buffer of the host, and its copy where the net computes."""

import torch

from samovar.core.buffer import FlatBuffer, FlatTensor


class Staged:
    """`host` is what ranks share and solvers update; `near` is what layers read and write, on `device`.

    The host's is the truth between steps: `fetch` before the device computes with it, `store` what the device made of
    it. Both wait until the copy is done. With `device` None the two are the same memory, and nothing is copied.

    Memory: N floats on the device. Cost: 4 bytes read and written for each element of a copy.
    """

    def __init__(self, host: FlatBuffer, device: torch.device | None = None) -> None:
        self.host = host
        self.near: FlatTensor = host
        self.is_apart = device is not None
        if device is not None:
            self.near = FlatTensor(host.layout, host.tensor_N.to(device, copy=True))
        # Apart for autograd, which would take the copy of one part for a change of what all layers have saved.
        self._near = self.near.tensor_N.data

    def fetch(self, start: int = 0, stop: int | None = None) -> None:
        """near = host, from element `start` to `stop`."""
        if self.is_apart:
            self._near[start:stop].copy_(self.host.tensor_N[start:stop])

    def store(self, start: int = 0, stop: int | None = None) -> None:
        """host = near, from element `start` to `stop`."""
        if self.is_apart:
            self.host.tensor_N[start:stop].copy_(self._near[start:stop])
