"""Solvers by type."""

from collections.abc import Mapping

from samovar.core.buffer import FlatBuffer
from samovar.solver.base import Multipliers, Solver
from samovar.solver.config import SolverConfig
from samovar.solver.flat import FlatSolver


def build_solver(
    config: SolverConfig,
    weights: FlatBuffer,
    gradients: FlatBuffer,
    multipliers: Mapping[str, Multipliers],
) -> Solver:
    """The solver of `config.type` on these buffers, its histories zero.

    `multipliers` are by parameter name; a parameter without takes 1 for both.
    """
    return FlatSolver(config, weights, gradients, multipliers)
