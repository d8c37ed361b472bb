"""Planted mistakes of workers at a center: each replaces one part of a sound one, and must be caught."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from samovar.box import window_center
from samovar.box.window_center import WindowCenter
from samovar.strategies.async_easgd import AsyncEasgd, RoundRobinEasgd
from samovar.strategies.async_sgd import AsyncSgd
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.hybrid_easgd import HybridEasgd
from samovar.strategies.shm_easgd import ShmEasgd
from samovar.transports.base import Notification
from samovar.transports.sim.races import Race
from samovar.transports.sim.scheduler import Deadlock
from tests.sim.centers import Parts, WrongOrder, WrongSum


class WithoutLocks(WindowCenter):
    """A member that reads a chunk to change it does not lock others out."""

    def __init__(self, *args, **settings):
        super().__init__(*args, with_locks=False, **settings)


class LeftBeforeItIsInPlace(WindowCenter):
    """The next one is let in while the chunk is still on its way."""

    def _update(self, lane, _sequence, deadline, change):
        versions = np.zeros(self.num_chunks, np.int64)
        for chunk, part in self._parts():
            values = np.empty(part.stop - part.start, np.float32)
            offset = self._center_offset + 4 * part.start
            with self._locked(chunk, lane, deadline):
                self._window.get(0, offset, values)
                versions[chunk] = self._window.fetch_add(0, self._word(chunk, 1), 1) + 1
                change(part, values)
            self._window.put(0, offset, values)
        return versions


class LaneMixedUp(WindowCenter):
    """Tells the member's push that it is the member's own turn."""

    def _unlock(self, chunk, lane, deadline):
        own = window_center._place(self._rank, lane)
        if self._window.compare_swap(0, self._word(chunk, 0), own, 0) == own:
            return
        _, following = self._window.wait_any(window_center._one(window_center._next_slot(lane)), deadline)
        rank, its_lane = window_center._owner(following)
        self._window.notify(rank, Notification(window_center._turn_slot(1 - its_lane), 1))


class NotHandedOver(WindowCenter):
    """Leaves a chunk for which somebody waits as if nobody did."""

    def _unlock(self, chunk, lane, _deadline):
        self._window.compare_swap(0, self._word(chunk, 0), 2 * self._rank + lane + 1, 0)


class AppliedAgain(WindowCenter):
    """An update that is tried again counts twice."""

    num_updates = 0

    def _update(self, lane, _sequence, deadline, change):
        self.num_updates += 1
        return super()._update(lane, self.num_updates, deadline, change)


class OneSequenceForAll(WindowCenter):
    """All members' updates are numbered as one member's."""

    def _last_offset(self, chunk):
        return self._word(chunk, 2)


class LastChunkForgotten(WindowCenter):
    """Whole chunks only, where there is more than one."""

    def _parts(self):
        parts = list(super()._parts())
        return iter(parts[:-1] or parts)


class PushedTwiceTheRate(WindowCenter):
    """The center is moved by another difference than the worker."""

    def exchange(self, sequence, weights, moving_rate, deadline):
        before = weights.copy()
        versions = super().exchange(sequence, weights, moving_rate, deadline)
        weights[:] = before - 2 * (before - weights)
        return versions


class NotCounted(WindowCenter):
    """The version stays when another update of the same member follows."""

    def _update(self, lane, sequence, deadline, change):
        versions = super()._update(lane, sequence, deadline, change)
        if sequence % 2 == 0:
            for chunk, _ in self._parts():
                self._window.fetch_add(0, self._word(chunk, 1), -1)
        return versions


class NeverDrained(ShmEasgd):
    """The end of the run does not wait for what is on its way."""

    def finish_step(self, step, update):
        super().drain()
        super().finish_step(step, update)

    def drain(self):
        """Too early."""


class DifferenceReused(ShmEasgd):
    """The next difference is written over the one that is still being pushed."""

    def drain(self):
        if self._under_way is not None:
            push: Any = self._under_way
            push._versions = push.versions if push.is_awaited else ()  # as if it was over
            self._under_way = None


class WorkerStays(ShmEasgd):
    """The worker pushes its difference and keeps it too."""

    def _exchange(self):
        before = self._weights.copy()
        super()._exchange()
        self._weights[:] = before


class TakenAtOnce(AsyncEasgd):
    """The answer replaces the weights, with the steps that were made meanwhile."""

    def drain(self):
        if self._under_way is not None:
            self._under_way.wait(self._deadline())
            self._under_way = None
            self._weights[:] = self._pulled


class TakenTwice(AsyncEasgd):
    """The difference is taken off twice."""

    def drain(self):
        was_under_way = self._under_way is not None
        super().drain()
        if was_under_way:
            self._weights -= self._sent


class SentAgain(AsyncEasgd):
    """The weights travel as they were before the last difference was taken off."""

    def _exchange(self):
        before = self._weights.copy()
        super()._exchange()
        self._sent[:] = before


class OldPull(AsyncSgd):
    """A step is measured from the center before the last."""

    def _exchange(self):
        before = self._pulled.copy()
        super()._exchange()
        self._pulled[:] = before


class TurnNotAwaited(RoundRobinEasgd):
    """Exchanges when it comes."""

    def _in_turn(self, act):
        act()


class MembersForgotten(HybridEasgd):
    """The group's first worker keeps what it got from the center."""

    def updated(self, step):
        if self.is_due(step) and self._is_leader:
            self._exchange()


