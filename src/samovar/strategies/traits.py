"""The declaration of a strategy, from which flags, typed arguments, refusals and tables are made."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from samovar.core.errors import InputError, require_choice
from samovar.strategies.recipe import Recipe

# How far --compress and factors go, and who chooses.
NONE, AUTO, ALWAYS = "none", "auto", "always"
MAX_REFUSED_PUSHES: Final = 3  # in a row, of one worker
SYNC_PERIOD_STEPS: Final = "sync_period_steps"
_UNITS = ("_steps", "_bytes", "_s")
_MEASURES: dict[type, type] = {int: Integral, float: Real}
_MOST: Final = 2**63  # and more is no number for a file or a word of shared memory

Value: TypeAlias = bool | int | float | str


class Chosen(Protocol):
    """The settings of a run, by name; None if nothing is given."""

    def __getitem__(self, name: str, /) -> Any: ...


# default(chosen, world_size)
Rule: TypeAlias = Callable[[Chosen, int], Value | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that a strategy can be told.

    `name` is StrategyConfig's; the flag is made from it without its unit (`sync_period_steps`: --sync-period), and
    `samovar.replicate` takes both spellings, unless `flag` or `argument` say otherwise. A number is at least `least`,
    more than `above` and less than `below`, a name is one of `choices`. `default` is a value or a rule of the settings
    and the number of workers, and `default_words` is its text. `words` show the value at the start of a run;
    "" shows none. `source` names the publication.
    """

    name: str
    kind: type[Value]
    help: str
    flag: str = ""
    argument: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    below: float = math.inf
    unit: str = ""
    or_else: str = ""
    default: Value | Rule | None = None
    default_words: str = ""
    words: str | Callable[[Any, Chosen], str] = "{label} {value:g}"
    source: str = ""
    is_advanced: bool = False

    def __post_init__(self) -> None:
        bare = next((self.name.removesuffix(unit) for unit in _UNITS if self.name.endswith(unit)), self.name)
        object.__setattr__(self, "flag", self.flag or f"--{bare.replace('_', '-')}")
        object.__setattr__(self, "argument", self.argument or self.name)
        if not self.default_words and isinstance(self.default, Value):
            object.__setattr__(self, "default_words", f"{self.default}")

    @property
    def spellings(self) -> tuple[str, ...]:
        """In Python: the argument's name, and the flag's."""
        return tuple(dict.fromkeys((self.argument, self.flag.removeprefix("--").replace("-", "_"))))

    @property
    def has_flag(self) -> bool:
        """Whether commands take it."""
        return self.flag.startswith("--")

    @property
    def metavar(self) -> str:
        """The word after the flag, in capitals; "" for a switch."""
        if self.kind in (bool, str):
            return "" if self.kind is bool else "NAME"
        return self.unit.upper() or ("X" if self.kind is float else "N")

    def by_default(self, default: Value | Rule, default_words: str = "") -> "Setting":
        """The same setting with another default."""
        return replace(self, default=default, default_words=default_words)

    def among(self, *choices: str) -> "Setting":
        """The same setting with these choices."""
        return replace(self, choices=choices)

    def default_for(self, chosen: Chosen, world_size: int) -> Value | None:
        """The default with these settings for `world_size` workers."""
        return self.default(chosen, world_size) if callable(self.default) else self.default

    def described(self, value: Any, chosen: Chosen) -> str:
        """`value` as text, "" if it is not worth saying."""
        if callable(self.words):
            return self.words(value, chosen)
        words = self.words if isinstance(value, Real) else self.words.replace(":g", "")
        return words.format(value=value, label=self.flag.removeprefix("--").replace("-", " "))

    def check(self, value: Value, strategy: str) -> None:
        """Raises InputError if the value is out of range, or of another type."""
        kinds = _MEASURES.get(self.kind, self.kind)
        if self.choices:
            whose = f" of {strategy}" if self.name == "overlap" else ""
            require_choice(f"{self.flag}{whose}", value, self.choices)
        elif not isinstance(value, kinds) or isinstance(value, bool) != (self.kind is bool):  # a switch is no number
            raise InputError(f"{self.flag}: got {value!r}; give a value of type {self.kind.__name__}")
        elif self.kind in _MEASURES and not self._holds(number := _measured(value)):
            got = f"{value}" if self.above is None and math.isfinite(number) else f"{number:g}"
            unit = f" {self.unit}" if self.unit else ""
            raise InputError(f"{self.flag}: got {got}{unit}; give {self.limits}{self.or_else}")

    @property
    def limits(self) -> str:
        """The range as text."""
        low = [f"more than {self.above:g}"] if self.above is not None else []
        low += [f"at least {self.least:g}"] if self.least is not None else []
        high = [f"less than {self.below:g}"] if self.below < math.inf else []
        return " and ".join(low + high) or "a finite number"

    def _holds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and value < self.below
        )


