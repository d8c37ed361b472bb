"""A strategy's name and its settings, as flags and files spell them."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samovar.collectives.plans import ALL_REDUCE_NAMES
from samovar.core.errors import InputError, require_choice
from samovar.core.modules import object_at
from samovar.core.units import is_count
from samovar.strategies.traits import AUTO, KINDS, NONE, Declared, Traits, Value, declared_settings, place_of

COLLECTIVES = (*ALL_REDUCE_NAMES, AUTO)


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """Which strategy, and its settings; None is the strategy's default (see `samovar.strategies.defaults`).

    `name` may be given as MODULE:NAME or FILE.py:NAME, of a user's own strategy, and becomes the name that it declares.
    `source` then keeps its place, and `own` its settings that ours lack. `bucket_size_bytes` None exchanges the whole
    model as one bucket, or with `automatic_buckets` in the cut of `samovar.strategies.bucketing`. `collective` AUTO is
    for others to resolve. The other fields are declared in `samovar.strategies.settings`, or with the strategy.
    """

    name: str = "sync"
    collective: str = AUTO
    bucket_size_bytes: int | None = None
    sync_period_steps: int | None = None
    moving_rate: float | None = None
    worker_rate: float | None = None
    overlap: str | None = None
    variant: str | None = None
    outer_rate: float | None = None
    outer_momentum: float | None = None
    fragments: int | None = None
    delay_steps: int | None = None
    mixing: float | None = None
    owner: str | None = None
    automatic_buckets: bool = False
    max_staleness_steps: int | None = None
    max_refused_pushes: int | None = None
    group_size: int | None = None
    read_first: bool | None = None
    keep_momentum: bool | None = None
    center_momentum: float | None = None
    look_ahead: bool | None = None
    compress: str | None = None
    always_compresses: bool = False
    factors: str | None = None
    own: Mapping[str, Value] = field(default_factory=dict, hash=False)
    source: str | None = None

    def __post_init__(self) -> None:
        if ":" in self.name:
            source, name = declared_as(self.name)
            object.__setattr__(self, "source", source)
            object.__setattr__(self, "name", name)
        require_choice("--strategy", self.name, tuple(KINDS))
        require_choice("--collective", self.collective, COLLECTIVES)
        assert not self.automatic_buckets or (not self.exchanges_weights and self.bucket_size_bytes is None), self
        declared = declared_settings()
        if unknown := [name for name in self.own if name not in declared]:
            raise TypeError(f"unknown settings {unknown}")
        for name, settings in declared.items():
            if (value := self[name]) is None or (value is False and settings[0].kind is bool):
                continue
            setting = self.traits.setting(name)
            if setting is not None:
                setting.check(value, self.name)
                self._keep(name, setting.kind(value))
            elif name != "always_compresses":  # which says by itself that there is nothing to compress
                self._refuse(name, settings[0].flag)
        if self.always_compresses and self.codec is None:
            raise InputError("--compress-always: there is nothing to compress; give --compress too, or leave it out")
        self.kind.check(self)

    @classmethod
    def given(cls, name: str, settings: Mapping[str, Any], **others: Any) -> "StrategyConfig":
        """With these settings, ours and others'; raises TypeError if one is unknown."""
        ours = {name: value for name, value in settings.items() if name in _FIELDS}
        return cls(name, **ours, own={name: settings[name] for name in settings if name not in ours}, **others)

    def but(self, values: Mapping[str, Any]) -> "StrategyConfig":
        """The same with these settings, ours and others'."""
        ours = {name: value for name, value in values.items() if name in _FIELDS}
        own = {name: value for name, value in values.items() if name not in ours}
        return dataclasses.replace(self, own={**self.own, **own}, **ours)

    def __getitem__(self, name: str) -> Any:
        """The setting of this name, ours or a user's own; None if nothing is given."""
        return self.own[name] if name in self.own else getattr(self, name, None)

    @property
    def kind(self) -> type[Declared]:
        """The strategy's class."""
        return KINDS[self.name]

    @property
    def traits(self) -> Traits:
        """The strategy's declaration."""
        return self.kind.traits

    @property
    def codec(self) -> str | None:
        """How gradients, or differences to a center, are compressed; None if they are not."""
        return None if self.compress == NONE else self.compress

    @property
    def may_stop_compressing(self) -> bool:
        """Whether a trial decides in the run if compression helps."""
        return bool(self.codec and self.traits.setting("always_compresses") and not self.always_compresses)

    @property
    def takes_factors(self) -> bool:
        """Whether gradients may travel as factors (see `samovar.strategies.factors`)."""
        return self.factors not in (None, NONE)

    @property
    def exchanges_weights(self) -> bool:
        """Whether workers train on their own and exchange weights now and then."""
        return self.traits.exchanges_weights

    @property
    def has_owners(self) -> bool:
        """Whether each bucket is updated by one rank alone."""
        return self.overlap == "full"

    @property
    def updates_parts(self) -> bool:
        """Whether each rank updates its own part of every bucket."""
        return self.owner == "parts"

    @property
    def divides_updates(self) -> bool:
        """Whether a rank makes only some of the updates."""
        return self.has_owners or self.updates_parts

    @property
    def needs_center(self) -> bool:
        """Whether workers share a center in one place."""
        return self.traits.has_center

    @property
    def is_async(self) -> bool:
        """Whether each worker, or group of them, goes at its own speed and waits for no other."""
        return self.traits.is_async

    def _keep(self, name: str, value: Value) -> None:
        is_own = name in self.own
        object.__setattr__(self, "own" if is_own else name, {**self.own, name: value} if is_own else value)

    def _refuse(self, name: str, flag: str) -> None:
        owners = [strategy for strategy, kind in KINDS.items() if kind.traits.setting(name)]
        *others, last = owners
        choice = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"{flag} is not a setting of --strategy {self.name}: leave it out, or choose {choice}")


