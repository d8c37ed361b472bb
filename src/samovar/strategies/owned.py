"""Synchronous SGD whose updates are divided: one rank owns each bucket, or each rank owns a part of every bucket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.group import Group
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


@dataclass(frozen=True, slots=True)
class _Part:
    """This rank's part of a bucket, and how the whole bucket travels: gradients to parts, parts to weights."""

    own: Bucket
    reduce: PlanRunner
    gather: PlanRunner
    histories: tuple[PlanRunner, ...]


class SyncInParts(Strategy):
    """Rank r sums part r of every bucket, updates it, and sends its new weights to all.

        g_r = (1/P) sum_i g_i of part r;  x_r -= solver(g_r)        on rank r

    The same bits as `Sync` with the same order of additions, since every element is summed and updated once. Memory of
    gradients holds sums in the rank's part alone. The solver keeps histories of its parts only. Memory of others' stays
    as it was until `gather_histories`.

    No rank writes weights of a rank that is still in its backward pass: a rank that has a sum knows that all ranks are
    in this exchange. No next gradient overwrites one that is still read: the weights of all parts come first.

    Cost per step and bucket of S bytes: 2(P-1)/P * S bytes sent or read per rank, as any all-reduce, in two waits; 1/P
    of the update. Reference: Rajbhandari et al., ZeRO, 2020, stage 1.
    """

    def __init__(
        self,
        collectives: PlannedCollectives,
        buckets: Sequence[Bucket],
        buffers: Buffers,
        deadline: Callable[[], Deadline],
    ) -> None:
        self._parts = [_part(collectives, bucket, buffers) for bucket in buckets]
        self._gradient_scale = 1.0 / collectives.group.world_size
        self._deadline = deadline

    def reduced(self, _step: int) -> Reduced:
        """This rank's part of each bucket."""
        deadline = self._deadline()
        for part in self._parts:
            part.reduce.run(deadline)
            yield part.own, self._gradient_scale
            part.gather.run(deadline)

    def gather_histories(self) -> None:
        """All parts of the histories on all ranks. Cost: that of an all-gather of each."""
        for part in self._parts:
            for history in part.histories:
                history.run(self._deadline())


def own_part(bucket: Bucket, group: Group) -> Bucket:
    """Elements [r S // P, (r + 1) S // P) of the bucket's S, with the parameters there, whole or not."""
    start, stop = (bucket.start + rank * bucket.size // group.world_size for rank in (group.rank, group.rank + 1))
    entries = tuple(entry for entry in bucket.entries if entry.offset < stop and start < entry.stop)
    return replace(bucket, entries=entries, start=start, stop=stop)


def _part(collectives: PlannedCollectives, bucket: Bucket, buffers: Buffers) -> _Part:
    name, (start, stop) = f"bucket {bucket.index}", (bucket.start, bucket.stop)
    return _Part(
        own_part(bucket, collectives.group),
        collectives.reduce_scatter(f"{name}: gradient", buffers.gradients.part(start, stop)),
        collectives.gather_parts(f"{name}: weights", buffers.weights.part(start, stop)),
        tuple(
            collectives.all_gather_parts(f"{name}: history {index}", history.part(start, stop))
            for index, history in enumerate(buffers.histories)
        ),
    )
