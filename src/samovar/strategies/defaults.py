"""A strategy's defaults for a number of workers, and what to tell the user about its settings."""

from dataclasses import dataclass, replace
from typing import Any

from samovar.core.errors import InputError
from samovar.strategies.config import OWNERS, StrategyConfig
from samovar.strategies.traits import AUTO

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of DiLoCo's paper
WORKERS_MOMENTUM = 0.9  # of a solver that says nothing
MOST_OF_A_GROUP = 4  # the GPUs of a ShmCaffe node


def resolved(config: StrategyConfig, world_size: int) -> StrategyConfig:
    """`config` with every setting of its strategy given; resolving twice changes nothing.

    Raises InputError where the moving rate a makes elastic averaging diverge (with P workers in step the distance
    between the center and the workers' mean is multiplied by 1 - a (P + 1) at every exchange, with one at a time the
    distance between center and worker by 1 - 2a), and where groups do not come out even.
    """
    if not config.exchanges_weights:
        overlap = config.overlap or ("none" if config.bucket_size_bytes is None else "backward")
        return replace(
            config, overlap=overlap, owner=config.owner or (OWNERS["full"][0] if overlap == "full" else None)
        )
    traits = config.traits
    config = replace(config, sync_period_steps=config.sync_period_steps or traits.default_period_steps)
    if "outer_rate" in traits.settings:
        config = _with_given(config, outer_rate=OUTER_RATE, outer_momentum=OUTER_MOMENTUM)
    if traits.has_velocity:
        config = _with_given(config, center_momentum=default_center_momentum(WORKERS_MOMENTUM, world_size))
    if traits.pushes:
        config = _with_given(config, read_first=False)
    if traits.in_groups:
        config = _in_groups(config, world_size)
    if not traits.is_elastic:
        return config
    config = _with_given(config, moving_rate=default_moving_rate(config, world_size))
    return config if traits.has_center else _resolved_in_step(config, world_size)


def _with_given(config: StrategyConfig, **defaults: Any) -> StrategyConfig:
    """`config`, where nothing is given with these."""
    return replace(config, **{name: value for name, value in defaults.items() if getattr(config, name) is None})


def warnings(config: StrategyConfig, world_size: int) -> tuple[str, ...]:
    """What may go wrong with a resolved `config`, a sentence each."""
    return (*_lone_groups(config, world_size), *_swinging(config, world_size))


def _lone_groups(config: StrategyConfig, world_size: int) -> tuple[str, ...]:
    if config.group_size != 1 or world_size == 1:
        return ()
    reason = f"{world_size} workers make no two equal groups of 2 to {MOST_OF_A_GROUP}, so that"
    if _group_size(world_size) > 1:
        reason = "with --group-size 1"
    return (f"hybrid-easgd: {reason} each worker is a group of its own, as with shm-easgd",)


def _swinging(config: StrategyConfig, world_size: int) -> tuple[str, ...]:
    rate = config.moving_rate
    if rate is None:
        return ()
    default = default_moving_rate(config, world_size)
    if config.traits.pushes:
        limit = 2 / (num_pushers(config, world_size) + 1)
        is_swinging = rate >= limit
        consequence = "diverges where all read the center before any has pushed"
        words = f"under {limit:.4g} it does not"
    elif config.needs_center:
        is_swinging = rate > 0.5
        consequence = "takes a worker and the center past each other at every exchange"
        words = "up to 0.5 it does not"
    else:
        is_swinging = rate * world_size > 1
        consequence = "moves the center past the workers' mean, to and fro"
        words = f"up to {1 / world_size:.4g} it does not"
    sentence = f"--moving-rate {rate:g} with {world_size} workers {consequence}; {words} (default {default:.4g})"
    return (sentence,) if is_swinging else ()


def default_moving_rate(config: StrategyConfig, world_size: int) -> float:
    """In step 0.9 / (P + 1); one at a time 0.9 / P, at most 0.5; pushed 0.5 / P, of P groups where there are groups.

    In step the center and the workers' mean then close nine tenths of their distance at an exchange.
    """
    if not config.needs_center:
        return 0.9 / (world_size + 1)
    if config.traits.pushes:
        return 0.5 / num_pushers(config, world_size)
    return min(0.9 / world_size, 0.5)


def default_center_momentum(momentum: float, world_size: int) -> float:
    """max(0, 1 - P (1 - mu)): with P times as many steps the center then moves as fast as one worker with mu.

    The total rate P eta / (1 - mu_c) is that worker's, eta / (1 - mu). Asynchrony acts like momentum by itself
    (Mitliagkas, Zhang, Hadjis and Re, 2016).
    """
    return max(0.0, round(1.0 - world_size * (1.0 - momentum), 6))


