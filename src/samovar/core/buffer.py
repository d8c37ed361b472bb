"""One contiguous array that holds all parameters (or all gradients) of a model."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.errors import InputError
from samovar.core.layout import Entry, Layout
from samovar.core.near import Flat, NearArray
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
    """A layout over N float32 elements of the CPU's memory, or of a device's.

    `array_N` and `tensor_N` are the same memory as NumPy array (on a device, a NearArray) and torch tensor. States are
    in the host's memory.
    """

    def __init__(self, layout: Layout, array_N: Flat) -> None:
        super().__init__(layout, tensor_of(array_N))
        assert self.tensor_N.dtype == torch.float32, self.tensor_N.dtype
        self.array_N = array_N

    @classmethod
    def zeros(cls, layout: Layout) -> "FlatBuffer":
        return cls(layout, np.zeros(layout.num_elements, np.float32))

    @property
    def is_near(self) -> bool:
        """Whether a strategy's arithmetic on it is that of `samovar.core.near`."""
        return isinstance(self.array_N, NearArray)

    def blank(self) -> "FlatBuffer":
        """Zeros of the same layout, in the same place."""
        if self.is_near:
            return FlatBuffer(self.layout, NearArray(torch.zeros_like(self.tensor_N)))
        return FlatBuffer.zeros(self.layout)

    def logical(self, name: str) -> npt.NDArray[np.float32]:
        """A C-contiguous copy of `name` in its logical shape."""
        copy: npt.NDArray[np.float32] = self._views[name].contiguous().cpu().numpy().copy()
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
            self.view(name).copy_(torch.from_numpy(np.array(value, np.float32)))

    def sha256(self, names: tuple[str, ...] | None = None) -> str:
        """SHA-256 of the values as little-endian float32 in logical order.

        `names` gives the order of parameters (default: the layout's).
        """
        order = names if names is not None else tuple(e.spec.name for e in self.layout.entries)
        digest = hashlib.sha256()
        for name in order:
            digest.update(self.logical(name).astype("<f4", copy=False).tobytes())
        return digest.hexdigest()


def tensor_of(array: Flat) -> torch.Tensor:
    """The same memory as a torch tensor, in the host's memory or on a device."""
    if isinstance(array, NearArray):
        near: torch.Tensor = array.tensor_N
        return near
    return torch.from_numpy(array)


def view_of(tensor_N: torch.Tensor, entry: Entry) -> torch.Tensor:
    """The parameter at `entry` of a flat tensor of any type, in its logical shape."""
    stored = tensor_N[entry.offset : entry.stop].view(entry.spec.stored_shape)
    return stored.movedim(-1, 1) if entry.spec.channels_last else stored


class StagedBuffer:
    """Ranks share and solvers update `host`; layers read and write `near`, on `device`.

    Where they are in use, the host's copy is the truth: `fetch` before the device computes with it, `store` the
    device's result. `store` waits until the copy is done. With `device` None the two are the same memory, and nothing
    is copied.

    Memory of `pinned` has a stream of its own for its copies. It waits for the device's work so far, and work that
    comes after a `fetch` waits for that, on the device. The host waits for `store` alone; it may write such memory
    after that, or after `settle`.

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
        self._copies = torch.Stream(device) if self.is_apart and host.tensor_N.is_pinned() else None

    def fetch(self, start: int = 0, stop: int | None = None) -> None:
        """near = host, from element `start` to `stop`."""
        if self.is_apart:
            self._copy(self._near[start:stop], self.host.tensor_N[start:stop])
            if self._copies is not None:
                self._work().wait_stream(self._copies)

    def store(self, start: int = 0, stop: int | None = None) -> None:
        """host = near, from element `start` to `stop`."""
        if self.is_apart:
            self._copy(self.host.tensor_N[start:stop], self._near[start:stop])
            self.settle()

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """A context in which `host` is up to date, and changes of it change `near`. The host waits once."""
        self.store()
        yield
        self.fetch()

    def settle(self) -> None:
        """Wait for the copies that are under way."""
        if self._copies is not None:
            self._copies.synchronize()

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        if self._copies is None:
            to.copy_(source)
            return
        self._copies.wait_stream(self._work())
        with self._copies:
            to.copy_(source, non_blocking=True)

    def _work(self) -> torch.Stream:
        """The stream of the layers and the optimizer."""
        return torch.accelerator.current_stream(self._near.device)


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the host's `tensor` on `device`, for which the host does not wait: it goes through pinned memory."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    return staged.copy_(tensor).to(device, non_blocking=True)


def pinned(num_elements: int, device: torch.device) -> npt.NDArray[np.float32]:
    """Zeroed memory of the host from and to which `device` copies by itself. The CPU copies from any."""
    if device.type == "cpu":
        return np.zeros(num_elements, np.float32)
    return torch.zeros(num_elements, dtype=torch.float32, device="cpu", pin_memory=True).numpy()
