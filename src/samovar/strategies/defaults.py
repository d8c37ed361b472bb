"""A strategy's defaults for a number of workers, and what to tell the user about its settings."""

from dataclasses import dataclass, replace

from samovar.core.errors import InputError
from samovar.strategies.async_sgd import WORKERS_MOMENTUM, center_momentum
from samovar.strategies.base import kind_of
from samovar.strategies.config import StrategyConfig
from samovar.strategies.recipe import Change


def resolved(config: StrategyConfig, world_size: int) -> StrategyConfig:
    """`config` with every setting of its strategy given; resolving twice changes nothing.

    Raises InputError if the settings do not fit that number of workers.
    """
    missing = [setting for setting in config.traits.settings if config[setting.name] is None]
    given = config.but({setting.name: setting.default_for(config, world_size) for setting in missing})
    return kind_of(config.name).settled(given, world_size)


def by_recipe(config: StrategyConfig, world_size: int, *, is_adaptive: bool) -> StrategyConfig:
    """`config` with the settings of its strategy's recipe for `world_size` workers, where none is given."""
    found = _of_recipe(config, world_size, is_adaptive)
    return config.but({name: value for name, value in found.items() if config[name] is None})


def recipe_changes(config: StrategyConfig, world_size: int, *, is_adaptive: bool) -> tuple[Change, ...]:
    """The settings of a resolved `config` that are not the defaults, but those of its recipe."""
    defaults = {setting.name: setting.default_for(config, world_size) for setting in config.traits.settings}
    return tuple(
        Change(name, float(defaults[name] or 0.0), value)
        for name, value in _of_recipe(config, world_size, is_adaptive).items()
        if config[name] == value != defaults[name]
    )


def _of_recipe(config: StrategyConfig, world_size: int, is_adaptive: bool) -> dict[str, float]:
    recipe = config.traits.recipe
    if recipe is None or world_size == 1:
        return {}
    rules = {**recipe.settings, **(recipe.if_adaptive if is_adaptive else {})}
    return {name: rule(config, world_size) for name, rule in rules.items()}


def warnings(config: StrategyConfig, world_size: int, steps: range = range(0)) -> tuple[str, ...]:
    """Warnings about a resolved `config` for these `steps` of a run, a sentence each."""
    period, own = config.sync_period_steps or 1, kind_of(config.name).warnings(config, world_size)
    has_center = config.needs_center or config.traits.is_elastic
    if not (has_center and steps and steps.stop // period == steps.start // period):
        return own
    text = f"--sync-period {period}: no exchange comes in steps {steps.start} to {steps.stop}, so the center, which is"
    return (f"{text} tested and saved, learns nothing; give at most {len(steps)}, or more --iterations", *own)


def described(config: StrategyConfig) -> str:
    """The resolved settings as text: "sync-easgd: an exchange every 8 steps, moving rate 0.3, overlap period"."""
    given = [setting for setting in config.traits.settings if config[setting.name] is not None]
    words = [setting.described(config[setting.name], config) for setting in given]
    return f"{config.name}: {', '.join(part for part in words if part)}"


@dataclass(frozen=True, slots=True)
class MomentumShares:
    """Where momentum is kept: at the center as `config` says, and a worker's solver, at `rate_factor` times its rate.

    `is_nesterov`: in Nesterov's form. `notices` are for the user, `refusal` for an optimizer whose momentum is not
    this one and cannot be changed.
    """

    config: StrategyConfig
    worker: float
    rate_factor: float = 1.0
    is_nesterov: bool = False
    notices: tuple[str, ...] = ()
    refusal: str = ""


def shared_momentum(config: StrategyConfig, momentum: float, num_workers: int = 1) -> MomentumShares:
    """The division of a solver's `momentum` (0 is none). Call before `resolved`, which only knows a default.

    A center that sums up steps needs plain steps: a worker's velocity would continue from a place where the center no
    longer is. P workers at f times the rate move it as fast as one worker with momentum mu moves its own weights:

        f P eta / (1 - mu_c) = eta / (1 - mu)

    mu_c is the momentum that the center keeps; f = 1 if not the default mu_c is given, unless workers look ahead. A
    solver with mu = 0 (Adam, say) gives the center that of 0.9, and moves it at its own speed. With `keep_momentum`
    each worker keeps mu, and f = 1 / P. Raises InputError if the strategy needs momentum and the solver has none.
    """
    if config.traits.needs_momentum and momentum == 0:
        raise InputError(f"{config.name}: the solver or optimizer has no momentum; give it 0.9, or choose async-easgd")
    if not config.traits.adds_steps:
        return MomentumShares(config, momentum)
    refusal = (
        f"{config.name}: the optimizer has momentum {momentum:g}, which workers must not have where the center adds "
        "up their steps; make it with momentum=0 (and OneCycleLR with cycle_momentum=False)"
    )
    if config.traits.has_velocity:
        refusal += f", and with lr / (1 - {momentum:g}), which is as fast" if config.look_ahead else ""
        default = center_momentum(momentum or WORKERS_MOMENTUM, num_workers, bool(config.look_ahead))
        is_given = config.center_momentum not in (None, default)
        if not config.look_ahead and (is_given or not momentum):
            return MomentumShares(config, 0.0, refusal=refusal)
        if not is_given:
            config = replace(config, center_momentum=default)
        return MomentumShares(config, 0.0, _rate_factor(config, momentum, num_workers), refusal=refusal)
    share = _rate_factor(config, 0.0, num_workers)
    if not momentum:
        return MomentumShares(config, 0.0, share if config.keep_momentum else 1.0, refusal=refusal)
    if config.keep_momentum:
        refusal = (
            f"{config.name}: with keep_momentum (which its recipe sets) a worker's momentum must look ahead; make the "
            "optimizer with nesterov=True, or give keep_momentum=False and momentum=0"
        )
        return MomentumShares(config, momentum, share, is_nesterov=True, refusal=refusal)
    notice = f"{config.name}: the solver's momentum {momentum:g} is off; choose async-msgd to have it at the center"
    return MomentumShares(config, 0.0, _rate_factor(config, momentum, num_workers), notices=(notice,), refusal=refusal)


def _rate_factor(config: StrategyConfig, momentum: float, num_workers: int) -> float:
    return float(f"{(1.0 - (config.center_momentum or 0.0)) / (num_workers * (1.0 - momentum)):.6g}")
