"""One contiguous array that holds all parameters (or all gradients) of a model."""

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.errors import InputError
from samovar.core.layout import Entry, Layout
from samovar.core.stateful import State, StateValue


class FlatTensor:
    """A layout over the N elements of `tensor_N`, on any device and of any type; the views share its memory."""

    def __init__(self, layout: Layout, tensor_N: torch.Tensor) -> None:
        assert tensor_N.shape == (layout.num_elements,), tensor_N.shape
        self.layout = layout
        self.tensor_N = tensor_N
        self._views = {e.spec.name: view_of(tensor_N, e) for e in layout.entries}

    def view(self, name: str) -> torch.Tensor:
        """The parameter `name` in its logical shape (strided where it is stored channels-last)."""
        return self._views[name]


class FlatBuffer(FlatTensor):
    """A layout over N float32 elements of the CPU's memory.

    `array_N` and `tensor_N` are the same memory as NumPy array and torch tensor.
    """

    def __init__(self, layout: Layout, array_N: npt.NDArray[np.float32]) -> None:
        assert array_N.dtype == np.float32, array_N.dtype
        super().__init__(layout, torch.from_numpy(array_N))
        self.array_N = array_N

    @classmethod
    def zeros(cls, layout: Layout) -> "FlatBuffer":
        return cls(layout, np.zeros(layout.num_elements, np.float32))

    def logical(self, name: str) -> npt.NDArray[np.float32]:
        """A C-contiguous copy of `name` in its logical shape."""
        copy: npt.NDArray[np.float32] = self._views[name].contiguous().numpy().copy()
        return copy

    def logical_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """A logical copy of every parameter, by name."""
        return {entry.spec.name: self.logical(entry.spec.name) for entry in self.layout.entries}

    def state_dict(self) -> State:
        return {**self.logical_arrays()}

    def load_state_dict(self, state: Mapping[str, StateValue], what: str) -> None:
        """Load a `state_dict`. Raises InputError if a name or a shape differs, and then loads nothing."""
        names = {entry.spec.name for entry in self.layout.entries}
        if names != set(state):
            missing, unknown = sorted(names - set(state)), sorted(set(state) - names)
            raise InputError(f"{what}: missing {missing}, unknown {unknown}; is it of another net?")
        for entry in self.layout.entries:
            shape = np.shape(state[entry.spec.name])
            if shape != entry.spec.shape:
                raise InputError(f"{what} of {entry.spec.name!r}: shape {shape}, this net has {entry.spec.shape}")
        for name, value in state.items():
            self.view(name).numpy()[...] = value

    def sha256(self, names: tuple[str, ...] | None = None) -> str:
        """SHA-256 of the values as little-endian float32 in logical order.

        `names` gives the order of parameters (default: the layout's).
        """
        order = names if names is not None else tuple(e.spec.name for e in self.layout.entries)
        digest = hashlib.sha256()
        for name in order:
            digest.update(self.logical(name).astype("<f4", copy=False).tobytes())
        return digest.hexdigest()


def view_of(tensor_N: torch.Tensor, entry: Entry) -> torch.Tensor:
    """The parameter at `entry` of a flat tensor of any type, in its logical shape."""
    run = tensor_N[entry.offset : entry.stop]
    if not entry.spec.channels_last:
        return run.view(entry.spec.shape)
    out_channels, channels, height, width = entry.spec.shape
    return run.view(out_channels, height, width, channels).permute(0, 3, 1, 2)


class StagedBuffer:
    """Ranks share and solvers update `host`; layers read and write `near`, on `device`.

    Where they are in use, the host's copy is the truth: `fetch` before the device computes with it, `store` the
    device's result. `store` waits until the copy is done. `fetch` does not from memory of `pinned`, which the host may
    write again after the next `store`. With `device` None the two are the same memory, and nothing is copied.

    Memory: N floats on the device. Cost: 4 bytes read and written for each element of a copy.
    """

    def __init__(self, host: FlatTensor, device: torch.device | None = None) -> None:
        self.host = host
        self.near: FlatTensor = host
        self.is_apart = device is not None
        if device is not None:
            self.near = FlatTensor(host.layout, host.tensor_N.to(device, copy=True))
        # Apart for autograd, which would take the copy of one part for a change of what all layers have saved.
        self._near = self.near.tensor_N.data
        self._is_pinned = self.is_apart and host.tensor_N.is_pinned()

    def fetch(self, start: int = 0, stop: int | None = None) -> None:
        """near = host, from element `start` to `stop`."""
        if self.is_apart:
            self._near[start:stop].copy_(self.host.tensor_N[start:stop], non_blocking=self._is_pinned)

    def store(self, start: int = 0, stop: int | None = None) -> None:
        """host = near, from element `start` to `stop`."""
        if self.is_apart:
            self.host.tensor_N[start:stop].copy_(self._near[start:stop])


def pinned(num_elements: int) -> npt.NDArray[np.float32]:
    """Zeroed memory of the host that an accelerator copies from and to by itself."""
    return torch.zeros(num_elements, dtype=torch.float32, pin_memory=True).numpy()
