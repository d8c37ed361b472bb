"""Whether a torch optimizer's momentum fits a strategy whose center adds up what workers' steps changed."""

from collections.abc import Mapping
from typing import Any

import torch

from samovar.core.errors import InputError
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import shared_momentum


def with_momentum(
    config: StrategyConfig, optimizer: torch.optim.Optimizer, num_workers: int
) -> tuple[StrategyConfig, tuple[str, ...]]:
    """`config` with the center's share of the momentum, and what the user should know; before it is resolved.

    Raises InputError where the optimizer has a momentum that it must not have, or lacks one.
    """
    momentum = max((float(group.get("momentum", 0.0)) for group in optimizer.param_groups), default=0.0)
    first_moment = max((_first_moment(group) for group in optimizer.param_groups), default=0.0)
    if config.traits.needs_momentum:
        return shared_momentum(config, momentum or first_moment, num_workers).config, ()
    shares = shared_momentum(config, momentum, num_workers)
    if shares.worker != momentum:
        raise InputError(f"replicate: {shares.refusal}")
    if config.traits.adds_steps and first_moment:
        return shares.config, (
            f"{config.name}: {type(optimizer).__name__} averages gradients over steps (betas), which acts as a "
            f"momentum of each worker where the center adds up their steps; betas=(0.0, ...) leaves it out",
        )
    return shares.config, ()


def _first_moment(group: Mapping[str, Any]) -> float:
    """Adam's beta1 and the like; 0 where there is none."""
    betas = group.get("betas") or (0.0,)
    return float(betas[0])
