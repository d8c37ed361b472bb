"""Where the momentum of a run is kept: by workers, or at their center."""

from dataclasses import replace

from samovar.solver.policy import SolverConfig
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import MomentumShares, shared_momentum

_WITH_MOMENTUM = ("SGD", "Nesterov")  # of others a center can keep none


def with_momentum(
    strategy: StrategyConfig, solver: SolverConfig, num_workers: int, are_all: bool = True
) -> tuple[StrategyConfig, SolverConfig, tuple[str, ...]]:
    """The strategy and the solver's settings, with momentum where the strategy keeps it, and what to tell the user.

    Call it before the strategy is resolved. A center that many workers move keeps less momentum than one worker's
    solver: see `default_center_momentum`. If only these workers move it (`are_all`), the solver's rate changes as in
    `shared_momentum`. Raises InputError if the strategy needs a momentum and the solver has none.
    """
    momentum = solver.momentum if solver.type in _WITH_MOMENTUM else 0.0
    shares = shared_momentum(strategy, momentum, num_workers)
    factor = shares.rate_factor if are_all else 1.0
    own = of_worker(solver, shares, factor)
    notices = shares.notices
    if factor != 1.0:
        one = f"one with momentum {momentum:g}" if momentum else "one"
        notices = (*notices, _other_rate(strategy, solver, own.policy.base_lr, num_workers, one))
    return shares.config, own, notices


def of_worker(solver: SolverConfig, shares: MomentumShares, rate_factor: float) -> SolverConfig:
    """A worker's solver: its share of the momentum, in the form that this needs, and `rate_factor` times the rate."""
    policy = replace(solver.policy, base_lr=solver.policy.base_lr * rate_factor)
    if solver.type not in _WITH_MOMENTUM:
        return replace(solver, policy=policy)
    form = "Nesterov" if shares.is_nesterov else solver.type
    return replace(solver, type=form, momentum=shares.worker, policy=policy)


def _other_rate(strategy: StrategyConfig, solver: SolverConfig, rate: float, num_workers: int, one: str) -> str:
    return (
        f"{strategy.name}: a worker's base_lr is {rate:g} instead of {solver.policy.base_lr:g}, with which "
        f"{num_workers} of them move the center as fast as {one} moves its weights"
    )
