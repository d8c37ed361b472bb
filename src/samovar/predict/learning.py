"""Learning foreseen: real gradients of a small net at a cluster's paces and delays, on a virtual clock."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from samovar.core.errors import InputError
from samovar.core.layout import Bucket, Layout
from samovar.predict.center import CenterServers
from samovar.predict.cluster import Cluster
from samovar.predict.plans import plans_for
from samovar.predict.prediction import Question, fitting_settings
from samovar.predict.runs import Scaled, SimulatedWorker, Workplace, servers_of
from samovar.predict.work import Work
from samovar.report.comparison import Prediction
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import MomentumShares, resolved, shared_momentum
from samovar.strategies.settings import OVERLAP
from samovar.strategies.sync import BUCKET, OWNER
from samovar.transports.base import Array
from samovar.transports.sim.world import SimTransport, simulated

NUM_POINTS = 20
ALONE = "one worker"


class Learner(Protocol):
    """One worker's samples and solver, on its flat weights and gradients, float32 (N,)."""

    def backward(self) -> None:
        """Write the mean gradient of the worker's next batch."""

    def update(self, scale: float) -> None:
        """A solver's step with `scale` times the gradients."""


class Subject(Protocol):
    """A net with its data, which workers learn in `num_steps` steps together, and the momentum of its solver."""

    @property
    def layout(self) -> Layout: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def momentum(self) -> float: ...

    def start(self, weights: Array, seed: int) -> None:
        """The first weights of every worker."""

    def learner(self, place: Workplace, shares: MomentumShares, rate: float, seed: int) -> Learner:
        """A worker that keeps its share of the momentum, and has `rate` times the solver's learning rate."""

    def tested(self, weights: Array) -> tuple[float, float]:
        """The mean loss and the accuracy on samples that nobody learns from."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A strategy whose workers learn with this work in each step; `rate` is that of its recipe."""

    strategy: StrategyConfig
    cluster: Cluster
    work: Work
    num_workers: int
    rate: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The evaluated weights after `steps` steps of each worker; at a center, of their mean."""

    steps: int
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Learned:
    """The points in order. `staleness` counts updates of a center by how many updates of others came before each."""

    points: tuple[Point, ...]
    staleness: dict[int, int] = field(default_factory=dict)

    @property
    def mean_staleness(self) -> float | None:
        """None without a center."""
        total = sum(self.staleness.values())
        return sum(number * count for number, count in self.staleness.items()) / total if total else None


def learned(lesson: Lesson, subject: Subject, num_points: int = NUM_POINTS) -> Learned:
    """Let the workers make the subject's steps, with messages as large as those of the work's net.

    The strategy is the product's own code. A center is evaluated as it is at that moment. Workers in step complete
    their exchange first, as at a test. Cost: the gradients, and 20 us a message. Raises InputError.
    """
    shares = shared_momentum(lesson.strategy, subject.momentum, lesson.num_workers)
    settled = resolved(shares.config, lesson.num_workers)
    size = subject.layout.num_elements
    scaled = Scaled(subject.layout, lesson.work.num_parameters / size)
    servers = None
    if settled.needs_center:
        servers = servers_of(lesson.cluster, lesson.num_workers, lesson.work)
        servers.learn(size)
    solver = (shares, lesson.rate * shares.rate_factor)
    collective = plans_for(lesson.cluster, lesson.num_workers).fastest
    course = _Course(subject, servers, num_points, lesson.num_workers)
    program = partial(_learn, lesson, course, settled, solver, collective, scaled)
    hosts = lesson.cluster.server_hosts(lesson.num_workers) if servers else ()
    made = simulated(program, lesson.num_workers, lesson.cluster.machine, scaled.magnification, hosts, lesson.seed)
    staleness: Counter[int] = Counter()
    for counts in made.results:
        staleness.update(counts)
    return Learned(tuple(course.points), dict(sorted(staleness.items())))


@dataclass(slots=True)
class _Course:
    """The steps and tests of all workers of a simulation so far."""

    subject: Subject
    servers: CenterServers | None
    num_points: int
    num_workers: int
    points: list[Point] = field(default_factory=list)
    num_done: int = 0

    def stepped(self, step: int, place: Workplace) -> None:
        """A worker has made its step. In step the first one tests; at a center the one whose step is due for all."""
        self.num_done += 1
        num_points, num_steps = self.num_points, self.subject.num_steps
        if self.servers is not None:
            if self.num_done * num_points // (num_steps * self.num_workers) > len(self.points):
                self.test()
        elif (step + 1) * num_points // num_steps > step * num_points // num_steps:
            place.strategy.drain()
            if place.transport.group.rank == 0:
                self.points.append(Point(step + 1, *self.subject.tested(_evaluated(place))))

    def test(self) -> None:
        """Note the center as it is, which takes no time."""
        assert self.servers is not None
        assert self.servers.values is not None
        self.points.append(Point(self.num_done // self.num_workers, *self.subject.tested(self.servers.values)))


def _evaluated(place: Workplace) -> Array:
    center = place.strategy.center()
    return place.weights if center is None else center


def _learn(
    lesson: Lesson,
    course: _Course,
    settled: StrategyConfig,
    solver: tuple[MomentumShares, float],
    collective: Callable[[int], str],
    scaled: Scaled,
    transport: SimTransport,
) -> dict[int, int]:
    """One worker; the staleness of its updates."""
    buckets, subject = scaled.layout.buckets(None), course.subject
    start = partial(subject.start, seed=lesson.seed)
    node = lesson.cluster.node.workers
    place = Workplace(transport, scaled, buckets, collective, settled, node, course.servers, start)
    place.meet()
    worker = _LearningWorker(lesson, place, subject.learner(place, *solver, lesson.seed))
    for step in range(subject.num_steps):
        worker.advance(step, place.strategy)
        course.stepped(step, place)
    place.strategy.drain()
    place.meet()
    if course.servers is not None and transport.group.rank == 0:
        course.points.pop()  # before the last updates came
        course.test()
    staleness = getattr(place.strategy, "staleness", None)
    return {} if staleness is None else staleness.histogram


@dataclass(frozen=True, slots=True)
class Taught:
    """The outcome of `workers` workers with a strategy, on a cluster where all make a step each in `step_s`."""

    strategy: str
    workers: int
    step_s: float
    learned: Learned

    def hours_to(self, accuracy: float) -> float | None:
        """Until the evaluated weights first have it; None if they never do."""
        found = (point.steps for point in self.learned.points if point.accuracy >= accuracy)
        return next((steps * self.step_s / 3600 for steps in found), None)


def subjects_for(question: Question, subject_of: Callable[[int, bool], Subject | None]) -> tuple[Subject, int, Subject]:
    """One worker's; the most workers of the question that a subject has samples for, and theirs.

    `subject_of(workers, shares_batch)` is None if it has too few. Raises InputError if it always is.
    """
    alone = subject_of(1, True)
    fitting = [(number, subject_of(number, question.shares_batch)) for number in question.workers]
    subjects = [(number, subject) for number, subject in fitting if subject is not None]
    if alone is None or not subjects:
        raise InputError("--learn: the digits are too few for these workers; add a smaller number to --workers")
    return (alone, *subjects[-1])


def taught(
    question: Question,
    found: Sequence[Prediction],
    subjects: tuple[Subject, int, Subject],
    tell: Callable[[str, int], None] = lambda *_: None,
) -> list[Taught]:
    """One worker alone, then each strategy with the workers that `subjects_for` gave."""
    alone, num_workers, subject = subjects
    work = question.work(1)
    learns = learned(Lesson(StrategyConfig(), question.cluster, work, 1), alone)
    rows = [Taught(ALONE, 1, work.alone_s(question.cluster), learns)]
    for one in found:
        if one.workers == num_workers:
            tell(one.strategy, num_workers)
            learns = learned(_lesson(question, one), subject)
            step_s = num_workers * question.work(num_workers).batch_size / one.samples_per_s
            rows.append(Taught(one.strategy, num_workers, step_s, learns))
    return rows


def _lesson(question: Question, one: Prediction) -> Lesson:
    """Buckets, overlap and owners of gradients are left out: they change no bit. The subject learns by SGD."""
    by_sgd = replace(question, profile=replace(question.profile, is_adaptive=False))
    settings = fitting_settings(by_sgd, one.strategy, one.workers)
    if not StrategyConfig(one.strategy).exchanges_weights:
        settings = {name: settings[name] for name in settings if name not in (BUCKET.name, OVERLAP.name, OWNER.name)}
    config = StrategyConfig.given(one.strategy, settings)
    recipe = config.traits.recipe if question.has_recipes and one.workers > 1 else None
    rate = 1.0 if recipe is None else recipe.rate_factor(resolved(config, one.workers), one.workers, is_adaptive=False)
    return Lesson(config, question.cluster, question.work(one.workers), one.workers, rate)


class _LearningWorker(SimulatedWorker):
    """A worker that computes what takes its time."""

    def __init__(self, lesson: Lesson, place: Workplace, learner: Learner) -> None:
        super().__init__(lesson.work, [lesson.work.segments], place, lesson.cluster.worker.jitter)
        self._learner = learner

    def make_gradients(self) -> None:
        self._learner.backward()

    def update(self, bucket: Bucket, scale: float) -> None:
        super().update(bucket, scale)
        self._learner.update(scale)
