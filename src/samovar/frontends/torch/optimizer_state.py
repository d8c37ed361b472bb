"""What an optimizer remembers of its parameters, quantity by quantity, in a buffer laid out like the gradients."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from samovar.core.buffer import FlatBuffer
from samovar.frontends.torch.gradients import REACHED


class OptimizerState:
    """Momentum and the like by name: one element per element of the parameter, or one number per parameter."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._parameters = dict(parameters)

    def quantities(self) -> list[str]:
        """The names, in an order that is the same on all ranks."""
        return sorted({key for _, keys in self._rows() for key in keys})

    def fingerprint(self) -> float:
        """48 bits that are equal where the same parameters have the same quantities."""
        return float(int.from_bytes(hashlib.sha256(repr(self._rows()).encode()).digest()[:6], "big"))

    def write(self, quantity: str, flat: FlatBuffer) -> None:
        """Copy the quantity into `flat`; what has none is zero there."""
        flat.tensor_N.zero_()
        for place, value, _ in self._places(quantity, flat):
            place.copy_(torch.as_tensor(value).reshape(place.shape))

    def read(self, quantity: str, flat: FlatBuffer) -> None:
        """Take the quantity back from `flat`."""
        for place, value, state in self._places(quantity, flat):
            if isinstance(value, torch.Tensor):
                value.copy_(place.reshape(value.shape))
            else:
                state[quantity] = type(value)(place.item())

    def _rows(self) -> list[tuple[str, list[str]]]:
        """Which quantities each parameter has."""
        return [
            (name, sorted(key for key, value in self._of(p).items() if _can_move(value, p)))
            for name, p in self._parameters.items()
        ]

    def _places(self, quantity: str, flat: FlatBuffer) -> Iterator[tuple[torch.Tensor, Any, dict[str, Any]]]:
        for number, (name, parameter) in enumerate(self._parameters.items()):
            state = self._of(parameter)
            value = state.get(quantity)
            if not _can_move(value, parameter):
                continue
            is_whole = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            yield flat.view(name) if is_whole else flat.view(REACHED)[number], value, state

    def _of(self, parameter: nn.Parameter) -> dict[str, Any]:
        # Reading a missing entry of the optimizer's defaultdict would make one.
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return state


def _can_move(value: object, parameter: nn.Parameter) -> bool:
    if isinstance(value, torch.Tensor):
        return value.shape == parameter.shape or value.numel() == 1
    return isinstance(value, int | float)
