"""Where the momentum of a run is kept: by workers, or at their center."""

from dataclasses import replace

from samovar.solver.config import SolverConfig
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import shared_momentum

_WITH_MOMENTUM = ("SGD", "Nesterov")  # of others a center can keep none


def with_momentum(
    strategy: StrategyConfig, solver: SolverConfig, num_workers: int
) -> tuple[StrategyConfig, SolverConfig, tuple[str, ...]]:
    """Both with the momentum where the strategy keeps it, and what to tell of that; before the strategy is resolved.

    A center that many workers move keeps less of it than one worker's solver: see `default_center_momentum`.

    Raises InputError where the strategy is named for a momentum that is not there.
    """
    if solver.type not in _WITH_MOMENTUM:
        return shared_momentum(strategy, 0.0, num_workers).config, solver, ()
    shares = shared_momentum(strategy, solver.momentum, num_workers)
    return shares.config, replace(solver, momentum=shares.worker), shares.notices
