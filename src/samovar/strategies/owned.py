"""Synchronous SGD with owners: each bucket is summed, updated and sent out by one rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.strategies.base import Buffers, Reduced, Strategy


@dataclass(slots=True)
class _Share:
    """A bucket, and how it travels: gradients to the owner, weights and histories from there."""

    bucket: Bucket
    is_own: bool
    reduce: PlanRunner
    broadcast: PlanRunner
    histories: tuple[PlanRunner, ...]
    is_under_way: bool = False


class OwnedSync(Strategy):
    """The bucket's owner sums, in the tree's fixed order, and updates; its new weights go to all.

        g = (1/P) sum_i g_i;  x -= solver(g)        on the owner

    A bucket's sum begins behind the backward pass, and its new weights travel behind the next work. A rank waits for a
    layer's weights just before that layer's next forward pass, and for nothing else. There is no barrier. A rank's
    weights are overwritten only after it has said that its backward pass is over. Notifications carry the number of
    the step. Weights are bitwise equal on all ranks when they are awaited.

    With several owners, weights that the next forward pass needs first leave first, on all ranks. Simulated on links of
    1 and 10 Gbit/s, a step takes 0.97 times as long as in the order of gradients. That is the median over nets,
    bucket sizes and 2 to 8 ranks (0.77 to 1.02).

    The solver keeps histories of own buckets only: memory of others' stays zero until `gather_histories`.

    Cost per step and bucket of S bytes: 2(P-1) S bytes in all, 2 ceil(log2 P) + 1 steps, one update instead of P.
    Reference: Kuehn, Keuper, Pfreundt, CaffeGPI, 2017 (arXiv 1706.00095), whose one owner is rank 0.
    """

    def __init__(
        self,
        collectives: PlannedCollectives,
        buckets: Sequence[Bucket],
        buffers: Buffers,
        owners: Sequence[int],
        deadline: Callable[[], Deadline],
    ) -> None:
        self._shares = [
            _share(collectives, bucket, buffers, owner) for bucket, owner in zip(buckets, owners, strict=True)
        ]
        # One owner's order is CaffeGPI's: it sends while gradients still come, which is what its link waits for.
        self._finishing = self._shares[:: 1 if len(set(owners)) == 1 else -1]
        self._gradient_scale = 1.0 / collectives.group.world_size
        self._deadline = deadline
        self._final: set[int] = set()
        self._num_started = 0

    def before_forward(self, bucket: Bucket) -> None:
        """Wait for the bucket's weights of the last step."""
        self._await_weights(self._shares[bucket.index])

    def gradient_final(self, bucket: Bucket) -> None:
        """Start sums in the order of buckets, behind what is left of the backward pass."""
        self._final.add(bucket.index)
        while self._num_started in self._final:
            self._shares[self._num_started].reduce.start()
            self._num_started += 1

    def reduced(self, step: int) -> Reduced:
        """The buckets that this rank owns."""
        assert len(self._final) == len(self._shares), f"step {step}: only buckets {self._final} are final"
        self._final.clear()
        self._num_started = 0
        for share in self._finishing:
            # A layer that this pass did not use has its weights of the last step still to come.
            self._await_weights(share)
            share.reduce.finish(self._deadline())
            if share.is_own:
                yield share.bucket, self._gradient_scale
            share.broadcast.start()
            share.is_under_way = True

    def drain(self) -> None:
        """Wait for all weights."""
        for share in reversed(self._shares):
            self._await_weights(share)

    def gather_histories(self) -> None:
        """Each owner's histories on all ranks. Cost: those of a broadcast of each."""
        for share in self._shares:
            for history in share.histories:
                history.run(self._deadline())

    def _await_weights(self, share: _Share) -> None:
        if share.is_under_way:
            share.is_under_way = False
            share.broadcast.finish(self._deadline())


def spread_owners(buckets: Sequence[Bucket], world_size: int) -> list[int]:
    """An owner for each bucket: the largest first, each to the rank that has least so far."""
    owners, loads = [0] * len(buckets), [0] * world_size
    for bucket in sorted(buckets, key=lambda bucket: (-bucket.size, bucket.index)):
        owner = loads.index(min(loads))
        owners[bucket.index] = owner
        loads[owner] += bucket.size
    return owners


def _share(collectives: PlannedCollectives, bucket: Bucket, buffers: Buffers, owner: int) -> _Share:
    name, (start, stop) = f"bucket {bucket.index}", (bucket.start, bucket.stop)
    return _Share(
        bucket,
        owner == collectives.group.rank,
        collectives.reduce_to(f"{name}: gradient", buffers.gradients.part(start, stop), owner),
        collectives.broadcast_from(f"{name}: weights", buffers.weights.part(start, stop), owner),
        tuple(
            collectives.broadcast_from(f"{name}: history {index}", history.part(start, stop), owner)
            for index, history in enumerate(buffers.histories)
        ),
    )