def num_pushers(config: StrategyConfig, world_size: int) -> int:
    """How many change the center: workers, or groups of them."""
    return max(1, world_size // (config.group_size or 1))


def described(config: StrategyConfig) -> str:
    """The resolved settings in words: "sync-easgd: an exchange every 8 steps, moving rate 0.3, overlap period"."""
    parts = []
    if config.sync_period_steps is not None:
        parts.append(
            "an exchange every " + ("step" if config.sync_period_steps == 1 else f"{config.sync_period_steps} steps")
        )
    if config.moving_rate is not None:
        parts.append(f"moving rate {config.moving_rate:.4g}")
    if config.group_size is not None:
        parts.append(f"groups of {config.group_size}")
    if config.center_momentum is not None:
        parts.append(f"momentum {config.center_momentum:g} at the center")
    if config.max_staleness_steps is not None:
        parts.append(f"staleness up to {config.max_staleness_steps} updates")
    if config.read_first:
        parts.append("the center read before the push is awaited")
    if config.outer_rate is not None:
        parts.append(f"outer rate {config.outer_rate:g}, outer momentum {config.outer_momentum:g}")
    if config.overlap is not None:
        parts.append(f"overlap {config.overlap}")
    if config.variant is not None:
        parts.append(f"variant {config.variant}")
    parts += _factors(config) + _compression(config)
    return f"{config.name}: {', '.join(parts)}"


def _factors(config: StrategyConfig) -> list[str]:
    if not config.takes_factors:
        return []
    return ["gradients as factors" + (" where these are less" if config.factors == AUTO else "")]


def _compression(config: StrategyConfig) -> list[str]:
    if config.codec is None:
        return []
    if config.exchanges_weights:
        return [f"differences as {config.codec}"]
    return [f"gradients as {config.codec}" + ("" if config.always_compresses else " where it helps")]


@dataclass(frozen=True, slots=True)
class MomentumShares:
    """Who keeps momentum: the center as `config` says, and a worker's solver, at `rate_factor` times its rate.

    `notices` are for the user, `refusal` for an optimizer whose momentum is not `worker` and cannot be changed.
    """

    config: StrategyConfig
    worker: float
    rate_factor: float = 1.0
    notices: tuple[str, ...] = ()
    refusal: str = ""


def shared_momentum(config: StrategyConfig, momentum: float, num_workers: int = 1) -> MomentumShares:
    """What becomes of the `momentum` of a solver; 0 is none. Call before `resolved`, which knows a default only.

    Where the center sums up steps these are plain ones: a worker's velocity would go on from where the center no longer
    is. P workers at f times the rate then move it as fast as one worker with the momentum mu moves its own weights:
    f P eta / (1 - mu_c) = eta / (1 - mu), with mu_c the momentum that the center keeps; f = 1 where mu_c is given.
    Raises InputError where the strategy is named for a momentum that is not there.
    """
    if config.traits.needs_momentum and momentum == 0:
        raise InputError(f"{config.name}: the solver has no momentum; give it one (0.9, say), or choose async-easgd")
    if not config.traits.adds_steps:
        return MomentumShares(config, momentum)
    refusal = (
        f"{config.name}: the optimizer has momentum {momentum:g}, which workers must not have where the center adds "
        "up their steps; make it with momentum=0"
    )
    if config.traits.has_velocity:
        refusal = f"{refusal}, and give center_momentum"
        if config.center_momentum is not None or not momentum:
            return MomentumShares(config, 0.0, refusal=refusal)
        config = replace(config, center_momentum=default_center_momentum(momentum, num_workers))
        return MomentumShares(config, 0.0, _rate_factor(config, momentum, num_workers), refusal=refusal)
    if not momentum:
        return MomentumShares(config, 0.0, refusal=refusal)
    notice = f"{config.name}: the solver's momentum {momentum:g} is off; choose async-msgd to have it at the center"
    return MomentumShares(config, 0.0, _rate_factor(config, momentum, num_workers), (notice,), refusal)


def _rate_factor(config: StrategyConfig, momentum: float, num_workers: int) -> float:
    return round((1.0 - (config.center_momentum or 0.0)) / (num_workers * (1.0 - momentum)), 6)


def _in_groups(config: StrategyConfig, world_size: int) -> StrategyConfig:
    size = config.group_size or _group_size(world_size)
    if world_size % size:
        raise InputError(
            f"--group-size {size}: {world_size} workers are no whole number of such groups; "
            f"give a divisor of {world_size} (default {_group_size(world_size)})"
        )
    return replace(config, group_size=size)


def _group_size(world_size: int) -> int:
    """The largest that divides the workers, up to 4 and to half of them; 1 where there is none."""
    sizes = range(1, min(MOST_OF_A_GROUP, world_size // 2) + 1)
    return max((size for size in sizes if world_size % size == 0), default=1)


def _resolved_in_step(config: StrategyConfig, world_size: int) -> StrategyConfig:
    rate = config.moving_rate
    assert rate is not None
    if rate * (world_size + 1) >= 2:
        raise InputError(
            f"--moving-rate: got {rate:g}; give more than 0 and less than {2 / (world_size + 1):.4g}, from which on "
            f"{world_size} workers and their center move apart (default {default_moving_rate(config, world_size):.4g})"
        )
    variant = config.variant or "reduce"
    overlap = config.overlap or ("period" if variant == "reduce" else "none")
    return replace(config, moving_rate=rate, overlap=overlap, variant=variant)