def _measured(value: Any) -> float:
    """The number; infinite from 2^63 on."""
    if abs(value) >= _MOST:
        return math.inf if value > 0 else -math.inf
    return float(value)


@dataclass(frozen=True, slots=True)
class Traits:
    """Every strategy's class has one, as `traits`, made by `samovar.strategies.base.strategy`.

    `exchange` and `waits_for` are text: what travels, and what a worker waits for. It `has_center` if workers share
    weights in one place: with locks or without, with a velocity of its own or without. Workers come to it
    `in_turn`, each at its own speed, or `in_groups` that go in step; `pushes` where a difference travels while the next
    steps compute. `is_replayable` where the order of updates gives the same bits. `recipe` says how several workers
    learn as well as one.
    It `regroups` if workers in step may come and go between exchanges, because `state_dict` between two exchanges is
    all that a worker needs. It `leaves_frozen_out` if it needs no sums of weights that nobody changes.
    """

    name: str = ""
    settings: tuple[Setting, ...] = ()
    exchange: str = ""
    waits_for: str = ""
    has_center: bool = False
    has_locks: bool = True
    has_velocity: bool = False
    in_turn: bool = False
    in_groups: bool = False
    pushes: bool = False
    is_replayable: bool = False
    needs_momentum: bool = False
    recipe: Recipe | None = None
    regroups: bool = False
    leaves_frozen_out: bool = False

    def setting(self, name: str) -> Setting | None:
        """The one of that name, if the strategy has it."""
        return next((setting for setting in self.settings if setting.name == name), None)

    @property
    def exchanges_weights(self) -> bool:
        """Whether workers train on their own and exchange weights now and then, not gradients at every step."""
        return self.setting(SYNC_PERIOD_STEPS) is not None

    @property
    def is_async(self) -> bool:
        """Whether each worker, or group of them, goes at its own speed."""
        return self.has_center and not self.in_turn

    @property
    def is_elastic(self) -> bool:
        """Whether workers and a center pull at each other."""
        return self.setting("moving_rate") is not None

    @property
    def adds_steps(self) -> bool:
        """Whether the center adds up what workers' steps changed, rather than being pulled at."""
        return self.has_center and not self.is_elastic


class Declared(Protocol):
    """A strategy's class, as far as its settings are concerned."""

    traits: ClassVar[Traits]

    @classmethod
    def check(cls, chosen: Any, /) -> None:
        """Raises InputError if settings do not go together."""


# Every strategy that was declared, ours first, by name; a user's own is added when its file is imported.
KINDS: dict[str, type[Declared]] = {}


def place_of(kind: type) -> tuple[str, str]:
    """File and name of a class; a file may have been imported by two names."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__, kind.__qualname__


def declared_settings() -> dict[str, tuple[Setting, ...]]:
    """Of all strategies, by name; strategies may have a setting with other choices and defaults each."""
    return _settings_of(tuple(KINDS.values()))


@lru_cache(maxsize=1)
def _settings_of(kinds: tuple[type[Declared], ...]) -> dict[str, tuple[Setting, ...]]:
    found: dict[str, tuple[Setting, ...]] = {}
    for kind in kinds:
        for setting in kind.traits.settings:
            found[setting.name] = (*found.get(setting.name, ()), setting)
    return found
