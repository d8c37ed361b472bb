"""Planted mistakes in whole runs under faults: each replaces one part of a sound one, and must be caught."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samovar.core.errors import DeadlineExceeded
from samovar.strategies.async_easgd import AsyncEasgd
from samovar.strategies.async_sgd import AsyncMsgd, AsyncSgd
from samovar.strategies.catalog import build_strategy
from samovar.strategies.diloco import DiLoCo
from samovar.strategies.hybrid_easgd import HybridEasgd
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.shm_easgd import ShmEasgd
from samovar.strategies.slowmo import SlowMo
from samovar.strategies.sync import Sync
from samovar.strategies.sync_easgd import SyncEasgd
from samovar.transports.sim.scheduler import VirtualDeadline
from samovar.transports.sim.window import SimWindow
from tests.sim.center_runs import LedgerCenter
from tests.sim.runs import SNAPSHOT_EVERY, Parts, Snapshots


class WrongDivisor(Sync):
    """Divides by the workers of another group."""

    def reduced(self, step):
        for bucket, scale in super().reduced(step):
            yield bucket, scale * 8 / 7


class SummedTwice(LocalSgd):
    """Takes the mean of the means, after some steps of one worker's own."""

    def _exchange(self):
        super()._exchange()
        self._weights[:1] *= np.float32(1.001)


class ExchangeForgotten(LocalSgd):
    """Keeps its own weights after every second exchange."""

    num_exchanges = 0

    def _exchange(self):
        before = self._weights.copy()
        super()._exchange()
        self.num_exchanges += 1
        if self.num_exchanges % 2 == 0:
            self._weights[:] = before


class VelocityForgotten(DiLoCo):
    """Begins again without the outer velocity after a restart."""

    def load_state_dict(self, state):
        super().load_state_dict({**state, "velocity": np.zeros_like(self._velocity)})


class CenterForgotten(SyncEasgd):
    """Takes its weights for the center after a restart."""

    def load_state_dict(self, _state):
        super().load_state_dict({})


class MomentumForgotten(SlowMo):
    """Begins again from weights alone after a restart."""

    def load_state_dict(self, _state):
        super().load_state_dict({})


class CenterMovesTwice(SyncEasgd):
    """Adds the differences again when it drains."""

    def drain(self):
        was_under_way = self._is_under_way
        super().drain()
        if was_under_way:
            self._settle()


class NumberUsedAgain(AsyncSgd):
    """Two updates have one number, so that the second is taken for the first."""

    def _next_sequence(self):
        self._sequence += self._sequence < 2
        return self._sequence


class NumberLeftOut(AsyncEasgd):
    """Updates have every second number."""

    def _next_sequence(self):
        self._sequence += 2
        return self._sequence


class StepLost(AsyncSgd):
    """What one step changed is lost, without a word."""

    has_lost = False

    def _exchange(self):
        if self._sequence == 3 and not self.has_lost:
            self.has_lost = True
            self._take_center()
        else:
            super()._exchange()


class PushedWithMomentumTwice(AsyncMsgd):
    """The worker adds momentum to what the center adds momentum to."""

    def _exchange(self):
        self._weights += np.float32(0.5) * (self._weights - self._pulled)
        super()._exchange()


class MovedTwice(AsyncEasgd):
    """Takes its difference off once more."""

    def _exchange(self):
        before = self._weights.copy()
        super()._exchange()
        self._weights -= np.float32(0.5) * (before - self._weights)


class PushNotSent(ShmEasgd):
    """The worker gives its difference, which stays behind now and then."""

    def _exchange(self):
        accumulate = self._center.accumulate_in_background
        center: Any = self._center
        center.accumulate_in_background = lambda sequence, d: accumulate(sequence, d * np.float32(sequence % 2))
        try:
            super()._exchange()
        finally:
            del center.accumulate_in_background


class UpdateCountedTwice(AsyncEasgd):
    """Notes each update as two."""

    def _note_update(self, updated):
        super()._note_update(updated)
        super()._note_update(updated)


