"""Solvers by type."""

from collections.abc import Mapping, Sequence

from samovar.core.buffer import FlatBuffer
from samovar.solver.base import Multipliers, Solver
from samovar.solver.config import SolverConfig
from samovar.solver.flat import FlatSolver
from samovar.solver.rules import RULES


def build_solver(
    config: SolverConfig,
    weights: FlatBuffer,
    gradients: FlatBuffer,
    multipliers: Mapping[str, Multipliers],
    histories: Sequence[FlatBuffer] = (),
) -> Solver:
    """The solver of `config.type` on these buffers, its histories zero.

    `multipliers` are by parameter name; a parameter without takes 1 for both. `histories` are zeroed memory for what
    it keeps, `num_histories(config)` of them; none given, it takes its own.
    """
    return FlatSolver(config, weights, gradients, multipliers, histories)


def num_histories(config: SolverConfig) -> int:
    """How many floats a parameter's value has beside it."""
    return len(RULES[config.type].histories)
