"""Copies of parameters in bfloat16, to compute with. The solver updates the float32 master copy."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from samovar.core.buffer import FlatTensor
from samovar.core.device import BF16
from samovar.core.layout import Bucket

_INSTRUCTIONS: Final = ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16")  # as torch.cpu names them


def half_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The parameter's bfloat16 copy, if its layer computes with one."""
    half = getattr(parameter, "half_values", None)
    return half if isinstance(half, torch.Tensor) and not stays_full(parameter) else None


def keep_full(parameter: torch.Tensor) -> None:
    """Make the parameter's layer compute in float32 at any precision."""
    parameter.stays_full = True  # type: ignore[attr-defined]


def stays_full(parameter: torch.Tensor) -> bool:
    """Whether `keep_full` was called for it."""
    return bool(getattr(parameter, "stays_full", False))


def use_half(parameters: Iterable[torch.Tensor]) -> None:
    """Make layers compute with bfloat16 copies of these parameters, which do not follow later changes."""
    for parameter in parameters:
        parameter.half_values = parameter.detach().to(torch.bfloat16)  # type: ignore[attr-defined]


def precision_warnings(precision: str, device: torch.device | None = None) -> tuple[str, ...]:
    """Warnings about `precision` on `device` (None: the CPU) of this machine."""
    if device is not None and device.type != "cpu":
        return ()
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    if precision != BF16 or not capabilities or any(capabilities.get(name) for name in _INSTRUCTIONS):
        return ()
    return (
        "--precision bf16: this CPU has no instructions for bfloat16 (AVX512-BF16, AMX), so that a step takes 2 to 3 "
        "times as long as with fp32",
    )


class HalfWeights:
    """A flat copy of `weights` in bfloat16, refreshed bucket by bucket. Memory: 2 bytes a parameter.

    Values are rounded to nearest even, the same on every rank.
    """

    def __init__(self, weights: FlatTensor) -> None:
        self._weights = weights.tensor_N
        half = weights.tensor_N.to(torch.bfloat16)
        self._views = FlatTensor(weights.layout, half)
        # Apart for autograd, which would take the refresh of one bucket for a change of what all layers have saved.
        self._half = half.data

    def refresh(self, bucket: Bucket) -> None:
        """Copy the bucket's weights. Cost: one read of them, half a write."""
        self._half[bucket.start : bucket.stop].copy_(self._weights[bucket.start : bucket.stop])

    def refresh_from(self, start: int) -> None:
        """Copy all elements from `start`: those after the buckets, which are not learned."""
        self._half[start:].copy_(self._weights[start:])

    @contextmanager
    def lent(self, parameters: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """A context in which layers compute with these values, and not with their `parameters`."""
        for name, parameter in parameters.items():
            parameter.half_values = self._views.view(name)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for parameter in parameters.values():
                parameter.half_values = None  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class NetOutput:
    """A net's result: `loss`, the weighted sum of its losses (a scalar with its graph), or None without losses.

    `scalars` are the net's outputs by name, detached: losses before weighting, accuracies. Outputs that are not
    single numbers keep their shape.
    """

    loss: torch.Tensor | None
    scalars: dict[str, torch.Tensor]
