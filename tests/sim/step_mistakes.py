"""Planted mistakes in the exchange of whole steps: each replaces one part of a sound one, and must be caught."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.execute import Channel
from samovar.collectives.plan import Notify, Plan, PlanFunction, Wait, rooted
from samovar.collectives.tree import tree_broadcast, tree_reduce
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.layout import Bucket
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.owned import OwnedSync, SyncInParts, spread_owners
from samovar.strategies.sync import Sync, sum_channels
from samovar.transports.base import Region
from samovar.transports.sim.races import Race
from samovar.transports.sim.scheduler import Deadlock
from tests.sim.mistakes import OldEpoch
from tests.sim.steps import LAYOUT, WrongWeights


def no_update(_bucket: Bucket, _scale: float) -> None:
    """The update was made, or will be."""


class NotAwaited(OwnedSync):
    """Forward begins with whatever weights are there."""

    def before_forward(self, bucket):
        """Too early."""


class NeighbourAwaited(OwnedSync):
    """Forward waits for the weights of the bucket beside its own."""

    def before_forward(self, bucket):
        self._await_weights(self._shares[(bucket.index + 1) % len(self._shares)])


class UpdatedBeforeSummed(OwnedSync):
    """The owner takes its own gradient for the sum."""

    def finish_step(self, step, update):
        for share in self._shares:
            if share.is_own:
                update(share.bucket, self._gradient_scale)
        super().finish_step(step, no_update)


class SentBeforeUpdated(OwnedSync):
    """Weights leave while the owner still changes them."""

    def finish_step(self, step, update):
        super().finish_step(step, no_update)
        for share in self._shares:
            if share.is_own:
                update(share.bucket, self._gradient_scale)


class ReadyBeforeBackwardIsOver(OwnedSync):
    """Tells that weights may be overwritten when the gradient is final, while backward still reads them."""

    def gradient_final(self, bucket):
        super().gradient_final(bucket)
        share = self._shares[bucket.index]
        if not share.is_own:
            share.broadcast.start()

    def finish_step(self, _step, update):
        own = [share for share in self._shares if share.is_own]
        others = [share for share in self._shares if not share.is_own]
        for share in own:
            share.reduce.finish(self._deadline())
            update(share.bucket, self._gradient_scale)
            share.broadcast.start()
        for share in others:
            share.reduce.finish(self._deadline())
        for share in self._shares:
            share.is_under_way = True
        self._final.clear()
        self._num_started = 0


class SumsBegunEarly(OwnedSync):
    """The first bucket's sum begins before its gradient is there."""

    def begin_step(self, _step):
        self._shares[0].reduce.start()
        self._num_started = 1


class NeverDrained(OwnedSync):
    """The end of the run takes the weights as they are."""

    def drain(self):
        """Too early."""


class SumNotAwaited(Sync):
    """Updates with what is there of the sums that run in the background."""

    def finish_step(self, step, update):
        for bucket, _ in self._channels:
            update(bucket, self._gradient_scale)
        super().finish_step(step, no_update)


class OwnersDiffer(OwnedSync):
    """Every rank takes itself for the owner of the first bucket."""

    def __init__(self, collectives, buckets, buffers, owners, deadline):
        super().__init__(collectives, buckets, buffers, [collectives.group.rank, *owners[1:]], deadline)


class OwnerOfNothing(OwnedSync):
    """The last bucket's owner forgets its update."""

    def finish_step(self, step, update):
        super().finish_step(
            step, lambda bucket, scale: update(bucket, scale) if bucket.index < len(self._shares) - 1 else None
        )


class PartNotSummed(SyncInParts):
    """A rank updates its part by its own gradient; the sum comes afterwards."""

    def finish_step(self, _step, update):
        for part in self._parts:
            update(part.own, self._gradient_scale)
            part.reduce.run(self._deadline())
            part.gather.run(self._deadline())


class PartsSentBeforeSums(SyncInParts):
    """Weights go to ranks that may still be in their backward pass."""

    def finish_step(self, _step, update):
        for part in self._parts:
            part.gather.run(self._deadline())
            part.reduce.run(self._deadline())
            update(part.own, self._gradient_scale)


class PartsNotAwaited(SyncInParts):
    """The next step begins with whatever parts are there; they come during its exchange."""

    is_behind = False

    def finish_step(self, _step, update):
        for part in self._parts:
            if self.is_behind:
                part.gather.run(self._deadline())
            part.reduce.run(self._deadline())
            update(part.own, self._gradient_scale)
        self.is_behind = True


class WholeBucketUpdated(SyncInParts):
    """Each rank updates the whole bucket, of which it has the sum of one part alone."""

    def finish_step(self, step, update):
        by_index = {bucket.index: bucket for bucket in LAYOUT.buckets(1)}
        super().finish_step(step, lambda part, scale: update(by_index[part.index], scale))


