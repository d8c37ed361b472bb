"""Planted mistakes: each replaces one part of a sound case, and must be caught."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from samovar.collectives.execute import Channel
from samovar.collectives.plan import Combine, Notify, Operation, Plan, PlanFunction, Put, Reduce, Wait
from samovar.collectives.plans import direct_all_reduce, direct_reduce_scatter, dissemination_barrier, ring_all_reduce
from samovar.collectives.tree import tree_all_reduce, tree_broadcast
from samovar.transports.sim.races import Race
from samovar.transports.sim.scheduler import Deadlock
from samovar.transports.sim.window import SimWindow
from tests.conformance.cases import in_parts
from tests.sim.harness import Parts, WrongResult

Change = Callable[[Plan], tuple[Operation, ...]]


@dataclass(frozen=True)
class Mistake:
    """`collective` states what is right; `caught_by` is all that its seeds may end with."""

    collective: str
    parts: Parts
    caught_by: tuple[type[Exception], ...]
    world_sizes: tuple[int, ...] = (4, 5, 7, 8)


def changed(function: PlanFunction, change: Change) -> Parts:
    """The plan function, its operations changed."""

    def planned(rank: int, world_size: int) -> Plan:
        plan = function(rank, world_size)
        return replace(plan, operations=change(plan))

    return Parts(function=planned)


class NotifyFirst(Channel):
    """Tells before the data is put."""

    def _put(self, peer, window, offset, source, slot):
        self._notify(peer, slot)
        window.put(peer, offset, source)


class OldEpoch(Channel):
    """Does not count its runs, so last run's notifications pass for this run's."""

    def run(self, deadline):
        self._runs = 0
        super().run(deadline)


class OneElementOff(Channel):
    """Puts into a staging area one element too far."""

    def _put(self, peer, window, offset, source, slot):
        super()._put(peer, window, offset + source.itemsize * (window is self._window), source, slot)


class LostNotification(SimWindow):
    """The second notification of the last rank never leaves."""

    num_sent = 0

    def notify(self, peer, notification):
        self.num_sent += 1
        if self.rank != len(self.parts) - 1 or self.num_sent != 2:
            super().notify(peer, notification)


def one_staging(plan: Plan) -> tuple[Operation, ...]:
    """Every step of the ring in the same staging area, with nothing that says that it is free."""
    return tuple(
        replace(one, staging=0)
        if isinstance(one, Put) and one.staging is not None
        else replace(one, stagings=(0,))
        if isinstance(one, Reduce)
        else one
        for one in plan.operations
    )


def next_chunk_forwarded(plan: Plan) -> tuple[Operation, ...]:
    """The second half of the ring passes on the chunk that is one too far."""
    return tuple(
        replace(one, chunk=(one.chunk + 1) % plan.num_chunks) if isinstance(one, Put) and one.staging is None else one
        for one in plan.operations
    )


def without_first_wait(plan: Plan) -> tuple[Operation, ...]:
    """The first child is not awaited."""
    is_parent = isinstance(plan.operations[0], Wait)
    return plan.operations[1:] if is_parent else plan.operations


def added_twice(plan: Plan) -> tuple[Operation, ...]:
    twice = [[one, one] if isinstance(one, Reduce) else [one] for one in plan.operations]
    return tuple(one for ones in twice for one in ones)


def added_backwards(plan: Plan) -> tuple[Operation, ...]:
    """The farthest child's sum first."""
    return tuple(
        replace(one, stagings=one.stagings[::-1]) if isinstance(one, Reduce) else one for one in plan.operations
    )


def next_staging_added(plan: Plan) -> tuple[Operation, ...]:
    return tuple(
        replace(one, stagings=tuple((staging + 1) % plan.num_stagings for staging in one.stagings))
        if isinstance(one, Reduce)
        else one
        for one in plan.operations
    )


def without_readiness(plan: Plan) -> tuple[Operation, ...]:
    """A broadcast that does not ask whether the buffer is free."""
    down = plan.num_slots - 1
    return tuple(one for one in plan.operations if isinstance(one, Put) or (isinstance(one, Wait) and one.slot == down))


