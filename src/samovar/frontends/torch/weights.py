"""Weights of any module in one flat buffer, where strategies exchange them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from samovar.core.buffer import FlatBuffer, StagedBuffer
from samovar.core.errors import InputError, SamovarError
from samovar.frontends.torch.parameters import device_of


class FlatWeights:
    """Parameters of float32 become views of the buffer; the Parameter objects stay what they are.

    Others (bfloat16, float16) keep their memory: `gather` copies them into the buffer and `scatter` back, rounded. On
    a GPU parameters are views of a copy of the buffer there, which `gather` and `scatter` copy too.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], flat: FlatBuffer) -> None:
        _require_apart(parameters)
        self._flat = flat
        self._adopted = {name: p for name, p in parameters.items() if p.dtype == torch.float32}
        self._mirrored = {name: p for name, p in parameters.items() if p.dtype != torch.float32}
        self._staged = StagedBuffer(flat, device_of(parameters))
        self._near = self._staged.near
        for name, parameter in self._adopted.items():
            view = self._near.view(name)
            view.copy_(parameter.data)
            parameter.data = view
        self.gather()

    def gather(self) -> None:
        """Bring the buffer up to date with parameters of other types, or on a GPU."""
        for name, parameter in self._mirrored.items():
            self._near.view(name).copy_(parameter.data)
        self._staged.store()

    def scatter(self) -> None:
        """Bring parameters of other types, or on a GPU, up to date with the buffer."""
        self._staged.fetch()
        for name, parameter in self._mirrored.items():
            parameter.data.copy_(self._near.view(name))

    @contextmanager
    def in_buffer(self) -> Iterator[None]:
        """What changes in the buffer inside, without gradients, changes the parameters."""
        with torch.no_grad():
            self.gather()
            yield
            self.scatter()

    def require_in_place(self) -> None:
        """SamovarError where somebody gave a parameter other memory, which an exchange would not see."""
        for name, parameter in self._adopted.items():
            if parameter.data_ptr() != self._near.view(name).data_ptr():
                raise SamovarError(
                    f"parameter {name!r} was given other memory after replicate(); write into it instead "
                    "(load_state_dict without assign=True, no .to(), no p.data = ...)"
                )

    @contextmanager
    def replaced(self, values_N: npt.NDArray[np.float32]) -> Iterator[None]:
        """The model has other weights, given as the buffer holds them, until the context ends."""
        self.gather()
        own = self._flat.array_N.copy()
        self._set(values_N)
        try:
            yield
        finally:
            self._set(own)

    def named(self, values_N: npt.NDArray[np.float32]) -> dict[str, torch.Tensor]:
        """Copies of other values of the buffer, by parameter."""
        flat = FlatBuffer(self._flat.layout, values_N.copy())
        return {entry.spec.name: flat.view(entry.spec.name) for entry in self._flat.layout.entries}

    def load(self, named: Mapping[str, torch.Tensor]) -> None:
        """Set all weights from what `named` gave."""
        for name in [entry.spec.name for entry in self._flat.layout.entries]:
            self._flat.view(name).copy_(named[name])
        self.scatter()

    def _set(self, values_N: npt.NDArray[np.float32]) -> None:
        self._flat.array_N[:] = values_N
        self.scatter()


def _require_apart(parameters: Mapping[str, nn.Parameter]) -> None:
    places: dict[int, str] = {}
    for name, parameter in parameters.items():
        other = places.setdefault(parameter.data_ptr(), name)
        if other != name:
            raise InputError(
                f"replicate: parameters {other!r} and {name!r} share memory but are two Parameter objects; tie them "
                "by using one Parameter object in both places"
            )
