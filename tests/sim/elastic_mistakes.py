"""Planted mistakes of elastic jobs: of a worker in its rounds, and of the quorum that it asks."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from samovar.membership.quorum import Quorum, _Phase
from samovar.membership.quorum_messages import Admission, Decision
from samovar.membership.rounds import Rounds
from samovar.strategies.diloco import DiLoCo


class GoesOn(Rounds):
    """Keeps what an exchange made of its weights, also if it did not count."""

    def __init__(self, seat: Any, trainee: Any, admission: Any) -> None:
        super().__init__(seat, trainee, admission)
        trainee.restore = lambda _kept: None


class TrustsItself(Rounds):
    """A result counts for a worker that has it, whatever the others say."""

    def _attempt(self, go):
        verdict = super()._attempt(go)
        if not verdict.is_committed and self._has_result():
            self._commit(Decision(True))
        return verdict


class SaysYes(Rounds):
    """Votes for a result that it may not have."""

    def _has_result(self):
        super()._has_result()
        return True


class WrongRound(Rounds):
    """Gives its own state to those that come, and not that on which the round ended."""

    def _commit(self, verdict):
        trainee: Any = self._trainee
        given = {**trainee.given(), "weights": trainee.region.array + 1.0}
        trainee.given = lambda: given
        super()._commit(verdict)


class KeptTooLate(Rounds):
    """Keeps its weights after the exchange, and goes back to those."""

    def _attempt(self, go):
        if go.generation != self._generation:
            self._trainee.regroup(go)
            self._generation = go.generation
        has_result = self._has_result()
        kept = self._trainee.kept()
        verdict = self._seat.vote(has_result)
        if not verdict.is_committed:
            self._trainee.restore(kept)
        return verdict


class OuterStepByAnotherSum(Rounds):
    """`diloco` steps by a sum that is not that of its workers."""

    def _summed(self, summed, _num_workers):
        return summed * np.float32(2)  # each contribution twice

    def __init__(self, seat: Any, trainee: Any, admission: Any) -> None:
        super().__init__(seat, trainee, admission)
        exchange = trainee.exchange

        def wrong() -> None:
            strategy = trainee.strategy
            if isinstance(strategy, DiLoCo):
                strategy._outer_step = partial(self._outer_step, strategy)  # type: ignore[method-assign]
            exchange()

        trainee.exchange = wrong

    def _outer_step(self, strategy, weights, center, velocity, summed, *outer):
        summed = self._summed(summed, strategy._world_size)
        DiLoCo._outer_step(strategy, weights, center, velocity, summed, *outer)


class OneWorkerTooMany(OuterStepByAnotherSum):
    """The mean of `diloco` is divided by one more than its workers."""

    def _summed(self, summed, num_workers):
        return summed * np.float32(num_workers / (num_workers + 1))


class OneYesIsEnough(Quorum):
    """An exchange counts if one member has its result."""

    def _go_on(self, now_s):
        if self._phase is _Phase.EXCHANGE:
            workers = [self._workers[number] for number in self._members]
            if any(worker.vote for worker in workers) and all(worker.vote is not None for worker in workers):
                self._commit(now_s)
                return
        super()._go_on(now_s)


class FirstVoteDecides(Quorum):
    """An exchange counts as soon as the first member has its result."""

    def voted(self, number, is_done, now_s, address=None):
        if is_done and self._phase is _Phase.EXCHANGE:
            self._commit(now_s)
        else:
            super().voted(number, is_done, now_s, address)


class OldVotesCount(Quorum):
    """The next attempt begins with the votes of the last."""

    def _go(self):
        votes = {number: self._workers[number].vote for number in self._members}
        super()._go()
        for number, vote in votes.items():
            self._workers[number].vote = True if vote else None


class OldReadinessCounts(Quorum):
    """A round begins with members that were ready for the last one."""

    def _open_round(self, now_s):
        super()._open_round(now_s)
        for number in self._members:
            self._workers[number].is_ready = number not in self._coming


class NotAllAreAwaited(Quorum):
    """An exchange begins when two are ready."""

    def _go_on(self, now_s):
        ready = [number for number in self._members if self._workers[number].is_ready]
        if self._phase is _Phase.TRAINING and len(ready) >= 2 and not self._coming:
            self._go()
        else:
            super()._go_on(now_s)


class TheDeadAreKept(Quorum):
    """A member whose process has ended stays one."""

    def gone(self, number, now_s):
        if number not in self._members:
            super().gone(number, now_s)


class TheSilentAreAwaited(Quorum):
    """A member that nobody hears of is waited for, for ever."""

    def _expel(self, waiting, now_s):
        """Nobody."""


class TheWaitingAreExpelled(Quorum):
    """The members that wait are given up, and not those that they wait for."""

    def _expel(self, waiting, now_s):
        for member in waiting:
            self._refuse(member, "it was silent for so long that the others continued without it")
            self.gone(member, now_s)


class OldWindowsForNewMembers(Quorum):
    """A repeated exchange runs in the windows of the one that failed."""

    def _repeat(self):
        grouped = self._grouped
        for number in self._members:
            self.send(number, Decision(False))
        self._grouped = self.members if grouped else None
        self._go()


class NoStateForThoseThatCome(Quorum):
    """Workers that come begin with their own first weights."""

    def gave(self, number, _now_s):
        if number == self._giver:
            for member in self._coming:
                self.send(member, Admission(self._division(member), self.size.max_workers, is_founder=True))
            self._giver = None
            self._coming.clear()


class RanksTurnedRound(Quorum):
    """Ranks are told in another order than the members."""

    def _go(self):
        marks = [self._workers[number].hello for number in self._members]
        for number, hello in zip(self._members, marks[::-1], strict=True):
            self._workers[number].hello = hello
        super()._go()


class RoundNotCounted(Quorum):
    """The number of the round stays."""

    def _commit(self, now_s):
        self.round -= self.round > 1
        super()._commit(now_s)


class LeaversAreForgotten(Quorum):
    """A worker that leaves is out before its last exchange."""

    def ready(self, number, num_steps, last, now_s, address=None, origin=""):
        super().ready(number, num_steps, last, now_s, address, origin)
        if str(last) == "leave" and self._phase is _Phase.EXCHANGE and number in self._members:
            self._members.remove(number)


@dataclass(frozen=True)
class ElasticMistake:
    """Of the worker, or of the quorum. Some show only after many seeds."""

    rounds: type[Rounds] = Rounds
    quorum: type[Quorum] = Quorum
    is_rare: bool = False


ELASTIC_MISTAKES = {
    "what did not count is kept": ElasticMistake(GoesOn),
    "a worker trusts itself": ElasticMistake(TrustsItself),
    "a worker says yes without a result": ElasticMistake(SaysYes),
    "another state is given": ElasticMistake(WrongRound),
    "weights are kept too late": ElasticMistake(KeptTooLate),
    "each contribution counts twice": ElasticMistake(OuterStepByAnotherSum),
    "one worker too many in the divisor": ElasticMistake(OneWorkerTooMany),
    "one yes is enough": ElasticMistake(quorum=OneYesIsEnough),
    "the first vote decides": ElasticMistake(quorum=FirstVoteDecides),
    "votes of the last attempt count": ElasticMistake(quorum=OldVotesCount),
    "readiness of the last round counts": ElasticMistake(quorum=OldReadinessCounts, is_rare=True),
    "not all are awaited": ElasticMistake(quorum=NotAllAreAwaited, is_rare=True),
    "dead members are kept": ElasticMistake(quorum=TheDeadAreKept, is_rare=True),
    "silent members are awaited": ElasticMistake(quorum=TheSilentAreAwaited, is_rare=True),
    "waiting members are expelled": ElasticMistake(quorum=TheWaitingAreExpelled, is_rare=True),
    "old windows for a new attempt": ElasticMistake(quorum=OldWindowsForNewMembers),
    "no state for those that come": ElasticMistake(quorum=NoStateForThoseThatCome),
    "ranks in another order": ElasticMistake(quorum=RanksTurnedRound),
    "rounds are not counted": ElasticMistake(quorum=RoundNotCounted),
    "leavers are out too early": ElasticMistake(quorum=LeaversAreForgotten),
}
