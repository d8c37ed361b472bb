"""Workers that come, leave and die at any action of theirs, on simulated machines: sums and weights stay whole."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np

from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.core.errors import RankFailed
from samovar.core.layout import Layout, ParameterSpec
from samovar.membership.quorum import Quorum, QuorumSize
from samovar.membership.quorum_messages import Admission, Decision, Go, Hello, Last, Lost, Refused, Reply
from samovar.membership.rounds import Given, Rounds
from samovar.strategies.base import kind_of
from samovar.strategies.config import StrategyConfig
from samovar.strategies.elastic_weights import ElasticWeights
from samovar.transports.base import Array, Region
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate
from tests.sim.harness import config_of, repeated_by
from tests.sim.script import ALL, Died, Limits, RunFaults, Script, acting_window

LAYOUT = Layout.pack([ParameterSpec("a", (5, 3)), ParameterSpec("b", (7,))])
STRATEGIES = ("local-sgd", "diloco", "sync-easgd")
COLLECTIVES = ("tree", "ring", "halving-doubling", "direct")
NUM_ROUNDS, PERIOD_STEPS = 6, 2
STEP_S, POLL_S, WAIT_S = 1e-4, 1e-5, 0.01  # of virtual time
QUORUM_WAIT_S = 10 * WAIT_S
MOST_ACTIONS = 160  # of a worker in a run
ROUNDING = 1e-4


class WrongSum(AssertionError):
    """A worker's contribution was lost, counted twice or applied by half; or weights that must be equal are not."""


@dataclass(frozen=True)
class ElasticCase:
    """Of `world_size` workers the first `num_founders` begin, and the others come later.

    `num_dying` of them end at any action, and `num_leaving` leave in a round of theirs. `only` names the faults that
    are left.
    """

    seed: int
    strategy: str
    collective: str
    world_size: int
    num_founders: int
    num_dying: int
    num_leaving: int
    only: str = ALL

    @classmethod
    def of_seed(cls, seed: int) -> "ElasticCase":
        draw = Random(seed)
        founders, joiners = draw.randint(1, 5), draw.randint(0, 3)
        dying = draw.randint(0, founders + joiners - 1)
        leaving = draw.randint(0, founders + joiners - 1 - dying)
        strategy, collective = draw.choice(STRATEGIES), draw.choice(COLLECTIVES)
        return cls(seed, strategy, collective, founders + joiners, founders, dying, leaving)

    @property
    def settings(self) -> StrategyConfig:
        """In half of the cases elastic workers go further than the center."""
        further: dict[str, Any] = {"worker_rate": 0.6} if self.strategy == "sync-easgd" and self.seed % 2 else {}
        return StrategyConfig(self.strategy, sync_period_steps=PERIOD_STEPS, **further)

    def config(self) -> SimConfig:
        return config_of(self.seed)

    def limits(self) -> Limits:
        """Deaths have their own draw, since founders and joiners die alike. Some are silent for too long."""
        steps = NUM_ROUNDS * PERIOD_STEPS
        kinds = {"dies": False, "fatal": True, "sends": True, "not_finite": False}
        return Limits(self.world_size, steps, MOST_ACTIONS, STEP_S, WAIT_S, **kinds)


@dataclass
class Attempt:
    """What a worker had before one attempt at an exchange, and, if it counted and the worker lived on, after it."""

    number: int
    round: int
    generation: int
    before: Array
    center: Array
    velocity: Any  # of `diloco`
    after: Array | None = None
    center_after: Array | None = None


