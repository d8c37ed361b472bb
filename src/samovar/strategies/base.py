"""The interface between a worker's step and a strategy, and the declaration of a strategy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from samovar.box.base import Center
from samovar.collectives.engine import Collectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import Factoring
from samovar.strategies.traits import KINDS, Setting, Traits, place_of
from samovar.strategies.trial import TrialCallback
from samovar.transports.base import Array, Region

# update(bucket, gradient_scale): one solver step on the bucket, with gradient_scale * (its gradient).
Update: TypeAlias = Callable[[Bucket, float], None]

# Buckets, and by what their summed gradients are to be multiplied, as the sums are ready.
Reduced: TypeAlias = Iterator[tuple[Bucket, float]]

Exchanged: TypeAlias = Literal["gradients", "weights"]

_NAMES = frozenset(("name", "collective", "automatic_buckets", "own", "source"))  # StrategyConfig's, of no setting


@dataclass(frozen=True, slots=True)
class Buffers:
    """This rank's flat weights, gradients and solver's histories, float32 (N,) each, in memory of collectives.

    `histories` may be left out where every rank updates every bucket. The last `num_exact` gradients are none, but
    counts that come with them: their buckets hold nothing else, and are never compressed. Nobody changes weights that
    are `frozen`.
    """

    weights: Region
    gradients: Region
    histories: tuple[Region, ...] = ()
    num_exact: int = 0
    frozen: tuple[slice, ...] = ()


@dataclass(frozen=True, slots=True)
class CenterSeat:
    """This worker's access to the center, the same for one life of the worker.

    The first worker gives the center its weights, or a snapshot's; the caller has the others wait for that. Of
    `num_workers` in all; None: those of the group. `life` is how often the worker was started again.
    """

    center: Center
    is_first: bool
    num_workers: int | None = None
    life: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one of `num_workers`: its settings, all given, collectives with all others, buckets and buffers.

    Every wait ends by `deadline()`. It has a `seat` if workers share a center. `others` may be None there, if workers
    have no collectives. `callback` gets the decisions of a trial. `factoring` has the buckets that may travel as
    factors.
    """

    chosen: StrategyConfig
    num_workers: int
    others: Collectives | None
    buckets: tuple[Bucket, ...]
    buffers: Buffers
    deadline: Callable[[], Deadline]
    seat: CenterSeat | None = None
    callback: TrialCallback = field(default_factory=TrialCallback)
    factoring: Factoring | None = None

    @property
    def collectives(self) -> Collectives:
        """With all others."""
        assert self.others is not None, self
        return self.others

    @property
    def num_learned(self) -> int:
        """The first elements of the weights are learned; the others are statistics of forward passes, or frozen."""
        return max((bucket.stop for bucket in self.buckets), default=0)

    @property
    def num_moving(self) -> int:
        """The first elements of the weights: all without frozen ones at their end."""
        size = len(self.buffers.weights.array)
        for part in reversed(self.buffers.frozen):
            size = part.start if part.stop == size else size
        return size


