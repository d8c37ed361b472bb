"""The workers of each round of an elastic job: who takes part, and whether the round counts.

A round is some steps of each worker's own, and one exchange. A pure state machine: events in, replies out. It knows no
sockets, no clock and no threads. See ADR 26.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from samovar.core.errors import InputError
from samovar.membership.quorum_messages import (
    Admission,
    Decision,
    Division,
    Go,
    Hello,
    Last,
    Lost,
    Refused,
    Reply,
    StillWaiting,
)
from samovar.transports.secure import Address


@dataclass(frozen=True, slots=True)
class QuorumSize:
    """The number of workers that the first round waits for, and the least and the most that train together."""

    num_founders: int
    min_workers: int = 1
    max_workers: int = 1 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.min_workers <= self.max_workers:
            raise InputError(
                f"--min-workers {self.min_workers}, --max-workers {self.max_workers}: give 1 or more, and a largest "
                "number that is not below the smallest"
            )
        if self.num_founders > self.max_workers:
            raise InputError(
                f"--workers {self.num_founders} is more than --max-workers {self.max_workers}; raise the latter"
            )


@dataclass(slots=True)
class _Member:
    hello: Hello
    name: str
    since_s: float
    first_round: int  # in which it came to the door
    num_steps: int = 0
    last: Last = Last.NO
    is_ready: bool = False
    vote: bool | None = None
    address: Address | None = None  # where it listens for the next generation
    origin: str = ""


class _Phase(Enum):
    DOOR = auto()  # the first round has not begun
    TRAINING = auto()  # until all are ready
    EXCHANGE = auto()  # until all have voted
    HELD = auto()  # fewer than the least number: until others come
    OVER = auto()


@dataclass(slots=True)
class Quorum:
    """Events change it, and `send(worker, reply)` gets what is to be told. Workers are numbers, never used twice."""

    size: QuorumSize
    send: Callable[[int, Reply], None]
    round: int = 0
    generation: int = 0
    _phase: _Phase = _Phase.DOOR
    _workers: dict[int, _Member] = field(default_factory=dict)
    _door: list[int] = field(default_factory=list)
    _members: list[int] = field(default_factory=list)
    _coming: list[int] = field(default_factory=list)  # members that wait for the state
    _giver: int | None = None
    _grouped: tuple[int, ...] | None = None  # the members of this generation; None: its windows are no good
    _opened: tuple[int, ...] = ()  # the members with which the last round began
    _version: int = 0
    _gone: list[str] = field(default_factory=list)
    _num_missing: int = 0  # founders that ended before they came
    _held_s: float = math.inf
    _calm_until_s: float = -math.inf  # until then nobody has waited for too long

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self._members)

    def came(self, number: int, hello: Hello, now_s: float) -> None:
        """A worker is at the door."""
        place = f"process {hello.mark.partition('/')[0]}{hello.host and f' on {hello.host}'}"
        self._workers[number] = _Member(hello, f"worker {number} ({place})", now_s, self.round)
        self._calm_until_s = min(self._calm_until_s, now_s + hello.timeout_s)
        if self._phase is _Phase.OVER:
            self._refuse(number, "the job has ended; there is nothing to join")
            return
        others = [one for one in (*self._members, *self._door) if self._workers[one].hello.job != hello.job]
        may_judge = not hello.joins and all(one in self._door and self._workers[one].hello.joins for one in others)
        self._door.append(number)
        for one in others if may_judge or not others else [number]:  # some that join may come before the founders
            self._door.remove(one)
            why = "its model or its settings differ from those of the job; run the same script with the same arguments"
            self._refuse(one, why, is_input=True)
        self._admit(now_s)

    def founder_ended(self, now_s: float) -> None:
        """A worker that the first round waits for ended before it came."""
        self._num_missing += 1
        self._admit(now_s)

    def gave(self, number: int, now_s: float) -> None:
        """The state of a member has come, for those that wait for it."""
        if number == self._giver:
            for member in self._coming:
                self._workers[member].since_s = now_s
                num_rounds = self.round - self._workers[member].first_round
                self.send(member, Admission(self._division(member), self.size.max_workers, num_rounds))
            self._giver = None
            self._coming.clear()

    def ready(
        self, number: int, num_steps: int, last: Last, now_s: float, address: Address | None = None, origin: str = ""
    ) -> None:
        """A member has come to an exchange, after `num_steps` steps since the last one.

        To the first exchange all must come from one `origin`, the state with which they began.
        """
        if (worker := self._workers.get(number)) is not None:
            worker.is_ready, worker.num_steps, worker.last, worker.since_s = True, num_steps, last, now_s
            worker.address, worker.origin = address, origin
            self._go_on(now_s)

    def voted(self, number: int, is_done: bool, now_s: float, address: Address | None = None) -> None:
        """A member has the result of the exchange, or cannot have it."""
        if (worker := self._workers.get(number)) is not None:
            worker.vote, worker.since_s, worker.address = is_done, now_s, address
            self._go_on(now_s)

    def busy(self, number: int, now_s: float) -> None:
        """A worker lives, and does something else. From now on, it has its whole time to come to the others."""
        if (worker := self._workers.get(number)) is not None:
            worker.since_s = now_s

    def gone(self, number: int, now_s: float) -> None:
        """A worker's process or its connection has ended. A second call does nothing."""
        worker = self._workers.pop(number, None)
        if worker is None:
            return
        if number in self._door:
            self._door.remove(number)
            self._num_missing += self._phase is _Phase.DOOR and not worker.hello.joins
        if number in self._members:
            self._lose(number, worker)
        self._go_on(now_s)

    def look(self, now_s: float) -> None:
        """To be called every now and then: `give_up`, and a sign of life to those that wait."""
        self.give_up(now_s)
        for number in (*self._waiting(), *self._door):
            self.send(number, StillWaiting())

    def give_up(self, now_s: float) -> None:
        """Give up workers that keep others waiting for too long."""
        if now_s <= self._calm_until_s:
            return
        if self._phase is _Phase.HELD and now_s > self._held_s:
            for member in self.members:
                self._refuse(member, f"fewer than {self.size.min_workers} workers (--min-workers) are left")
                self.gone(member, now_s)
        elif self._phase is _Phase.DOOR:
            if self._is_tired(self._door, now_s):
                self._begin_with_those_here(now_s)
        elif self._is_tired(waiting := self._waiting(), now_s):
            self._expel(waiting, now_s)
        limits_s = (worker.since_s + worker.hello.timeout_s for worker in self._workers.values())
        self._calm_until_s = min(limits_s, default=math.inf)  # each only becomes later

    def _is_tired(self, waiting: Sequence[int], now_s: float) -> bool:
        workers = map(self._workers.__getitem__, waiting)
        return any(now_s > worker.since_s + worker.hello.timeout_s for worker in workers)

    def _begin_with_those_here(self, now_s: float) -> None:
        """Others did not come in time. They may still join."""
        if len(self._door) >= self.size.min_workers:
            self.size = replace(self.size, num_founders=0)
            self._admit(now_s)
        for number in list(self._door) if self._phase is _Phase.DOOR else ():
            self._refuse(number, f"only {len(self._door)} of at least {self.size.min_workers} workers came in time")

    def _expel(self, waiting: Sequence[int], now_s: float) -> None:
        """Give up the members for whom others wait, if each had the time that its own limit allows."""
        silent = [member for member in self._members if member not in waiting]
        for member in silent if self._giver is None else [self._giver]:
            worker = self._workers[member]
            if now_s > worker.since_s + worker.hello.timeout_s:
                self._refuse(member, "it was silent for so long that the others continued without it")
                self.gone(member, now_s)

    def _expel_strangers(self, now_s: float) -> bool:
        """Whether members were given up, because they began with another state than the first one."""
        origin = self._workers[self._members[0]].origin
        strangers = [] if self.round else [one for one in self._members if self._workers[one].origin != origin]
        for member in strangers:
            why = "it began with another checkpoint than the first worker; let all load the same file"
            self._refuse(member, why, is_input=True)
        for member in strangers:
            self.gone(member, now_s)
        return bool(strangers)

    def _waiting(self) -> list[int]:
        """The members that wait for others."""
        if self._phase is _Phase.TRAINING:
            return [number for number in self._members if self._workers[number].is_ready] + self._coming
        if self._phase is _Phase.EXCHANGE:
            return [number for number in self._members if self._workers[number].vote is not None]
        return list(self._members) if self._phase is _Phase.HELD else []

    def _refuse(self, number: int, why: str, *, is_input: bool = False) -> None:
        self.send(number, Refused(why, is_input))

    def _lose(self, number: int, worker: _Member) -> None:
        self._members.remove(number)
        self._gone.append(worker.name)
        if self._phase is _Phase.EXCHANGE and self._grouped and number in self._grouped:
            for member in self._members:
                self.send(member, Lost(self._grouped.index(number), worker.name))
        if number in self._coming:
            self._coming.remove(number)
        if number == self._giver:  # those that wait for its state wait for the next round's
            self._members = [member for member in self._members if member not in self._coming]
            self._door[:0] = self._coming
            self._giver = None
            self._coming.clear()
        if not self._members and self._door and not self.round:  # the founder, before it gave its state
            self._phase = _Phase.DOOR
            self._num_missing += 1
        elif not self._members:
            self._end("all of its workers ended before they had finished; nobody has its weights any more")

    def _go_on(self, now_s: float) -> None:
        """Act where the last one that others wait for has come, or is gone."""
        workers = [self._workers[number] for number in self._members]
        if self._phase is _Phase.TRAINING and not self._coming and all(worker.is_ready for worker in workers):
            if not self._expel_strangers(now_s):
                self._go()
        elif self._phase is _Phase.EXCHANGE and all(worker.vote is not None for worker in workers):
            if all(worker.vote for worker in workers):
                self._commit(now_s)
            else:
                self._repeat()
        elif self._phase in (_Phase.DOOR, _Phase.HELD):
            self._admit(now_s)

    def _admit(self, now_s: float) -> None:
        """Begin the first round, or the next one where it was held, if enough workers are here."""
        if self._phase is _Phase.DOOR:
            hellos = {number: self._workers[number].hello for number in self._door}
            num_founders = sum(not hello.joins for hello in hellos.values())
            if num_founders < self.size.num_founders - self._num_missing or len(hellos) < self.size.min_workers:
                return
            self._door.sort(key=lambda number: (hellos[number].joins, hellos[number].place))
            self._members = [self._door.pop(0)]
            self._open_round(now_s)
        elif self._phase is _Phase.HELD:
            self._open_round(now_s)

    def _open_round(self, now_s: float) -> None:
        """Take in those at the door. The first member that still trains gives them its state, and trains on."""
        free = self.size.max_workers - sum(self._workers[one].last is not Last.LEAVE for one in self._members)
        come = self._door[:free]
        if len(self._members) + len(come) < self.size.min_workers:
            if self._phase is not _Phase.HELD:
                self._held_s = now_s + max(self._workers[number].hello.timeout_s for number in self._members)
            self._phase = _Phase.HELD
            return
        is_first = self._phase is _Phase.DOOR
        self._phase = _Phase.TRAINING
        del self._door[:free]
        staying, self._coming = self._members, come
        self._members = self._by_host([*staying, *come])
        train = (number for number in staying if self._workers[number].last is not Last.FINISH)
        self._giver = next(train, staying[0]) if come else None
        # One that has finished, or only gives its state, takes no part of the data while others train.
        last = {number: self._workers[number].last for number in self._members}
        train_on = tuple(number for number in last if last[number] is Last.NO)
        opened = train_on or tuple(number for number in last if last[number] is not Last.LEAVE)
        self._version += self._opened != opened
        self._opened = opened
        for number in self._members:
            self._workers[number].is_ready, self._workers[number].since_s = False, now_s
        for number in staying:
            gives = number == self._giver
            if is_first:
                division = self._division(number)
                self.send(number, Admission(division, self.size.max_workers, is_founder=True, gives=gives))
            else:
                self.send(number, Decision(True, self._division(number) if number in opened else None, gives))

    def _by_host(self, members: Sequence[int]) -> list[int]:
        """`members` in an order in which those of a host follow each other. The first one stays the first."""
        hosts = list(dict.fromkeys(self._workers[number].hello.host for number in members))
        return sorted(members, key=lambda number: hosts.index(self._workers[number].hello.host))

    def _go(self) -> None:
        """Begin the exchange, in new windows if the members are others than the last time."""
        workers = [self._workers[number] for number in self._members]
        ends = all(worker.last is not Last.NO for worker in workers)
        exchanges = not ends or any(worker.num_steps for worker in workers) or self._is_handed_over()
        if exchanges and self._grouped != self.members:
            self.generation += 1
            self._grouped = self.members
        gone, self._gone = tuple(self._gone), []
        marks, hosts = tuple(one.hello.mark for one in workers), tuple(one.hello.host for one in workers)
        addresses = tuple(one.address for one in workers)
        is_crowded = len(workers) > len({(one.hello.host, core) for one in workers for core in one.hello.cores})
        self._phase = _Phase.EXCHANGE
        for rank, (number, worker) in enumerate(zip(self._members, workers, strict=True)):
            worker.vote = None
            self.send(number, Go(self.generation, rank, marks, is_crowded, ends, exchanges, gone, hosts, addresses))
        if not exchanges:
            self._end("the job has ended; there is nothing to join")

    def _repeat(self) -> None:
        self._grouped = None
        for number in self._members:
            self.send(number, Decision(False))
        self._go()

    def _commit(self, now_s: float) -> None:
        self.round += 1
        leaving = [number for number in self._members if self._workers[number].last is Last.LEAVE]
        if self._is_handed_over():
            del leaving[0]  # it goes when it has given its state
        elif all(self._workers[number].last is not Last.NO for number in self._members):
            leaving = self._members
        for number in leaving:
            self.send(number, Decision(True))
        self._members = [number for number in self._members if number not in leaving]
        if self._members:
            self._open_round(now_s)
        else:
            self._end("the job has ended; there is nothing to join")

    def _is_handed_over(self) -> bool:
        """Whether all members leave, and enough others are at the door to continue."""
        leave = all(self._workers[number].last is Last.LEAVE for number in self._members)
        return leave and len(self._door) >= self.size.min_workers

    def _end(self, why: str) -> None:
        self._phase = _Phase.OVER
        self._members = []
        for number in self._door:
            self._refuse(number, why)
        self._door.clear()

    def _division(self, number: int) -> Division:
        """Its part among those with which the round began; some of them may be gone."""
        return Division(self.round, self._opened.index(number), len(self._opened), self._version)