class GroupNotSummed(HybridEasgd):
    """Workers of a group step with their own gradients."""

    def reduced(self, step):
        own = [(bucket, 1.0) for bucket in self._buckets]
        list(super().reduced(step))
        yield from own if self._members.group.rank == 0 else ((bucket, 0.5) for bucket, _ in own)


class EndlessWaits(SimWindow):
    """Waits have no deadline."""

    def wait(self, slot, at_least, peer, deadline):
        return super().wait(slot, at_least, peer, VirtualDeadline(float("inf"), deadline.now_s))


class LatenessIgnored(SimWindow):
    """If a wait is over, it continues with what is there."""

    def wait(self, slot, at_least, peer, deadline):
        try:
            return super().wait(slot, at_least, peer, deadline)
        except DeadlineExceeded:
            return at_least


class NobodyNamed(SimWindow):
    """The error of a wait says nothing."""

    def wait(self, slot, at_least, peer, deadline):
        try:
            return super().wait(slot, at_least, peer, deadline)
        except DeadlineExceeded as error:
            raise DeadlineExceeded("too late") from error


class OwnNameOnly(SimWindow):
    """The error of a wait names the rank that waited, and not the other side."""

    def wait(self, slot, at_least, peer, deadline):
        try:
            return super().wait(slot, at_least, peer, deadline)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"rank {self.rank} waited for too long") from error


class WrongName(SimWindow):
    """The error of a wait names a third rank."""

    def wait(self, slot, at_least, peer, deadline):
        return super().wait(slot, at_least, (peer + 1) % 8, deadline)


class LongWaits(SimWindow):
    """Waits end long after their deadline."""

    def wait(self, slot, at_least, peer, deadline):
        return super().wait(slot, at_least, peer, VirtualDeadline(deadline.at_s + 5.0, deadline.now_s))


class NotificationFirst(SimWindow):
    """Tells before the data is put."""

    def put(self, peer, offset, source, notification=None):
        if notification is not None:
            self.notify(peer, notification)
        super().put(peer, offset, source)


class PartsAreEnough(Snapshots):
    """A snapshot counts when one rank has its part."""

    def newest(self):
        step = max(self._parts, default=0)
        first = next(iter(self._parts.get(step, {}).values()), None)
        return (step, dict.fromkeys(range(self._world_size), first)) if first else (0, {})


class StepOff(Snapshots):
    """A snapshot is taken for that of the step after."""

    def newest(self):
        step, parts = super().newest()
        return (step + 1, parts) if parts else (0, {})


class WeightsLater(Snapshots):
    """Keeps a view of the weights, which train on while it is written."""

    def save(self, rank, step, weights, state):
        super().save(rank, step, weights, state)
        if rank in self._parts.get(step, {}):
            self._parts[step][rank] = weights, state


class FullDiskIgnored(Snapshots):
    """On a full disk the part of an earlier snapshot stays, under the new name."""

    def save(self, rank, step, weights, state):
        super().save(rank, step, weights, state)
        earlier = self._parts.get(step - SNAPSHOT_EVERY, {}).get(rank)
        if rank not in self._parts.get(step, {}) and earlier:
            self._parts.setdefault(step, {})[rank] = earlier


class UpdateDropped(LedgerCenter):
    """Says that it has made an update, and has not."""

    def accumulate_chunks(self, first_chunk, sequence, difference, deadline, momentum=0.0):
        if sequence % 5:
            return super().accumulate_chunks(first_chunk, sequence, difference, deadline, momentum)
        self.ledger.took(self._rank, "accumulate", sequence, difference, momentum)
        return super().read_chunks(first_chunk, np.empty_like(difference), deadline)


class UpdateDoubled(LedgerCenter):
    """Makes an update once more, as another one."""

    def accumulate(self, sequence, difference, deadline, momentum=0.0):
        super().accumulate(2 * sequence - 1, difference, deadline, momentum)
        return super().accumulate(2 * sequence, difference, deadline, momentum)