@dataclass
class Book:
    """All that is checked at the end, and the fates of workers."""

    case: ElasticCase
    quorum: Quorum
    faults: RunFaults
    mail: dict[int, list[tuple[Reply, Given]]] = field(default_factory=dict)
    state: Given = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    begun: list[tuple[int, int, Array]] = field(default_factory=list)  # worker, round, first weights
    leaves_in: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, case: ElasticCase, quorum: type[Quorum], script: Script) -> "Book":
        faults = RunFaults.drawn(script, case.limits())
        book = cls(case, quorum(QuorumSize(case.num_founders), lambda _number, _reply: None), faults)
        book.quorum.send = book.post
        draw = Random(case.seed + 1)
        others = draw.sample(range(1, case.world_size), case.num_dying + case.num_leaving)
        if draw.random() < 0.5 and case.num_dying:  # the first one dies like any other
            others[0] = 0
        for index, number in enumerate(others):
            action, round_number = draw.randint(1, MOST_ACTIONS), draw.randrange(NUM_ROUNDS)
            if index >= case.num_dying and script.keeps(f"rank {number} leaves in its round {round_number}"):
                book.leaves_in[number] = round_number
            if index < case.num_dying and script.keeps(f"rank {number} dies at its action {action}"):
                faults.dies_at[number] = action
        return book

    def post(self, number: int, reply: Reply) -> None:
        state = self.state if isinstance(reply, Admission) and not reply.is_founder else {}
        if not isinstance(reply, Lost):
            self.mail.setdefault(number, []).append((reply, state))


class SimSeat:
    """A seat without sockets: messages take virtual time, and the worker may die before and after each."""

    def __init__(self, book: Book, transport: SimTransport) -> None:
        self._book, self.transport = book, transport
        self.number = transport.group.rank

    def enter(self) -> tuple[Admission, Given]:
        self._pass()
        joins = self.number >= self._book.case.num_founders
        hello = Hello(self.number, f"{self.number}/0/0", "job", QUORUM_WAIT_S, joins=joins)
        self._book.quorum.came(self.number, hello, self._now_s)
        return self._answer(Admission)

    def give(self, state: Given) -> None:
        self._pass()
        self._book.state = deepcopy(state)  # as a message is: its reader may be late
        self._book.quorum.gave(self.number, self._now_s)

    def ready(self, num_steps: int, last: Last) -> Go:
        self._pass()
        self._book.quorum.ready(self.number, num_steps, last, self._now_s)
        return self.go()

    def go(self) -> Go:
        return self._answer(Go)[0]

    def vote(self, is_done: bool) -> Decision:
        self._pass()
        self._book.quorum.voted(self.number, is_done, self._now_s)
        return self._answer(Decision)[0]

    @property
    def _now_s(self) -> float:
        return self.transport.now_s

    def _pass(self) -> None:
        self.act()
        self.transport.sleep(POLL_S)
        self.act()

    def act(self) -> None:
        """Called at each action of the worker."""
        if stopped_s := self._book.faults.act(self.number):
            self.transport.sleep(stopped_s)

    def _answer(self, kind: Any) -> Any:
        until_s = self._now_s + (20 if kind is Admission else 2.5) * QUORUM_WAIT_S
        quorum, letters = self._book.quorum, self._book.mail.setdefault(self.number, [])

        def is_over(now_s: float) -> bool:
            quorum.give_up(now_s)
            return bool(letters) or now_s >= until_s

        if not letters:
            self.transport.poll(POLL_S, is_over)
        if self._now_s >= until_s:
            raise WrongSum(f"worker {self.number} waits for {kind.__name__} for ever")
        reply, state = letters.pop(0)
        if isinstance(reply, Refused):
            raise RankFailed(reply.why)
        assert isinstance(reply, kind), (reply, kind)
        self.act()
        return (reply, state) if kind is Admission else (reply,)


class HeldArray:
    """Weights that are the region's."""

    def __init__(self, region: Region, weights: Array) -> None:
        region.array[:] = weights

    def gather(self) -> None: ...
    def scatter(self) -> None: ...
    def release(self) -> None: ...


