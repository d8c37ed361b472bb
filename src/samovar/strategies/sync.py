"""Synchronous SGD: every worker applies the mean of all gradients."""

from collections.abc import Callable, Sequence

from samovar.collectives.execute import open_channel
from samovar.collectives.plans import all_reduce
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.strategies.base import Update
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region, Transport


class Sync:
    """g = (1/P) sum_i g_i, added in the plan's fixed order; x -= solver(g) on every rank.

    Weights stay bitwise equal on all ranks: each sum is made once and copied. Every rank's weights are the
    ones evaluated and saved.

    Cost per step and bucket of S bytes: that of the plan (`samovar.collectives`), ring 2(P-1)/P * S bytes
    sent per rank. Nobody waits for anyone but its plan neighbours; there is no barrier.
    """

    def __init__(
        self,
        config: StrategyConfig,
        transport: Transport,
        buckets: Sequence[Bucket],
        gradients: Region,
        deadline: Callable[[], Deadline],
    ) -> None:
        group = transport.group
        plan = all_reduce(config.collective, host_size=group.world_size)(group.rank, group.world_size)
        self._channels = [
            (
                bucket,
                open_channel(f"bucket {bucket.index}", plan, transport, gradients.part(bucket.start, bucket.stop)),
            )
            for bucket in buckets
        ]
        self._gradient_scale = 1.0 / transport.group.world_size
        self._deadline = deadline
        self._final: set[int] = set()

    def begin_step(self, step: int) -> None:
        """Nothing: the weights are already equal everywhere."""

    def before_forward(self, bucket: Bucket) -> None:
        """Nothing: the update ran at the end of the last step."""

    def gradient_final(self, bucket: Bucket) -> None:
        """Start the bucket's exchange, unless it is the only one: then there is nothing left to hide it behind."""
        self._final.add(bucket.index)
        if len(self._channels) > 1:
            self._channels[bucket.index][1].start()

    def finish_step(self, step: int, update: Update) -> None:
        assert len(self._final) == len(self._channels), f"step {step}: only buckets {self._final} are final"
        self._final.clear()
        deadline = self._deadline()
        for bucket, channel in self._channels:
            if len(self._channels) > 1:
                channel.finish(deadline)
            else:
                channel.run(deadline)
            update(bucket, self._gradient_scale)
