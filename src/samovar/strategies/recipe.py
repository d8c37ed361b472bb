"""A strategy's recipe: how a solver that was made for one worker changes, so that several learn as well as one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# Of the strategy's settings, by name, and of the number of workers; a switch is a setting, too.
Rule: TypeAlias = Callable[[Any, int], float]


def always(value: float) -> Rule:
    """The same for all settings and workers."""
    return lambda _chosen, _num_workers: value


def by_root(times: float) -> Rule:
    """`times` sqrt(P): each of P steps is divided by so much more noise (Malladi et al. 2022, square-root scaling)."""
    return lambda _chosen, num_workers: times * math.sqrt(num_workers)


UNCHANGED, BY_ROOT = always(1.0), by_root(1.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """P workers share one worker's batch, and make as many steps as it would: the same samples in all.

    `settings` are the strategy's, where the user gives none. The learning rate is `rate` times the solver's. If the
    solver divides steps by the size of gradients, as Adam does, it is `adaptive_rate` times that, and the settings of
    `if_adaptive` come first. `is_default`: it holds if nothing is said about recipe or batch.
    """

    settings: Mapping[str, Rule] = field(default_factory=dict)
    if_adaptive: Mapping[str, Rule] = field(default_factory=dict)
    rate: Rule = UNCHANGED
    adaptive_rate: Rule = BY_ROOT
    is_default: bool = True

    def rate_factor(self, chosen: Any, num_workers: int, *, is_adaptive: bool) -> float:
        """The factor of the solver's learning rate."""
        return self.rate(chosen, num_workers) * (self.adaptive_rate(chosen, num_workers) if is_adaptive else 1.0)


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that a recipe changed: one worker's value, and that of each of several."""

    name: str
    before: float
    after: float

    def __str__(self) -> str:
        if isinstance(self.after, bool):
            return f"{self.name} {'off' if self.after else 'on'} -> {'on' if self.after else 'off'}"
        return f"{self.name} {self.before:,.4g} -> {self.after:,.4g}"