class Worker(ElasticWeights):
    """The real strategy on simulated windows; it keeps a book of its attempts."""

    def __init__(
        self, book: Book, kind: type[Rounds], seat: SimSeat, transport: SimTransport, admission: Admission, given: Given
    ) -> None:
        case = book.case
        self._book, self._number, self._transport = book, seat.number, transport
        self._go: Go | None = None
        self._attempt: Attempt | None = None
        super().__init__(
            kind_of(case.strategy).regrouped(case.settings),
            LAYOUT,
            lambda region: HeldArray(region, first_weights()),
            self._collectives(transport.among(("alone", seat.number), [seat.number])),
            lambda: transport.deadline(WAIT_S),
            given,
        )
        self.rounds = kind(seat, self, admission)
        book.begun.append((seat.number, admission.division.round, self.region.array.copy()))

    def _collectives(self, group: SimTransport) -> Collectives:
        return PlannedCollectives(group, lambda _num_bytes: self._book.case.collective)

    def regroup(self, go: Any) -> None:
        self._go = go
        ranks = [int(mark.partition("/")[0]) for mark in go.marks]
        assert ranks[go.rank] == self._number
        super().regroup(self._collectives(self._transport.among(go.generation, ranks)))

    def exchange(self) -> None:
        assert self._go is not None
        center = self.common if self._strategy.center() is not None else np.zeros(0, np.float32)
        velocity = self._strategy.state_dict().get("velocity")
        place = self._number, self.rounds.division.round, self._go.generation
        self._attempt = Attempt(*place, self.region.array.copy(), center.copy(), velocity)
        self._book.attempts.append(self._attempt)
        super().exchange()

    def committed(self) -> None:
        super().committed()
        if self._attempt is not None:
            self._attempt.after, self._attempt.center_after = self.region.array.copy(), self.common.copy()


def run_elastic(
    case: ElasticCase,
    rounds: type[Rounds] = Rounds,
    script: Script | None = None,
    quorum: type[Quorum] = Quorum,
) -> SimRun[str]:
    """Raises what is wrong, with a note of the command that repeats it."""
    book = Book.of(case, quorum, script or Script(case.seed, case.only))
    faults = book.faults
    try:
        config = replace(case.config(), held_s=faults.held_s if faults.cuts or faults.late else None)
        run = simulate(partial(work, book, rounds), case.world_size, config, acting_window(faults.act))
        check(book, run.results)
        return run
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by('elastic', case)}")
        raise


def work(book: Book, kind: type[Rounds], transport: SimTransport) -> str:
    """One worker from its start to its end. How it ended."""
    number = transport.group.rank
    draw = Random(book.case.seed * 64 + number)
    try:
        if number >= book.case.num_founders:
            transport.sleep(NUM_ROUNDS * PERIOD_STEPS * STEP_S * draw.random())
        return trained(book, kind, SimSeat(book, transport), draw)
    except Died:
        hangs = draw.random() < 0.15  # then nobody hears of its end, and the quorum gives it up
        transport.sleep(WAIT_S * (30.0 if hangs else draw.random() ** 3))
        book.quorum.gone(number, transport.now_s)
        return "died"
    except RankFailed as error:
        book.quorum.gone(number, transport.now_s)
        return str(error)


def trained(book: Book, kind: type[Rounds], seat: SimSeat, draw: Random) -> str:
    transport = seat.transport
    admission, given = seat.enter()
    worker = Worker(book, kind, seat, transport, admission, given)
    first = admission.division.round
    for number in range(first, NUM_ROUNDS):
        for step in range(PERIOD_STEPS):
            seat.act()
            transport.compute(STEP_S * book.faults.slow.get(seat.number, 1.0) * (0.5 + draw.random()))
            worker.region.array[:] += gradient(seat.number, number * PERIOD_STEPS + step)
        leaves = book.leaves_in.get(seat.number) == number
        worker.rounds.exchange(PERIOD_STEPS, Last.LEAVE if leaves else Last.NO)
        if leaves:
            book.quorum.gone(seat.number, transport.now_s)
            return "left"
    while not worker.rounds.exchange(0, Last.FINISH):
        pass
    book.quorum.gone(seat.number, transport.now_s)
    return "trained"


def check(book: Book, endings: list[str]) -> None:
    """Whoever lives to the end has trained to the end, and every exchange that counts was whole."""
    for number, ending in enumerate(endings):
        allowed = ("trained", "died") if number in book.faults.dies_at else ("trained", "left")
        if ending not in allowed and not (_may_be_late(book, number, ending) or _was_silent(book, number, ending)):
            raise WrongSum(f"worker {number} ended: {ending}")
    _check_rounds(book)
    _check_repeats(book)
    _check_beginnings(book)