_FIELDS = {field.name for field in dataclasses.fields(StrategyConfig)}


def declared_as(source: str) -> tuple[str, str]:
    """`MODULE:NAME` or `FILE.py:NAME` as every process finds it, in any working folder, and the strategy's name there.

    Imports the module, which runs its code. Raises InputError if there is no such strategy.
    """
    place, kind = object_at(source, "--strategy")
    return place, name_of(kind, source)


def name_of(kind: object, source: str = "") -> str:
    """The name that this class declares. Raises InputError if it is not a strategy."""
    traits = vars(kind).get("traits") if isinstance(kind, type) else None
    known = KINDS.get(traits.name) if isinstance(traits, Traits) else None
    if not isinstance(kind, type) or known is None or place_of(known) != place_of(kind):
        raise InputError(
            f"--strategy {source or kind}: is not a strategy; decorate a class of samovar.strategies by "
            '@samovar.strategy("its-name")'
        )
    return known.traits.name


def in_python(sentence: str) -> str:
    """A sentence about flags as one about arguments: "--sync-period: got 0" becomes "sync_period_steps: got 0"."""
    arguments = {settings[0].flag: settings[0].argument for settings in declared_settings().values()}
    arguments |= {flag: flag.removeprefix("--") for flag in ("--strategy", "--collective", "--buffer")}
    return re.sub(r"--[a-z-]*[a-z]", lambda found: arguments.get(found[0], found[0]), sentence)


def parse_bucket(text: str, words: str = "'model', 'layer'") -> int | None:
    """`model` (one bucket), `layer` (one per parameter), or a number of bytes; a refusal names the `words` allowed."""
    if text == "model":
        return None
    if text == "layer":
        return 1
    if not is_count(text) or int(text) < 1:
        raise InputError(f"--bucket: got {text!r}; give {words} or a number of bytes")
    return int(text)