class HalfAnExchange(LedgerCenter):
    """The center moves, and the worker does not."""

    def exchange(self, sequence, weights, moving_rate, deadline):
        before = weights.copy()
        versions = super().exchange(sequence, weights, moving_rate, deadline)
        weights[:5] = before[:5]
        return versions


class FurtherForgotten(AsyncEasgd):
    """A worker goes as far as the center where it should go further."""

    def _exchanged(self, rate):
        self._worker_rate = None
        return super()._exchanged(rate)


@dataclass(frozen=True)
class RunMistake:
    """What is wrong in a strategy's runs."""

    strategy: str
    parts: Parts


def in_strategy(name: str, kind: type) -> RunMistake:
    def build(*place: Any) -> Any:
        built = build_strategy(*place)
        built.__class__ = kind
        return built

    return RunMistake(name, Parts(build=build))


def in_another(name: str, other: str) -> RunMistake:
    """One strategy is built for another."""

    def build(chosen: Any, *place: Any) -> Any:
        return build_strategy(replace(chosen, name=other, overlap=None), *place)

    return RunMistake(name, Parts(build=build))


RUN_MISTAKES = {
    "wrong divisor": in_strategy("sync", WrongDivisor),
    "weights of a rank of its own": in_strategy("local-sgd", SummedTwice),
    "an exchange forgotten": in_strategy("local-sgd", ExchangeForgotten),
    "outer velocity forgotten at a restart": in_strategy("diloco", VelocityForgotten),
    "center forgotten at a restart": in_strategy("sync-easgd", CenterForgotten),
    "momentum forgotten at a restart": in_strategy("slowmo", MomentumForgotten),
    "center moves twice": in_strategy("sync-easgd", CenterMovesTwice),
    "number of an update used again": in_strategy("async-sgd", NumberUsedAgain),
    "number of an update left out": in_strategy("async-easgd", NumberLeftOut),
    "a step lost": in_strategy("async-sgd", StepLost),
    "momentum twice": in_strategy("async-msgd", PushedWithMomentumTwice),
    "workers of their own speed wait": in_another("async-easgd", "round-robin-easgd"),
    "a worker moves twice": in_strategy("async-easgd", MovedTwice),
    "a push not sent": in_strategy("shm-easgd", PushNotSent),
    "an update counted twice": in_strategy("async-easgd", UpdateCountedTwice),
    "a group not summed": in_strategy("hybrid-easgd", GroupNotSummed),
    "waits without a deadline": RunMistake("sync", Parts(window=EndlessWaits)),
    "lateness ignored": RunMistake("local-sgd", Parts(window=LatenessIgnored)),
    "an error that names nobody": RunMistake("slowmo", Parts(window=NobodyNamed)),
    "an error that names the wrong side": RunMistake("sync", Parts(window=OwnNameOnly)),
    "an error that names a third rank": RunMistake("local-sgd", Parts(window=WrongName)),
    "waits after their deadline": RunMistake("sync", Parts(window=LongWaits)),
    "notification before data": RunMistake("diloco", Parts(window=NotificationFirst)),
    "a part is taken for a snapshot": RunMistake("sync-easgd", Parts(snapshots=PartsAreEnough)),
    "a snapshot of another step": RunMistake("sync", Parts(snapshots=StepOff)),
    "weights change while they are saved": RunMistake("local-sgd", Parts(snapshots=WeightsLater)),
    "a full disk ignored": RunMistake("sync-easgd", Parts(snapshots=FullDiskIgnored)),
    "an update dropped": RunMistake("async-sgd", Parts(center=UpdateDropped)),
    "an update made twice": RunMistake("async-sgd", Parts(center=UpdateDoubled)),
    "a worker does not go further": in_strategy("async-easgd", FurtherForgotten),
    "half an exchange": RunMistake("async-easgd", Parts(center=HalfAnExchange)),
}