def _check_rounds(book: Book) -> None:
    """A round counts in one generation, once, and all that took part in it are of that one."""
    by_generation: dict[tuple[int, int], dict[int, Attempt]] = {}
    for attempt in book.attempts:
        by_generation.setdefault((attempt.round, attempt.generation), {})[attempt.number] = attempt
    counted: dict[int, int] = {}
    for (number, generation), attempts in by_generation.items():
        if any(attempt.after is not None for attempt in attempts.values()):
            if counted.setdefault(number, generation) != generation:
                raise WrongSum(f"round {number} counts in generations {counted[number]} and {generation}")
            _check_exchange(book.case.settings, list(attempts.values()))


def _may_be_late(book: Book, number: int, ending: str) -> bool:
    """A worker that comes after the end, or when all others have died, has nothing to join."""
    return number >= book.case.num_founders and ("nothing to join" in ending or "nobody has its weights" in ending)


def _was_silent(book: Book, number: int, ending: str) -> bool:
    """A worker that was stopped, or read over a broken link, for longer than others wait for it is out, or late."""
    stopped_s = sum(seconds for (rank, _), seconds in book.faults.stops.items() if rank == number)
    cut_s = max((cut.until_s - cut.from_s for cut in book.faults.cuts), default=0.0)
    return stopped_s + cut_s > QUORUM_WAIT_S and ("silent for so long" in ending or "nothing to join" in ending)


def _check_exchange(settings: StrategyConfig, attempts: list[Attempt]) -> None:
    """Weights and center, or the mean, over all that took part, also those that died after they gave their part."""
    strategy, survivors = settings.name, [attempt for attempt in attempts if attempt.after is not None]
    first = survivors[0]
    for attempt in survivors:
        if attempt.center_after.tobytes() != first.center_after.tobytes():
            raise WrongSum(f"round {first.round}: workers {first.number} and {attempt.number} have different centers")
    total = np.sum([attempt.before for attempt in attempts], axis=0, dtype=np.float64)
    if strategy == "local-sgd":
        _require_close(first.after, total / len(attempts), first)
    if strategy == "diloco":
        for attempt in survivors:
            _require_close(attempt.after, first.center_after, attempt)
        delta = first.center - total / len(attempts)
        _require_close(first.center_after, first.center - 0.7 * (delta + 0.9 * (0.9 * first.velocity + delta)), first)
    if strategy == "sync-easgd":
        rate = 0.9 / (len(attempts) + 1)
        own = settings.worker_rate or rate
        for attempt in survivors:
            _require_close(attempt.after, attempt.before - own * (attempt.before - attempt.center), attempt)
        _require_close(first.center_after, first.center + rate * (total - len(attempts) * first.center), first)


def _check_repeats(book: Book) -> None:
    """An attempt that does not count leaves a worker's weights and center as they were, bit by bit."""
    firsts: dict[tuple[int, int], Attempt] = {}
    for attempt in book.attempts:
        first = firsts.setdefault((attempt.number, attempt.round), attempt)
        same = (first.before.tobytes(), first.center.tobytes()) == (attempt.before.tobytes(), attempt.center.tobytes())
        if not same:
            raise WrongSum(f"worker {attempt.number} repeats round {attempt.round} from other weights")


def _check_beginnings(book: Book) -> None:
    """A worker begins with the weights on which the round before ended."""
    ends = {attempt.round: attempt.center_after for attempt in book.attempts if attempt.after is not None}
    for number, round_number, weights in book.begun:
        wanted = ends.get(round_number - 1, first_weights())
        if wanted.tobytes() != weights.tobytes():
            raise WrongSum(f"worker {number} began round {round_number} with other weights")


def _require_close(found: Any, wanted: Any, attempt: Attempt) -> None:
    if not np.allclose(np.asarray(found), np.asarray(wanted), rtol=ROUNDING, atol=ROUNDING):
        raise WrongSum(f"round {attempt.round}, worker {attempt.number}: {found} and not {wanted}")


def first_weights() -> Array:
    return np.arange(1, LAYOUT.num_elements + 1, dtype=np.float32)


@cache
def gradient(number: int, step: int) -> Array:
    return np.random.default_rng([number, step]).normal(size=LAYOUT.num_elements).astype(np.float32)
