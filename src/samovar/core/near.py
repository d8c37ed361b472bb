"""Flat float32 arrays on a device, for strategies, which know no torch: NumPy's operators, and functions for both."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from samovar import _native

Flat: TypeAlias = Any  # float32 (N,): an array of NumPy's, or a NearArray


class NearArray:
    """Float32 (N,) on a device, with the operators of NumPy that strategies use. Nothing waits for the device.

    A copy into NumPy (`numpy.asarray`) does wait. `tensor_N` is a torch tensor.
    """

    __array_ufunc__ = None  # NumPy's numbers leave operators to this class

    def __init__(self, tensor_N: Any) -> None:
        self.tensor_N: Any = tensor_N
        self.shape: tuple[int, ...] = tuple(tensor_N.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> "NearArray":
        return NearArray(self.tensor_N[part])

    def __setitem__(self, part: slice, value: Any) -> None:
        place = self.tensor_N[part]
        if isinstance(value, NearArray):
            place.copy_(value.tensor_N)
        elif isinstance(value, np.ndarray):
            place.copy_(place.new_tensor(value))
        else:
            place.fill_(float(value))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.tensor_N.cpu().numpy(), dtype)

    def copy(self) -> "NearArray":
        return NearArray(self.tensor_N.clone())

    def __sub__(self, other: "NearArray") -> "NearArray":
        return NearArray(self.tensor_N - other.tensor_N)

    def __rmul__(self, factor: np.float32) -> "NearArray":
        return NearArray(self.tensor_N * float(factor))

    def __iadd__(self, other: "NearArray") -> "NearArray":
        self.tensor_N.add_(other.tensor_N)
        return self

    def __isub__(self, other: "NearArray") -> "NearArray":
        self.tensor_N.sub_(other.tensor_N)
        return self

    def __imul__(self, factor: np.float32) -> "NearArray":
        self.tensor_N.mul_(float(factor))
        return self

    def __itruediv__(self, divisor: np.float32) -> "NearArray":
        self.tensor_N.div_(float(divisor))
        return self


@dataclass(frozen=True, slots=True)
class NearRegion:
    """As `samovar.transports.base.Region`, of memory that no window reaches: a `NearArray`, or private NumPy memory."""

    array: Any
    window: Any = None
    offset: int = 0

    def part(self, start: int, stop: int) -> "NearRegion":
        """Elements [start, stop) of this region."""
        return NearRegion(self.array[start:stop])


def add(sums: Flat, values: Flat) -> None:
    """sums = sums + values"""
    if isinstance(sums, NearArray):
        sums += values
    else:
        _native.reduce(sums, [sums, values])


def elastic_pull(weights: Flat, center: Flat, differences: Flat, rate: float) -> None:
    """differences = rate * (weights - center);  weights = weights - differences"""
    if isinstance(weights, NearArray):
        differences[:] = weights - center
        differences *= np.float32(rate)
        weights -= differences
    else:
        _native.elastic_pull(weights, center, differences, rate)


def elastic_exchange(weights: Flat, center: Flat, differences: Flat, rate: float) -> None:
    """center = center + differences;  then as `elastic_pull`"""
    if isinstance(weights, NearArray):
        center += differences
        elastic_pull(weights, center, differences, rate)
    else:
        _native.elastic_exchange(weights, center, differences, rate)


def outer_step(
    weights: Flat, center: Flat, velocity: Flat, summed: Flat, count: int, rate: float, momentum: float
) -> None:
    """A step of SGD with Nesterov's momentum from `center`, by summed / count; weights = center."""
    if not isinstance(weights, NearArray):
        _native.outer_step(weights, center, velocity, summed, count, rate, momentum)
        return
    summed /= np.float32(count)
    velocity *= np.float32(momentum)
    velocity += summed
    summed += np.float32(momentum) * velocity
    summed *= np.float32(rate)
    center -= summed
    weights[:] = center