class WithPlans(PlannedCollectives):
    """Other plans or another executor for sums and broadcasts."""

    reduce: PlanFunction = staticmethod(tree_reduce)
    broadcast_plan: PlanFunction = staticmethod(tree_broadcast)
    channel = Channel

    def reduce_to(self, name, buffer, root):
        return self._channel(name, self.reduce, buffer, root)

    def broadcast_from(self, name, buffer, root):
        return self._channel(name, self.broadcast_plan, buffer, root)

    def _channel(self, name: str, function: PlanFunction, buffer: Region, root: int):
        plan = rooted(function, root, self.group.rank, self.group.world_size)
        return self.channel(name, plan, self.transport, buffer)


class WithoutReadiness(WithPlans):
    """Weights are put without asking."""

    @staticmethod
    def broadcast_plan(rank: int, world_size: int) -> Plan:
        plan = tree_broadcast(rank, world_size)
        down = plan.num_slots - 1
        kept = [
            one
            for one in plan.operations
            if not isinstance(one, Notify) and not (isinstance(one, Wait) and one.slot != down)
        ]
        return replace(plan, operations=tuple(kept))


class ChildForgotten(WithPlans):
    """A parent adds its children's gradients without waiting for the first of them."""

    @staticmethod
    def reduce(rank: int, world_size: int) -> Plan:
        plan = tree_reduce(rank, world_size)
        is_parent = bool(plan.operations) and isinstance(plan.operations[0], Wait)
        return replace(plan, operations=plan.operations[is_parent:])


class LastStepsNotifications(WithPlans):
    """Notifications do not carry the number of the step."""

    channel = OldEpoch


@dataclass(frozen=True)
class StepMistake:
    """`strategy` or `collectives` is what is wrong; `caught_by` is all that its seeds may end with."""

    caught_by: tuple[type[Exception], ...]
    strategy: type[OwnedSync] | type[Sync] | type[SyncInParts] = OwnedSync
    collectives: type[WithPlans] | None = None

    def build(
        self,
        _config: StrategyConfig,
        collectives: PlannedCollectives,
        buckets: Sequence[Bucket],
        buffers: Buffers,
        deadline: Callable[[], Deadline],
    ) -> Strategy:
        if issubclass(self.strategy, Sync):
            channels = sum_channels(collectives, buckets, buffers.gradients)
            return self.strategy(channels, collectives.group.world_size, True, deadline)
        if issubclass(self.strategy, SyncInParts):
            by_ring = PlannedCollectives(collectives.transport, lambda _num_bytes: "ring")
            return self.strategy(by_ring, buckets, buffers, deadline)
        if self.collectives is not None:
            collectives = self.collectives(collectives.transport, lambda _num_bytes: "tree")
        owners = spread_owners(buckets, collectives.group.world_size)
        return self.strategy(collectives, buckets, buffers, owners, deadline)


_READ_TOO_EARLY = (WrongWeights, Race)
STEP_MISTAKES = {
    "weights not awaited": StepMistake(_READ_TOO_EARLY, NotAwaited),
    "another bucket awaited": StepMistake(_READ_TOO_EARLY, NeighbourAwaited),
    "updated before it is summed": StepMistake(_READ_TOO_EARLY, UpdatedBeforeSummed),
    "sent before it is updated": StepMistake(_READ_TOO_EARLY, SentBeforeUpdated),
    "ready before backward is over": StepMistake(_READ_TOO_EARLY, ReadyBeforeBackwardIsOver),
    "sum begun before the gradient is final": StepMistake((WrongWeights, Race, Deadlock), SumsBegunEarly),
    "end not awaited": StepMistake(_READ_TOO_EARLY, NeverDrained),
    "sum not awaited": StepMistake(_READ_TOO_EARLY, SumNotAwaited),
    "part not summed": StepMistake(_READ_TOO_EARLY, PartNotSummed),
    "parts sent before sums": StepMistake(_READ_TOO_EARLY, PartsSentBeforeSums),
    "parts not awaited": StepMistake(_READ_TOO_EARLY, PartsNotAwaited),
    "whole bucket updated": StepMistake(_READ_TOO_EARLY, WholeBucketUpdated),
    "owners differ": StepMistake((WrongWeights, Race, Deadlock, SamovarError), OwnersDiffer),
    "update forgotten": StepMistake((WrongWeights,), OwnerOfNothing),
    "put without asking": StepMistake(_READ_TOO_EARLY, collectives=WithoutReadiness),
    "child not awaited": StepMistake(_READ_TOO_EARLY, collectives=ChildForgotten),
    "old notification taken for a new one": StepMistake((WrongWeights, Race), collectives=LastStepsNotifications),
}
