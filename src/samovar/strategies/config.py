"""The settings of a strategy, as flags and files spell them."""

import math
import re
from dataclasses import dataclass

from samovar.collectives.encoded import CODECS
from samovar.collectives.plans import ALL_REDUCE_NAMES
from samovar.core.errors import InputError
from samovar.strategies.catalog import TRAITS
from samovar.strategies.traits import ALWAYS, AUTO, NONE, Traits

COLLECTIVES = (*ALL_REDUCE_NAMES, AUTO)
VARIANTS = ("reduce", "broadcast")
# Who updates a bucket, as --overlap is.
OWNERS = {"full": ("spread", "root"), "none": ("parts", "all")}
COMPRESSIONS = (NONE, *CODECS)
# What these leave out comes with the next exchange or two.
_PROMPT_CODECS = ("bf16", "int8")
FACTORS = (NONE, AUTO, ALWAYS)

_FLAGS = {
    "bucket_size_bytes": "--bucket",
    "overlap": "--overlap",
    "owner": "--owner",
    "sync_period_steps": "--sync-period",
    "moving_rate": "--moving-rate",
    "variant": "--variant",
    "outer_rate": "--outer-rate",
    "outer_momentum": "--outer-momentum",
    "max_staleness_steps": "--max-staleness",
    "max_refused_pushes": "--max-refused-pushes",
    "group_size": "--group-size",
    "read_first": "--read-first",
    "center_momentum": "--center-momentum",
    "compress": "--compress",
    "factors": "factors",
}
_PYTHON_NAMES = {
    **{flag: name for name, flag in _FLAGS.items()},
    "--strategy": "strategy",
    "--collective": "collective",
    "--bucket": "bucket_size",
    "--compress-always": "always_compresses",
}
STRATEGIES = tuple(TRAITS)


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """Which strategy, and its settings; None is the strategy's default (see `samovar.strategies.defaults`).

    `bucket_size_bytes` None exchanges the whole model as one bucket, or with `automatic_buckets` in a cut that others
    find (see `samovar.strategies.bucketing`); `collective` AUTO is for others to resolve.
    """

    name: str = "sync"
    collective: str = AUTO
    bucket_size_bytes: int | None = None
    sync_period_steps: int | None = None
    moving_rate: float | None = None
    overlap: str | None = None
    variant: str | None = None
    outer_rate: float | None = None
    outer_momentum: float | None = None
    owner: str | None = None
    automatic_buckets: bool = False
    max_staleness_steps: int | None = None
    max_refused_pushes: int | None = None
    group_size: int | None = None
    read_first: bool | None = None
    center_momentum: float | None = None
    compress: str | None = None
    always_compresses: bool = False
    factors: str | None = None

    def __post_init__(self) -> None:
        _require_choice("--strategy", self.name, STRATEGIES)
        _require_choice("--collective", self.collective, COLLECTIVES)
        self._refuse_what_belongs_to_others()
        if self.bucket_size_bytes is not None and self.bucket_size_bytes < 1:
            raise InputError(f"--bucket: got {self.bucket_size_bytes} bytes; give at least 1, or 'model'")
        assert not self.automatic_buckets or (not self.exchanges_weights and self.bucket_size_bytes is None), self
        if self.sync_period_steps is not None and self.sync_period_steps < 1:
            raise InputError(f"--sync-period: got {self.sync_period_steps} steps; give at least 1")
        _require_below("--moving-rate", self.moving_rate, 1.0)
        _require_below("--outer-rate", self.outer_rate, math.inf)
        _require_momentum("--outer-momentum", self.outer_momentum)
        _require_momentum("--center-momentum", self.center_momentum)
        if self.max_staleness_steps is not None and self.max_staleness_steps < 0:
            raise InputError(f"--max-staleness: got {self.max_staleness_steps} updates; give at least 0")
        if self.max_refused_pushes is not None and self.max_refused_pushes < 1:
            raise InputError(f"--max-refused-pushes: got {self.max_refused_pushes}; give at least 1")
        if self.group_size is not None and self.group_size < 1:
            raise InputError(f"--group-size: got {self.group_size} workers; give at least 1")
        self._check_overlap()
        self._check_compression()
        self._check_factors()

    @property
    def traits(self) -> Traits:
        """What the strategy declares of itself."""
        return TRAITS[self.name]

    @property
    def codec(self) -> str | None:
        """How gradients, or differences to a center, are compressed; None where they are not."""
        return None if self.compress == NONE else self.compress

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
        """Whether workers share a center that lies in one place."""
        return self.traits.has_center

    @property
    def is_async(self) -> bool:
        """Whether each worker, or group of them, goes at its own speed and waits for no other."""
        return self.traits.is_async

    def _refuse_what_belongs_to_others(self) -> None:
        for name, flag in _FLAGS.items():
            if getattr(self, name) is not None and name not in self.traits.settings:
                owners = [strategy for strategy, traits in TRAITS.items() if name in traits.settings]
                raise InputError(
                    f"{flag} is no setting of --strategy {self.name}: leave it out, or choose {' or '.join(owners)}"
                )

    def _check_compression(self) -> None:
        if self.compress is not None:
            _require_choice("--compress", self.compress, COMPRESSIONS)
        if self.always_compresses and self.codec is None:
            raise InputError("--compress-always: there is nothing to compress; give --compress too, or leave it out")
        if self.codec is not None and self.has_owners:
            raise InputError(
                f"--compress {self.compress}: with --overlap full owners send weights, which are never compressed; "
                "choose --overlap backward or none, or leave --compress out"
            )
        if self.codec is not None and self.exchanges_weights:
            self._check_compressed_differences()

    def _check_factors(self) -> None:
        if self.factors is not None:
            _require_choice("factors", self.factors, FACTORS)
        if self.takes_factors and self.divides_updates:
            raise InputError(
                f"factors {self.factors}: with --overlap full or --owner parts a gradient goes to one rank alone, and "
                "factors to all; choose --overlap backward or --owner all, or leave factors out"
            )

    def _check_compressed_differences(self) -> None:
        if self.variant == "broadcast":
            raise InputError(
                f"--compress {self.compress}: --variant broadcast sends weights, which are never compressed; "
                "leave one of them out"
            )
        if self.codec not in _PROMPT_CODECS:
            raise InputError(
                f"--compress {self.compress}: what it leaves out of a difference would reach the center many exchanges "
                f"late, and take it past the workers; with {self.name} choose {' or '.join(_PROMPT_CODECS)}"
            )

    def _check_owner(self, owner: str) -> None:
        _require_choice("--owner", owner, sum(OWNERS.values(), ()))
        overlap = self.overlap or ("none" if self.bucket_size_bytes is None else "backward")
        if owner not in OWNERS.get(overlap, ()):
            fitting = next(overlap for overlap, owners in OWNERS.items() if owner in owners)
            raise InputError(f"--owner {owner}: is for --overlap {fitting}; add that, or leave --owner out")
        if self.updates_parts and self.codec is not None:
            raise InputError(
                f"--owner parts: ranks send weights then, which are never compressed; leave --compress {self.codec} "
                "out, or choose --owner all"
            )

    def _check_overlap(self) -> None:
        if self.overlap is not None:
            _require_choice(f"--overlap of {self.name}", self.overlap, self.traits.overlaps)
        if self.variant is not None:
            _require_choice("--variant", self.variant, VARIANTS)
        if self.overlap in ("backward", "full") and self.bucket_size_bytes is None and not self.automatic_buckets:
            raise InputError(
                f"--overlap {self.overlap}: with one bucket nothing is final before backward ends; "
                "give --bucket layer or a number of bytes too"
            )
        if self.owner is not None:
            self._check_owner(self.owner)
        if self.variant == "broadcast" and self.overlap not in (None, "none"):
            raise InputError(
                f"--overlap {self.overlap}: --variant broadcast needs the center before it can go on; "
                "leave --overlap out, or choose --variant reduce"
            )


def in_python(sentence: str) -> str:
    """A sentence about flags as one about arguments: "--sync-period: got 0" becomes "sync_period_steps: got 0"."""
    return re.sub(r"--[a-z-]*[a-z]", lambda found: _PYTHON_NAMES.get(found[0], found[0]), sentence)


def parse_bucket(text: str, words: str = "'model', 'layer'") -> int | None:
    """`model` (one bucket), `layer` (one per parameter), or a number of bytes; a refusal names the `words` allowed."""
    if text == "model":
        return None
    if text == "layer":
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--bucket: got {text!r}; give {words} or a number of bytes")
    return int(text)


def _require_choice(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{flag}: got {value!r}; choose one of: {', '.join(allowed)}")


def _require_momentum(flag: str, value: float | None) -> None:
    if value is not None and not 0 <= value < 1:
        raise InputError(f"{flag}: got {value}; give at least 0 and less than 1")


def _require_below(flag: str, value: float | None, limit: float) -> None:
    if value is not None and not 0 < value < limit:
        less = "" if math.isinf(limit) else f" and less than {limit:g}"
        raise InputError(f"{flag}: got {value:g}; give more than 0{less}")
