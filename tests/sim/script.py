"""The faults of a case. Each is a sentence: a failing case tells them, and may be played again with a few of them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

from samovar.core.errors import DeadlineExceeded
from samovar.transports.base import Array, Notification
from samovar.transports.sim.scheduler import virtual_s
from samovar.transports.sim.window import SimWindow

ALL = "all"
MOST_MESSAGES = 300  # of a rank in a run, among which faults are drawn


class Died(Exception):
    """The planned end of a worker."""


class WrongWait(AssertionError):
    """A wait did not end by its deadline, or its error does not name the other side."""


class Script:
    """What happens in one case; with `only`, names of faults and commas between them, nothing else does.

    A fault is drawn from the seed and its own text. So it stays the same when others are left out.
    """

    def __init__(self, seed: int, only: str = ALL) -> None:
        self.seed = seed
        self.happened: dict[str, str] = {}  # sentences by their names
        self._hash = blake2b(f"{seed} ".encode(), digest_size=6)
        self._only = None if only == ALL else frozenset(only.split(","))

    def keeps(self, sentence: str) -> bool:
        """Whether this fault, which the case has drawn, is to happen."""
        name = blake2b(sentence.encode(), digest_size=4).hexdigest()
        if self._only is not None and name not in self._only:
            return False
        self.happened[name] = sentence
        return True

    def strikes(self, rate: float, sentence: str) -> bool:
        """Whether this fault happens, of those that happen at this rate."""
        return rate > 0 and self._share(sentence) < rate and self.keeps(sentence)

    def share(self, of: str) -> float:
        """A number in [0, 1), always the same for this text."""
        return self._share(f"how much: {of}")

    def _share(self, text: str) -> float:
        hashed = self._hash.copy()
        hashed.update(text.encode())
        return int.from_bytes(hashed.digest()) / 2**48


@dataclass(frozen=True)
class Limits:
    """How far the faults of a run may go, and which kinds there are.

    A worker waits for `wait_s`. Only faults that may be `fatal` last longer.
    """

    world_size: int
    num_steps: int
    most_actions: int
    step_s: float
    wait_s: float
    dies: bool
    fatal: bool
    sends: bool
    not_finite: bool


@dataclass(frozen=True)
class Cut:
    """From one moment to another, nothing gets out of these ranks, or also nothing in."""

    ranks: frozenset[int]
    from_s: float
    until_s: float
    is_one_way: bool

    def __str__(self) -> str:
        ranks = ", ".join(map(str, sorted(self.ranks)))
        ways = "no message leaves them" if self.is_one_way else "no message leaves or reaches them"
        return f"ranks {ranks} are cut off from {_ms(self.from_s)} to {_ms(self.until_s)}: {ways}"

    def holds_s(self, source: int, destination: int, now_s: float) -> float:
        is_cut = source in self.ranks and destination not in self.ranks
        is_cut |= not self.is_one_way and destination in self.ranks and source not in self.ranks
        return self.until_s - now_s if is_cut and self.from_s <= now_s < self.until_s else 0.0


@dataclass
class RunFaults:
    """The faults of one run, all drawn before it begins; most kinds are off in a seed, and some are frequent."""

    slow: dict[int, float] = field(default_factory=dict)  # a rank, how many times as slow
    dies_at: dict[int, int] = field(default_factory=dict)  # a rank, its action
    stops: dict[tuple[int, int], float] = field(default_factory=dict)  # a rank, its action, for how long
    late: dict[tuple[int, int], float] = field(default_factory=dict)  # a rank, its message, for how long
    cuts: list[Cut] = field(default_factory=list)
    broken: set[tuple[int, int]] = field(default_factory=set)  # a rank and a step whose gradient is not finite
    full_disks: set[int] = field(default_factory=set)  # numbers of snapshots
    _actions: Counter[int] = field(default_factory=Counter)
    _sent: Counter[int] = field(default_factory=Counter)

    @classmethod
    def drawn(cls, script: Script, limits: Limits) -> "RunFaults":
        faults, draw = cls(), Random(f"{script.seed} faults")
        for add in (_add_slow, _add_stops, _add_late, _add_lost, _add_cuts, _add_deaths, _add_broken, _add_full_disks):
            own = Random(draw.random())
            if own.random() < 0.4:
                for _ in range(own.choice((1, 2, 6))):
                    add(faults, script, limits, own)
        return faults

    def act(self, rank: int) -> float:
        """To be called at each action of a rank: for how long it is stopped there. Raises Died."""
        if not (self.dies_at or self.stops):
            return 0.0
        action = self._actions[rank] = self._actions[rank] + 1
        if self.dies_at.get(rank) == action:
            raise Died
        return self.stops.get((rank, action), 0.0)

    def held_s(self, source: int, destination: int, now_s: float) -> float:
        """See `samovar.transports.sim.network.HeldSeconds`."""
        self._sent[source] += 1
        late_s = self.late.get((source, self._sent[source]), 0.0)
        return max(cut.holds_s(source, destination, now_s) for cut in self.cuts) + late_s if self.cuts else late_s


def _add_slow(faults: RunFaults, script: Script, limits: Limits, draw: Random) -> None:
    rank, factor = draw.randrange(limits.world_size), round(draw.uniform(2, 9), 1)
    if script.keeps(f"rank {rank} computes {factor} times as slowly"):
        faults.slow[rank] = factor


def _add_stops(faults: RunFaults, script: Script, limits: Limits, draw: Random) -> None:
    at, seconds = _action(limits, draw), _duration_s(limits, draw)
    if script.keeps(f"rank {at[0]} is stopped for {_ms(seconds)} at its action {at[1]}"):
        faults.stops[at] = seconds


def _add_late(faults: RunFaults, script: Script, limits: Limits, draw: Random) -> None:
    at = draw.randrange(limits.world_size), draw.randint(1, MOST_MESSAGES)
    seconds = 10 * limits.step_s * draw.random()
    if limits.sends and script.keeps(f"message {at[1]} of rank {at[0]} takes {_ms(seconds)} longer"):
        faults.late[at] = seconds


def _add_lost(faults: RunFaults, script: Script, limits: Limits, draw: Random) -> None:
    at, seconds = (draw.randrange(limits.world_size), draw.randint(1, MOST_MESSAGES)), 0.2 * limits.wait_s
    if limits.sends and script.keeps(f"message {at[1]} of rank {at[0]} is lost, and sent again {_ms(seconds)} later"):
        faults.late[at] = seconds


def _add_cuts(faults: RunFaults, script: Script, limits: Limits, draw: Random) -> None:
    ranks = frozenset(draw.sample(range(limits.world_size), draw.randint(1, max(1, limits.world_size // 2))))
    from_s, seconds = draw.uniform(0, 2 * limits.num_steps * limits.step_s), _duration_s(limits, draw)
    cut = Cut(ranks, from_s, from_s + seconds, draw.random() < 0.3)
    if limits.sends and script.keeps(str(cut)):
        faults.cuts.append(cut)


def _add_deaths(faults: RunFaults, script: Script, limits: Limits, draw: Random) -> None:
    rank, action = _action(limits, draw)
    is_last = len(faults.dies_at) + 2 > limits.world_size
    if limits.dies and not is_last and script.keeps(f"rank {rank} dies at its action {action}"):
        faults.dies_at[rank] = action


def _add_broken(faults: RunFaults, script: Script, limits: Limits, draw: Random) -> None:
    rank, step = draw.randrange(limits.world_size), draw.randrange(limits.num_steps)
    if limits.not_finite and script.keeps(f"rank {rank}'s gradient of step {step} is not a number"):
        faults.broken.add((rank, step))


def _add_full_disks(faults: RunFaults, script: Script, _limits: Limits, draw: Random) -> None:
    number = draw.randint(1, 6)
    if script.keeps(f"the disk is full at snapshot {number}"):
        faults.full_disks.add(number)


def _action(limits: Limits, draw: Random) -> tuple[int, int]:
    return draw.randrange(limits.world_size), draw.randint(1, limits.most_actions)


def _duration_s(limits: Limits, draw: Random) -> float:
    """Mostly a few steps; now and then longer than anybody waits, if that is allowed."""
    if limits.fatal and draw.random() < 0.2:
        return limits.wait_s * draw.choice((1.5, 3.0, 20.0))
    return 0.2 * limits.wait_s * draw.random() ** 2


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def acting_window(act: Callable[[int], float], base: type[SimWindow] = SimWindow) -> type[SimWindow]:
    """Windows at each of whose verbs their rank may be stopped or die, with all that it does in the background.

    Raises WrongWait, for each wait that is over.
    """

    class ActingWindow(base):  # type: ignore[misc, valid-type]
        def put(self, peer: int, offset: int, source: Array, notification: Notification | None = None) -> None:
            self._act()
            super().put(peer, offset, source, notification)

        def notify(self, peer: int, notification: Notification) -> None:
            self._act()
            super().notify(peer, notification)

        def wait(self, slot, at_least, peer, deadline):
            self._act()
            began_s = self._fabric.scheduler.now_s
            try:
                return super().wait(slot, at_least, peer, deadline)
            except DeadlineExceeded as error:
                ended_s = self._fabric.scheduler.now_s
                if ended_s > max(began_s, virtual_s(deadline)) or f"rank {peer} " not in f"{error} ":
                    raise WrongWait(f"for rank {peer}, until {deadline.at_s} s: ended {ended_s}: {error}") from error
                raise

        def _act(self) -> None:
            if self._port.task is self._port.own_task and (stopped_s := act(self.rank)):
                self._port.sleep(stopped_s)

    return ActingWindow
