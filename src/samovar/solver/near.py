"""The update rules of native/solver_kernels.hpp on a device, each a few operations on a whole bucket in place.

Operations are those of the native kernels, in their order, with one rounding each, so SGD and Nesterov give the same
bits. Where a square root is not rounded correctly (PyTorch's on the CPU), other rules agree within 1e-6. Nothing waits.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.buffer import sent
from samovar.core.layout import Bucket
from samovar.core.near import NearArray

Factor: TypeAlias = float | torch.Tensor  # one for all elements, or float32 (n,)


class NearRows:
    """A bucket's parameters, n elements with the gaps between them, with factors of their own.

    Memory: n floats for rates and n for decays, where parameters differ in them.
    """

    def __init__(
        self, bucket: Bucket, multipliers: npt.NDArray[np.float64], decays: npt.NDArray[np.float32], is_l1: bool
    ) -> None:
        self.run = slice(bucket.start, bucket.stop)
        self.is_l1 = is_l1
        starts = [entry.offset - bucket.start for entry in bucket.entries]
        stops = [entry.stop - bucket.start for entry in bucket.entries]
        ends = [*starts[1:], bucket.size]
        self.gaps = [slice(stop, end) for stop, end in zip(stops, ends, strict=True) if stop < end]
        self._lengths = np.subtract(ends, starts)
        self._multipliers, self._decays = multipliers, decays
        self._spread: dict[str, Factor] = {}

    def decays(self, device: torch.device) -> Factor:
        return self._of("decays", self._decays, device)

    def rates(self, rate: float, device: torch.device) -> Factor:
        """Each element's rate. Where parameters differ, it is the product of two that are rounded already."""
        multipliers = self._of("multipliers", self._multipliers.astype(np.float32), device)
        if isinstance(multipliers, torch.Tensor):
            return multipliers * _float32(rate)
        return _float32(float(self._multipliers[0]) * rate)

    def _of(self, what: str, values: npt.NDArray[np.float32], device: torch.device) -> Factor:
        if what not in self._spread:
            is_one = len(np.unique(values)) == 1
            spread = values[0] if is_one else torch.from_numpy(np.repeat(values, self._lengths))
            self._spread[what] = sent(spread, device) if isinstance(spread, torch.Tensor) else float(spread)
        return self._spread[what]


class DeviceStep:
    """A bucket's weights, regularized gradient, histories and rates, as tensors of the device."""

    def __init__(
        self,
        weights_N: NearArray,
        gradients_N: NearArray,
        histories: Sequence[NearArray],
        rows: NearRows,
        rate: float,
        gradient_scale: Factor,
    ) -> None:
        self.weights, gradients, *self.histories = (
            array.tensor_N[rows.run] for array in (weights_N, gradients_N, *histories)
        )
        self.rates = rows.rates(rate, self.weights.device)
        self._gaps = rows.gaps
        self.gradient = gradients * gradient_scale
        decays = rows.decays(self.weights.device)
        if isinstance(decays, torch.Tensor) or decays:
            self.gradient += (self.weights.sign() if rows.is_l1 else self.weights) * decays

    def divided(self, values: torch.Tensor, squares: torch.Tensor, delta: float) -> torch.Tensor:
        """values / (sqrt(squares) + delta)"""
        return values / squares.sqrt().add_(delta)

    def moved(self, by: torch.Tensor, delta: float = 1.0) -> None:
        """weight = weight - by. Without a delta, the memory between parameters was divided by 0."""
        self.weights.sub_(by)
        if not delta:
            for gap in self._gaps:
                self.weights[gap].zero_()


def sgd_step(step: DeviceStep, momentum: float) -> None:
    (history,) = step.histories
    history.mul_(momentum).add_(step.gradient.mul_(step.rates))
    step.moved(history)


def nesterov_step(step: DeviceStep, momentum: float) -> None:
    (history,) = step.histories
    before = history * momentum
    torch.add(before, step.gradient.mul_(step.rates), out=history)
    step.moved((history * _float32(1 + _float32(momentum))).sub_(before))


def adagrad_step(step: DeviceStep, delta: float) -> None:
    (history,) = step.histories
    history.add_(step.gradient.square())
    step.moved(step.divided(step.gradient, history, delta).mul_(step.rates), delta)


def rmsprop_step(step: DeviceStep, rms_decay: float, delta: float) -> None:
    (history,) = step.histories
    history.mul_(rms_decay).add_(step.gradient.square().mul_(_rest(rms_decay)))
    step.moved(step.divided(step.gradient, history, delta).mul_(step.rates), delta)


def adadelta_step(step: DeviceStep, momentum: float, delta: float) -> None:
    squares, moves = step.histories
    squares.mul_(momentum).add_(step.gradient.square().mul_(_rest(momentum)))
    move = step.gradient.mul_(((moves + delta).div_(squares + delta)).sqrt_())
    moves.mul_(momentum).add_(move.square().mul_(_rest(momentum)))
    step.moved(move.mul_(step.rates), delta)


def adam_step(step: DeviceStep, momentum: float, momentum2: float, delta: float) -> None:
    means, squares = step.histories
    squares.mul_(momentum2).add_(step.gradient.square().mul_(_rest(momentum2)))
    means.mul_(momentum).add_(step.gradient.mul_(_rest(momentum)))
    step.moved(step.divided(means, squares, delta).mul_(step.rates), delta)


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """In double precision, where `values` are."""
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm.square()


def clip_factor(squares: torch.Tensor, limit: float) -> torch.Tensor:
    """min(1, limit / norm), where `squares` is; 1 if the norm is NaN."""
    norm = squares.sqrt()
    return torch.where(norm > limit, limit / norm, 1.0)


def _rest(part: float) -> float:
    """1 - part, in float32."""
    return _float32(1 - _float32(part))


def _float32(value: float) -> float:
    return float(np.float32(value))
