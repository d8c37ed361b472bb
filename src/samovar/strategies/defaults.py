"""A strategy's defaults for a number of workers, and what to tell the user about its settings."""

from dataclasses import replace

from samovar.core.errors import InputError
from samovar.strategies.config import OWNERS, StrategyConfig

SYNC_PERIOD_STEPS = {"local-sgd": 8, "diloco": 50, "sync-easgd": 8}
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of DiLoCo's paper


def resolved(config: StrategyConfig, world_size: int) -> StrategyConfig:
    """`config` with every setting of its strategy given; resolving twice changes nothing.

    Raises InputError where the moving rate a makes elastic averaging diverge: with P workers the distance between
    the center and the workers' mean is multiplied by 1 - a (P + 1) at every exchange.
    """
    if not config.exchanges_weights:
        overlap = config.overlap or ("none" if config.bucket_size_bytes is None else "backward")
        return replace(config, overlap=overlap, owner=(config.owner or OWNERS[0]) if overlap == "full" else None)
    config = replace(config, sync_period_steps=config.sync_period_steps or SYNC_PERIOD_STEPS[config.name])
    match config.name:
        case "diloco":
            return replace(
                config,
                outer_rate=OUTER_RATE if config.outer_rate is None else config.outer_rate,
                outer_momentum=OUTER_MOMENTUM if config.outer_momentum is None else config.outer_momentum,
            )
        case "sync-easgd":
            return _resolved_elastic(config, world_size)
    return config


def warnings(config: StrategyConfig, world_size: int) -> tuple[str, ...]:
    """What may go wrong with a resolved `config`, a sentence each."""
    rate = config.moving_rate
    if rate is None or rate * world_size <= 1:
        return ()
    return (
        f"--moving-rate {rate:g} with {world_size} workers moves the center past the workers' mean, to and fro; "
        f"up to {1 / world_size:.4g} it does not (default {_moving_rate(world_size):.4g})",
    )


def described(config: StrategyConfig) -> str:
    """The resolved settings in words: "sync-easgd: an exchange every 8 steps, moving rate 0.3, overlap period"."""
    parts = []
    if config.sync_period_steps is not None:
        parts.append(
            "an exchange every " + ("step" if config.sync_period_steps == 1 else f"{config.sync_period_steps} steps")
        )
    if config.moving_rate is not None:
        parts.append(f"moving rate {config.moving_rate:.4g}")
    if config.outer_rate is not None:
        parts.append(f"outer rate {config.outer_rate:g}, outer momentum {config.outer_momentum:g}")
    if config.overlap is not None:
        parts.append(f"overlap {config.overlap}")
    if config.variant is not None:
        parts.append(f"variant {config.variant}")
    return f"{config.name}: {', '.join(parts)}"


def _resolved_elastic(config: StrategyConfig, world_size: int) -> StrategyConfig:
    rate = _moving_rate(world_size) if config.moving_rate is None else config.moving_rate
    if rate * (world_size + 1) >= 2:
        raise InputError(
            f"--moving-rate: got {rate:g}, with which {world_size} workers and their center move apart; give less than "
            f"{2 / (world_size + 1):.4g} (default {_moving_rate(world_size):.4g})"
        )
    variant = config.variant or "reduce"
    overlap = config.overlap or ("period" if variant == "reduce" else "none")
    return replace(config, moving_rate=rate, overlap=overlap, variant=variant)


def _moving_rate(world_size: int) -> float:
    """0.9 / (P + 1): the center and the workers' mean close nine tenths of their distance at an exchange."""
    return 0.9 / (world_size + 1)
