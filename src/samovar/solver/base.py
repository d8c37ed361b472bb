"""What the worker's step, snapshots and strategies ask of a solver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from samovar.core.buffer import FlatBuffer
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.solver.policy import SolverConfig


@dataclass(frozen=True, slots=True)
class Multipliers:
    """A parameter's factors on learning rate and weight decay."""

    lr: float = 1.0
    decay: float = 1.0


class Solver(Protocol):
    """Updates flat weights from flat gradients, bucket by bucket.

    `histories` are what it keeps of past steps, in the order in which Caffe's solverstate holds them: all
    parameters of the first, then all of the second.
    """

    @property
    def config(self) -> SolverConfig: ...
    @property
    def histories(self) -> Sequence[FlatBuffer]: ...

    def update(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        """One step on the bucket's parameters, with gradient_scale * (their gradients).

        Every bucket of the layout comes once in each step, in any order. The weights may have changed only
        when the last one has come: see `FlatSolver`.
        """
        ...

    def state_dict(self) -> State:
        """Every history of every parameter, by `history_key`, and the solver's type."""
        ...

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Take back what `state_dict` gave; InputError where it is of another net or another type of solver."""
        ...


def history_key(name: str, index: int) -> str:
    """The name, in a solver's state, of history `index` (from 0) of parameter `name` ("conv1/0")."""
    return name if index == 0 else f"{name}#{index + 1}"