def one_slot_for_all_children(plan: Plan) -> tuple[Operation, ...]:
    """Whichever child comes first passes for all of them."""
    return tuple(
        replace(one, slot=0) if isinstance(one, Put | Wait) and one.slot < plan.num_slots - 1 else one
        for one in plan.operations
    )


def sent_down_before_added(plan: Plan) -> tuple[Operation, ...]:
    """The parent answers, which says that its stagings are free, before it has read them."""
    reduces = [one for one in plan.operations if isinstance(one, Reduce)]
    return (*(one for one in plan.operations if not isinstance(one, Reduce)), *reduces)


def eager_exchange(rank: int, world_size: int) -> Plan:
    """Two ranks put their share for each other at once; the next run's may come before this run's was read."""
    assert world_size == 2
    peer = 1 - rank
    return Plan("eager", (Put(peer, 0, 0, 0), Wait(peer, 0), Reduce(0, (0,))), 1, 1, 1)


def told_before_awaited(plan: Plan) -> tuple[Operation, ...]:
    """Everybody waits before it tells: the ring of waits closes."""
    waits = [one for one in plan.operations if isinstance(one, Wait)]
    return tuple(waits + [one for one in plan.operations if isinstance(one, Notify)])


def without_all_ready(plan: Plan) -> tuple[Operation, ...]:
    """Sums what others may still be writing."""
    return tuple(one for one in plan.operations if not (isinstance(one, Wait) and one.slot < plan.num_chunks))


def without_all_done(plan: Plan) -> tuple[Operation, ...]:
    """Leaves while others still read its buffer, or write into it."""
    return tuple(one for one in plan.operations if not (isinstance(one, Wait) and one.slot >= plan.num_chunks))


def without_first_rank(plan: Plan) -> tuple[Operation, ...]:
    return tuple(
        replace(one, ranks=one.ranks[1:]) if isinstance(one, Combine) and len(one.ranks) > 1 else one
        for one in plan.operations
    )


MISTAKES = {
    "notify before data": Mistake("tree", Parts(channel=NotifyFirst), (Race,)),
    "staging reused before it is read": Mistake("ring", changed(ring_all_reduce, one_staging), (Race,)),
    "next run put before acknowledgement": Mistake("tree", Parts(eager_exchange), (Race,), (2,)),
    "acknowledged before it is read": Mistake("tree", changed(tree_all_reduce, sent_down_before_added), (WrongResult,)),
    "wrong chunk": Mistake("ring", changed(ring_all_reduce, next_chunk_forwarded), (Race, WrongResult)),
    "lost notification": Mistake("ring", Parts(window=LostNotification), (Deadlock,)),
    "waits before it tells": Mistake("barrier", changed(dissemination_barrier, told_before_awaited), (Deadlock,)),
    "missing wait": Mistake("tree", changed(tree_all_reduce, without_first_wait), (Race,)),
    "added twice": Mistake("tree", changed(tree_all_reduce, added_twice), (WrongResult,)),
    "added in another order": Mistake("tree", changed(tree_all_reduce, added_backwards), (WrongResult,)),
    "staging off by one": Mistake("tree", changed(tree_all_reduce, next_staging_added), (Race, WrongResult)),
    "one element off": Mistake("tree", Parts(channel=OneElementOff), (WrongResult,)),
    "broadcast without readiness": Mistake("broadcast", changed(tree_broadcast, without_readiness), (Race,)),
    "epoch not advanced": Mistake("tree", Parts(channel=OldEpoch), (Race, WrongResult)),
    "summed before all are ready": Mistake("direct", changed(direct_all_reduce, without_all_ready), (Race,)),
    "left before all are done": Mistake("direct", changed(direct_all_reduce, without_all_done), (Race, WrongResult)),
    "parts summed before all are ready": Mistake(
        "direct in parts", changed(in_parts(direct_reduce_scatter), without_all_ready), (Race, WrongResult)
    ),
    "a rank left out": Mistake("direct", changed(direct_all_reduce, without_first_rank), (WrongResult,)),
    "children share a slot": Mistake("tree", changed(tree_all_reduce, one_slot_for_all_children), (Race,)),
}
