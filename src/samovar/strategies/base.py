"""What the worker's step asks of a strategy."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.transports.base import Array, Region

# update(bucket, gradient_scale): one solver step on the bucket, with gradient_scale * (its gradient).
Update: TypeAlias = Callable[[Bucket, float], None]

# Buckets, and by what their summed gradients are to be multiplied, as the sums are ready.
Reduced: TypeAlias = Iterator[tuple[Bucket, float]]

Exchanged: TypeAlias = Literal["gradients", "weights"]


@dataclass(frozen=True, slots=True)
class Buffers:
    """This rank's flat weights, gradients and solver's histories, float32 (N,) each, in memory of collectives.

    `histories` may be left out where every rank updates every bucket. The last `num_exact` gradients are none, but
    counts that come with them: their buckets hold nothing else, and are never compressed.
    """

    weights: Region
    gradients: Region
    histories: tuple[Region, ...] = ()
    num_exact: int = 0


class Strategy(Protocol):
    """The places in a step where a strategy may act; see `samovar.training.step`."""

    @property
    def exchanges(self) -> Exchanged:
        """What ranks tell each other: gradients before the update, or weights after it."""
        ...

    def begin_step(self, step: int, /) -> None:
        """Before the first forward pass of a step."""
        ...

    def before_forward(self, bucket: Bucket) -> None:
        """Just before the bucket's first layer computes: may wait for fresh weights."""
        ...

    def gradient_final(self, bucket: Bucket) -> None:
        """The bucket's gradient is complete: may post it, never waits."""
        ...

    def reduced(self, step: int, /) -> Reduced:
        """After the last backward pass: the buckets that this rank updates, each as its summed gradient is ready.

        A bucket that is updated before the next one is asked for may travel on behind it.
        """
        ...

    def updated(self, step: int, /) -> None:
        """After all updates of the step: exchange weights, if it is due."""
        ...

    def finish_step(self, step: int, /, update: Update) -> None:
        """Both halves with `update` between them (see `TwoHalves`)."""
        ...

    def exchanges_at(self, step: int, /) -> bool:
        """Whether the step waits for other ranks: the same on all ranks."""
        ...

    def drain(self) -> None:
        """Complete what is under way, and find what `center` gives; training goes on with the same bits.

        Waits for all ranks, which must all call it after the same step; where workers share a center for nobody,
        unless the strategy says so.
        """
        ...

    def gather_histories(self) -> None:
        """Complete the solver's histories on every rank, where a rank updates only some buckets.

        Waits for all ranks, which must all call it after the same step.
        """
        ...

    def center(self) -> Array | None:
        """The weights that are evaluated and saved, float32 (N,); None where the worker's own are.

        Those of this moment after `drain`, not to be written to, and valid until the next step.
        """
        ...

    def state_dict(self) -> State:
        """What this rank must have to go on with the same bits, besides weights and solver state."""
        ...

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Take back what `state_dict` gave, after weights were loaded; an empty state starts from those weights."""
        ...


class TwoHalves:
    """A step that is made of `reduced` and `updated`, for strategies to begin from."""

    def reduced(self, step: int) -> Reduced:
        raise NotImplementedError

    def updated(self, step: int) -> None:
        """Nothing: weights are not exchanged."""

    def finish_step(self, step: int, update: Update) -> None:
        for bucket, gradient_scale in self.reduced(step):
            update(bucket, gradient_scale)
        self.updated(step)