class Strategy:
    """The places in a step where a strategy may act; see `samovar.training.step`.

    By default every rank makes every update, every step ends with the same weights on all ranks, and no exchange
    outlives its step. A strategy overrides what differs. It declares itself by `strategy`.
    """

    traits: ClassVar[Traits] = Traits()
    # What ranks tell each other: gradients before the update, or weights after it.
    exchanges: ClassVar[Exchanged] = "gradients"
    # A context in which weights on a device are in the strategy's buffer of the host, and may be changed there.
    on_host: Callable[[], AbstractContextManager[None]] = nullcontext

    @classmethod
    def of(cls, place: Place) -> "Strategy":
        """The strategy with the settings of that place, on its buffers; override it if a place alone is not enough."""
        return cls(place)  # type: ignore[call-arg]

    @classmethod
    def check(cls, chosen: StrategyConfig, /) -> None:
        """Raises InputError if settings do not fit together; each one is in its range already."""

    @classmethod
    def computes_near(cls, _chosen: StrategyConfig, /) -> bool:
        """Whether its arrays may be on a device (`samovar.core.near`), and sums are all that it asks collectives for.

        Otherwise models on a device are copied to the host's memory at an exchange. Never, unless a strategy says so.
        """
        return False

    @classmethod
    def settled(cls, chosen: StrategyConfig, _world_size: int, /) -> StrategyConfig:
        """`chosen`, with all defaults, for `world_size` workers. Raises InputError if it does not fit their number."""
        return chosen

    @classmethod
    def warnings(cls, _chosen: StrategyConfig, _world_size: int, /) -> tuple[str, ...]:
        """Warnings about settled settings, a sentence each."""
        return ()

    @classmethod
    def regrouped(cls, chosen: StrategyConfig, /) -> StrategyConfig:
        """`chosen` for workers that come and go. Raises InputError if this strategy or a setting does not allow it."""
        if not cls.traits.regroups:
            names = [name for name, kind in KINDS.items() if kind.traits.regroups]
            raise InputError(
                f"{chosen.name}: with --elastic, which lets workers come and go, choose one of: {', '.join(names)}"
            )
        return chosen

    @property
    def is_compressed(self) -> bool | None:
        """Whether ranks compress their messages now; None if compression was not asked for."""
        return None

    def begin_step(self, step: int, /) -> None:
        """Before the first forward pass of a step."""

    def before_forward(self, bucket: Bucket) -> None:
        """Just before the bucket's first layer computes: may wait for fresh weights."""

    def gradient_final(self, bucket: Bucket) -> None:
        """The bucket's gradient is complete: may post it, never waits."""

    def reduced(self, step: int, /) -> Reduced:
        """After the last backward pass: the buckets that this rank updates, each as its summed gradient is ready.

        A bucket that the loop updates before it asks for the next one may travel behind that one.
        """
        raise NotImplementedError

    def updated(self, step: int, /) -> None:
        """After all updates of the step: exchange weights, if it is due."""

    def finish_step(self, step: int, /, update: Update) -> None:
        """Run both halves, with `update` between them."""
        for bucket, gradient_scale in self.reduced(step):
            update(bucket, gradient_scale)
        self.end_step(step)

    def end_step(self, step: int, /) -> None:
        """Run `updated`, with the weights `on_host` if it uses them."""
        with self.on_host() if self.uses_weights_after(step) else nullcontext():
            self.updated(step)

    def exchanges_at(self, _step: int, /) -> bool:
        """Whether the step waits for other ranks: the same on all ranks."""
        return True

    def uses_weights_after(self, _step: int, /) -> bool:
        """Whether `updated` of this step, or `begin_step` of the next, reads or changes the weights.

        Where it does not, weights on a device stay there. Always, unless a strategy knows better.
        """
        return True

    def drain(self) -> None:
        """Complete all exchanges under way, and find the weights that `center` gives. Training keeps its bits.

        Waits for all ranks, which must all call it after the same step. At a center it does not wait for others,
        unless the strategy says so.
        """

    def forget_drained(self) -> None:
        """The weights may have been changed since `drain`, by the program."""

    def gather_histories(self) -> None:
        """Complete the solver's histories on every rank, if a rank updates only some buckets.

        Waits for all ranks, which must all call it after the same step.
        """

    def center(self) -> Array | None:
        """The weights to evaluate and save, float32 (N,); None for the worker's own.

        After `drain` they are those of this moment. Read them only, and before the next step.
        """
        return None

    def state_dict(self) -> State:
        """This rank's state that a resumed run needs for the same bits, besides weights and solver state."""
        return {}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Take back what `state_dict` gave, after weights were loaded; an empty state starts from those weights."""


Kind = TypeVar("Kind", bound=type[Strategy])


def strategy(name: str, **traits: Any) -> Callable[[Kind], Kind]:
    """Declare a class of `Strategy` as the strategy of this name, with these `Traits`; others are its base's.

    A recipe is measured for one strategy, so it is never its base's. So is `regroups`, a promise about its state, and
    that it exchanges where the period ends. So is `leaves_frozen_out`, a promise about what it does with sums.

    A user's own strategy is declared the same way as ours: `@samovar.strategy("its-name", settings=(...))`.
    """

    def declared(kind: Kind) -> Kind:
        own: dict[str, Any] = {"recipe": None, "regroups": False, "leaves_frozen_out": False}
        kind.traits = replace(kind.traits, name=name, **(own | traits))
        _require_good(kind.traits, kind)
        KINDS[name] = kind
        return kind

    return declared


def _require_good(traits: Traits, kind: type[Strategy]) -> None:
    """Names end up in files, flags and folders."""
    known = KINDS.get(traits.name)
    if known is not None and place_of(known) != place_of(kind):
        raise InputError(f"strategy {traits.name!r}: there is one of this name, in {known.__module__}; give another")
    if not traits.name.replace("-", "").isalnum() or not traits.name.islower():
        raise InputError(f"strategy {traits.name!r}: a name is made of small letters, digits and hyphens")
    for setting in traits.settings:
        if not isinstance(setting, Setting) or not setting.name.isidentifier() or setting.name in _NAMES:
            raise InputError(
                f"strategy {traits.name!r}: {setting!r} is not a setting; give samovar.Setting(name, type, help)"
            )
    if kind.exchanges == "weights" and not traits.exchanges_weights:
        raise InputError(f"strategy {traits.name!r}: exchanges weights, so it needs the setting SYNC_PERIOD; add that")


def kind_of(name: str) -> type[Strategy]:
    """The class of the strategy of this name."""
    kind = KINDS[name]
    assert issubclass(kind, Strategy), kind
    return kind
