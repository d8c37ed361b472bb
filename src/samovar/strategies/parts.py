"""Synchronous SGD whose update is divided: each rank sums, updates and sends its own part of every bucket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.layout import Bucket
from samovar.strategies.base import Buffers, Reduced, Strategy


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