@dataclass(frozen=True)
class CenterMistake:
    """`caught_by` is all that its seeds may end with, where `rule` runs; some show where updates are tried again."""

    rule: str
    parts: Parts
    caught_by: tuple[type[Exception], ...]
    tries_again: bool = False
    overlaps: bool = False


def at_center(rule: str, center: type[WindowCenter], *caught_by: type[Exception]) -> CenterMistake:
    return CenterMistake(rule, Parts(center), caught_by)


def at_worker(rule: str, strategy: type[CenterSteps], *caught_by: type[Exception]) -> CenterMistake:
    return CenterMistake(rule, Parts(strategy=strategy), caught_by)


def behind_steps(strategy: type[AsyncEasgd]) -> CenterMistake:
    return CenterMistake("async-easgd", Parts(strategy=strategy), (WrongSum,), overlaps=True)


CENTER_MISTAKES = {
    "no locks": at_center("async-easgd", WithoutLocks, Race, WrongSum),
    "left before the chunk is in place": at_center("async-easgd", LeftBeforeItIsInPlace, Race, WrongSum),
    "another lane told": at_center("async-easgd", LaneMixedUp, Deadlock),
    "not handed over": at_center("async-easgd", NotHandedOver, Deadlock),
    "tried again, applied again": CenterMistake("async-sgd", Parts(AppliedAgain), (WrongSum, WrongOrder), True),
    "one sequence for all members": at_center("shm-easgd", OneSequenceForAll, WrongSum, WrongOrder),
    "last chunk forgotten": at_center("async-easgd", LastChunkForgotten, WrongSum, WrongOrder),
    "another difference on each side": at_center("async-easgd", PushedTwiceTheRate, WrongSum),
    "update not counted": at_center("async-easgd", NotCounted, WrongOrder),
    "difference overwritten under way": at_worker("shm-easgd", DifferenceReused, WrongSum, WrongOrder, Race),
    "end not awaited": at_worker("shm-easgd", NeverDrained, WrongSum, WrongOrder),
    "worker keeps what it gave": at_worker("shm-easgd", WorkerStays, WrongSum),
    "pulled, but measured from before": at_worker("async-sgd", OldPull, WrongSum),
    "turn not awaited": at_worker("round-robin-easgd", TurnNotAwaited, WrongOrder),
    "steps made meanwhile forgotten": behind_steps(TakenAtOnce),
    "a difference taken twice": behind_steps(TakenTwice),
    "sent with the last difference": behind_steps(SentAgain),
    "members of a group forgotten": at_worker("hybrid-easgd", MembersForgotten, WrongSum),
}
