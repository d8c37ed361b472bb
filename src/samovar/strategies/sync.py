"""Synchronous SGD: every worker applies the mean of all gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from samovar.collectives.engine import Collectives
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Exchanged, Reduced, TwoHalves
from samovar.strategies.traits import Traits
from samovar.transports.base import Array, Region


class EqualWeights(TwoHalves):
    """Every step ends with the same weights on all ranks, which are the ones evaluated and saved.

    No exchange outlives its step, and every rank makes every update, unless a strategy says otherwise.
    """

    @property
    def exchanges(self) -> Exchanged:
        return "gradients"

    def begin_step(self, step: int) -> None:
        """Nothing: the weights are already equal everywhere."""

    def before_forward(self, bucket: Bucket) -> None:
        """Nothing: the update ran at the end of the last step."""

    def gradient_final(self, bucket: Bucket) -> None:
        """Nothing: gradients are exchanged at the end of the step."""

    def exchanges_at(self, _step: int) -> bool:
        return True

    def drain(self) -> None:
        """Nothing: no exchange outlives its step."""

    def gather_histories(self) -> None:
        """Nothing: every rank makes every update."""

    def center(self) -> Array | None:
        return None

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Nothing to take back."""


Channels: TypeAlias = Sequence[tuple[Bucket, PlanRunner]]


def sum_channels(
    collectives: Collectives,
    buckets: Sequence[Bucket],
    gradients: Region,
    factored: Mapping[int, PlanRunner] | None = None,
) -> Channels:
    """An all-reduce for each bucket, but for those that are in `factored`, by their indices."""
    made = factored or {}
    return [
        (
            bucket,
            made.get(bucket.index)
            or collectives.all_reduce(f"bucket {bucket.index}", gradients.part(bucket.start, bucket.stop)),
        )
        for bucket in buckets
    ]


class Sync(EqualWeights):
    """g = (1/P) sum_i g_i, added in the plan's fixed order; x -= solver(g) on every rank.

    Weights stay bitwise equal on all ranks: each sum is made once and copied. Every rank's weights are the
    ones evaluated and saved.

    Cost per step and bucket of S bytes: that of the plan (`samovar.collectives`), ring 2(P-1)/P * S bytes
    sent per rank. Nobody waits for anyone but its plan neighbours; there is no barrier.
    """

    traits = Traits(
        "sync", ("bucket_size_bytes", "overlap", "owner", "compress", "factors"), overlaps=("none", "backward", "full")
    )

    def __init__(
        self, channels: Channels, world_size: int, overlaps_backward: bool, deadline: Callable[[], Deadline]
    ) -> None:
        self._channels = channels
        # One bucket is final when backward ends: nothing is left to hide its exchange behind.
        self._in_background = overlaps_backward and len(channels) > 1
        self._gradient_scale = 1.0 / world_size
        self._deadline = deadline
        self._final: set[int] = set()
        self._num_started = 0

    def gradient_final(self, bucket: Bucket) -> None:
        """Start exchanges in the order of buckets, behind what is left of the backward pass."""
        self._final.add(bucket.index)
        while self._in_background and self._num_started in self._final:
            self._channels[self._num_started][1].start()
            self._num_started += 1

    def reduced(self, step: int) -> Reduced:
        assert len(self._final) == len(self._channels), f"step {step}: only buckets {self._final} are final"
        self._final.clear()
        self._num_started = 0
        deadline = self._deadline()
        for bucket, channel in self._channels:
            if self._in_background:
                channel.finish(deadline)
            else:
                channel.run(deadline)
            yield bucket, self._gradient_scale
