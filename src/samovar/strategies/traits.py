"""What a strategy declares of itself, from which settings, refusals, flags and tables are made."""

from dataclasses import dataclass
from typing import Final, Protocol

# How far --compress and factors go, and who chooses.
NONE, AUTO, ALWAYS = "none", "auto", "always"
MAX_REFUSED_PUSHES: Final = 3  # in a row, of one worker


@dataclass(frozen=True, slots=True)
class Traits:
    """Every strategy's class has one, as `traits`.

    `settings` are the fields of StrategyConfig that may be given with it, `overlaps` what `overlap` may be. It
    `has_center` where workers share weights that lie in one place: with locks or without, with a velocity of its own or
    without. Workers come to it `in_turn`, each at its own speed, or `in_groups` that go in step; `pushes` where a
    difference travels while the next steps compute. `is_replayable` where the order of updates gives the same bits.
    `default_period_steps` are between exchanges of weights; None: gradients are exchanged at every step.
    """

    name: str
    settings: tuple[str, ...]
    default_period_steps: int | None = None
    overlaps: tuple[str, ...] = ()
    has_center: bool = False
    has_locks: bool = True
    has_velocity: bool = False
    in_turn: bool = False
    in_groups: bool = False
    pushes: bool = False
    is_replayable: bool = False
    needs_momentum: bool = False

    @property
    def exchanges_weights(self) -> bool:
        """Whether workers train on their own and exchange weights now and then."""
        return self.default_period_steps is not None

    @property
    def is_async(self) -> bool:
        """Whether each worker, or group of them, goes at its own speed."""
        return self.has_center and not self.in_turn

    @property
    def is_elastic(self) -> bool:
        """Whether workers and a center pull at each other."""
        return "moving_rate" in self.settings

    @property
    def adds_steps(self) -> bool:
        """Whether the center adds up what workers' steps changed, rather than being pulled at."""
        return self.has_center and not self.is_elastic


class Chosen(Protocol):
    """The settings, all given, that a strategy's class is made from; see `samovar.strategies.config`."""

    @property
    def sync_period_steps(self) -> int | None: ...
    @property
    def overlap(self) -> str | None: ...
    @property
    def variant(self) -> str | None: ...
    @property
    def codec(self) -> str | None: ...
    @property
    def outer_rate(self) -> float | None: ...
    @property
    def outer_momentum(self) -> float | None: ...
    @property
    def moving_rate(self) -> float | None: ...
    @property
    def max_staleness_steps(self) -> int | None: ...
    @property
    def read_first(self) -> bool | None: ...
    @property
    def center_momentum(self) -> float | None: ...
