"""A prediction: strategies and numbers of workers compared, the best of them, and where scaling ends and why."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final

from samovar.collectives.plans import IN_PLACE
from samovar.core.errors import InputError
from samovar.core.machine import Ports
from samovar.core.plain import from_plain, to_plain
from samovar.predict.cluster import Cluster
from samovar.predict.cores import on_all_cores
from samovar.predict.kept import ErrorBar, Kept
from samovar.predict.plans import Plans, plans_for, whole_powers
from samovar.predict.runs import SharingChoice, SimulatedSteps, run
from samovar.predict.work import Work, work_of
from samovar.report.comparison import Prediction
from samovar.report.profile import BYTES_OF_A_FLOAT, Profile
from samovar.strategies.base import Strategy
from samovar.strategies.bucketing import ExchangeModel, least_exposed
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import by_recipe, described, resolved
from samovar.strategies.hybrid_easgd import plan_in_groups
from samovar.strategies.settings import ALWAYS_COMPRESSES, COMPRESS, OVERLAP
from samovar.strategies.sync import BUCKET, OWNER, OWNERS
from samovar.strategies.traits import AUTO, NONE, SYNC_PERIOD_STEPS

_LONG_FROM_WORKERS = 256  # simulated, of all runs together: about half a second
_ENDS_BELOW = 0.5  # of ideal: there scaling has ended
_IS_THE_LIMIT = 0.6  # of the time that a step waits for its exchange
COMPUTATION = "computation"
_SUM_AND_BROADCAST = "tree"  # how owners of buckets exchange
_FEWEST_MESSAGES = "tree"  # any plan takes no time where messages take none


@dataclass(frozen=True, slots=True)
class Question:
    """A net, a cluster and what to try there.

    `settings` are those of strategies, by name; a strategy that lacks one ignores it. `batch_size` is that of each
    worker, or of all together if `shares_batch`. `samples` are those of the whole training, for its time and cost.
    With `has_recipes` settings that are not given are those of each strategy's recipe, and all share the batch.
    """

    profile: Profile
    cluster: Cluster
    workers: tuple[int, ...]
    strategies: tuple[str, ...]
    batch_size: int
    shares_batch: bool = False
    collective: str = AUTO
    settings: Mapping[str, Any] = field(default_factory=dict)
    samples: float | None = None
    has_recipes: bool = False

    def work(self, num_workers: int) -> Work:
        """One worker's computation. Raises InputError if there is less than a sample for each."""
        share = self.batch_size / num_workers if self.shares_batch else float(self.batch_size)
        if share < 1:
            raise InputError(
                f"--batch {self.batch_size} for all: {num_workers} workers have less than a sample each; give at most "
                f"{self.batch_size} workers, or a larger batch"
            )
        return work_of(self.profile, self.cluster.worker, share, self.cluster.slower(num_workers))


def predicted(question: Question, tell: Callable[[str, int], None] = lambda *_: None) -> list[Prediction]:
    """All strategies for all numbers of workers, in this order; `tell` is called before each, on any process.

    Cost: see `run`. Long ones are shared among all cores.
    """
    kinds: dict[type, list[str]] = {}
    for name in question.strategies:
        kinds.setdefault(_code_of(StrategyConfig(name).kind), []).append(name)
    parts = [(number, names) for number in reversed(question.workers) for names in kinds.values()]
    tasks = [partial(_of_one_code, question, number, names, tell) for number, names in parts]
    for number in question.workers:
        question.work(number)  # raises before anything is simulated
    is_long = sum(number * len(names) for number, names in parts) >= _LONG_FROM_WORKERS
    answers = on_all_cores(tasks) if is_long else [task() for task in tasks]
    found = {(row["strategy"], row["workers"]): from_plain(Prediction, row) for rows in answers for row in rows}
    return [found[name, number] for number in question.workers for name in question.strategies]


def _of_one_code(
    question: Question, num_workers: int, names: Sequence[str], tell: Callable[[str, int], None]
) -> list[dict[str, Any]]:
    """The predictions of strategies with the same code, as plain values: runs that are equal are made once."""
    work, plans = question.work(num_workers), plans_for(question.cluster, num_workers)
    runs, ideal_runs = (Runs(cluster, work, num_workers) for cluster in (question.cluster, question.cluster.ideal))
    found = []
    for name in names:
        tell(name, num_workers)
        outcomes = [(choice, runs.of(choice)) for choice in _choices(question, name, work, plans, num_workers)]
        choice, best = min(outcomes, key=lambda one: one[1].step_s)
        ideal = _without_network(question, choice, best, ideal_runs)
        found.append(to_plain(_prediction(question, name, num_workers, best, ideal)))
    return found


class _Bare(Strategy):
    """A class with nothing of its own."""


_WITHOUT_CODE: Final = {*vars(_Bare), "traits"}


def _code_of(kind: type) -> type:
    """The class whose code the strategy runs: its own, unless it only declares another's."""
    return next(one for one in kind.__mro__ if not vars(one).keys() <= _WITHOUT_CODE)


class Runs:
    """Runs of `num_workers` on a cluster. One that is asked for again, by any name of its strategy, is not made again.

    A strategy whose class only declares another's code, as hogwild-easgd does, takes the same steps at the same times
    with the same settings. All choices must have the same plan for a number of bytes.
    """

    def __init__(self, cluster: Cluster, work: Work, num_workers: int) -> None:
        self._cluster, self._work, self._num_workers = cluster, work, num_workers
        self._made: dict[tuple[object, ...], SimulatedSteps] = {}

    def of(self, choice: SharingChoice) -> SimulatedSteps:
        """The run of this choice."""
        settled, traits = resolved(choice.config, self._num_workers), choice.config.traits
        behaviour = (traits.has_center, traits.in_turn, traits.in_groups, traits.pushes, traits.exchanges_weights)
        settings = repr({**asdict(settled), "name": "", "source": ""})
        key = (_code_of(settled.kind), behaviour, settings, choice.lengths)
        if key not in self._made:
            self._made[key] = run(choice, self._cluster, self._work, self._num_workers)
        return replace(self._made[key], settled=settled)


def _choices(question: Question, name: str, work: Work, plans: Plans, num_workers: int) -> Iterator[SharingChoice]:
    """The settings to try: one for most strategies; for one with buckets, those of which the fastest is not obvious."""
    base, fitting = StrategyConfig(name), fitting_settings(question, name, num_workers)
    asked = question.collective
    collective = plans.fastest if asked == AUTO else lambda _num_bytes: asked
    if base.traits.setting(BUCKET.name) is None or base.exchanges_weights:
        if base.traits.in_groups:
            asked = plan_in_groups(asked, is_mapped=question.cluster.num_nodes(num_workers) == 1)
        yield SharingChoice(StrategyConfig.given(name, fitting, collective=asked), collective)
        return
    yield from _with_buckets(name, fitting, collective, question, work, plans, num_workers)


def fitting_settings(question: Question, name: str, num_workers: int) -> dict[str, Any]:
    """The strategy's settings that are not its defaults."""
    traits = StrategyConfig(name).traits
    fitting = {key: value for key, value in question.settings.items() if traits.setting(key) is not None}
    if fitting.get(COMPRESS.name) and traits.setting(ALWAYS_COMPRESSES.name):
        fitting[ALWAYS_COMPRESSES.name] = True  # a trial would take the time of this machine
    if traits.in_groups and "group_size" not in fitting:
        fitting |= _node_as_group(question.cluster, num_workers)
    recipe = traits.recipe if question.has_recipes else None
    if recipe is not None and (names := {*recipe.settings, *recipe.if_adaptive}):
        given_first, is_adaptive = StrategyConfig.given(name, fitting), question.profile.is_adaptive
        chosen = by_recipe(given_first, num_workers, is_adaptive=is_adaptive)
        fitting |= {key: chosen[key] for key in names if chosen[key] is not None}
    return fitting


def _with_buckets(
    name: str,
    fitting: dict[str, Any],
    collective: Callable[[int], str],
    question: Question,
    work: Work,
    plans: Plans,
    num_workers: int,
) -> Iterator[SharingChoice]:
    has_owners = question.profile.divides_updates and not fitting.get(COMPRESS.name)  # which send weights
    tried = (NONE, "backward", "full") if has_owners else (NONE, "backward")
    owner = fitting.get(OWNER.name)
    possible = tuple(overlap for overlap in tried if not owner or owner in OWNERS.get(overlap, ()))
    overlaps = (fitting[OVERLAP.name],) if OVERLAP.name in fitting else possible
    if BUCKET.name in fitting:
        is_whole = fitting[BUCKET.name] is None and OVERLAP.name not in fitting
        for overlap in (NONE,) if is_whole else overlaps:
            yield SharingChoice(StrategyConfig.given(name, fitting | {OVERLAP.name: overlap}), collective)
        return
    at_once = fitting if owner in OWNERS[NONE] else {key: fitting[key] for key in fitting if key != OWNER.name}
    whole = SharingChoice(StrategyConfig.given(name, at_once | {OVERLAP.name: NONE}), collective)
    if overlaps[0] == NONE and not owner and _divides_updates(question, fitting, num_workers):
        yield SharingChoice(whole.config.but({OWNER.name: "parts"}), lambda _: IN_PLACE)
    for overlap in overlaps:
        if overlap == NONE or num_workers == 1 or not question.cluster.worker.spare_core:
            if overlap == overlaps[0]:
                yield whole
            continue
        model = _model(overlap, collective, work, plans)
        sizes = [BYTES_OF_A_FLOAT * segment.num_parameters for segment in reversed(work.segments)]
        lengths = least_exposed(sizes, [segment.backward_s for segment in reversed(work.segments)], model)
        if len(lengths) > 1:
            config = StrategyConfig.given(name, fitting | {OVERLAP.name: overlap}, automatic_buckets=True)
            yield SharingChoice(config, collective, lengths)
        elif overlap == overlaps[0]:
            yield whole  # nothing is final before backward ends


def _divides_updates(question: Question, fitting: Mapping[str, Any], num_workers: int) -> bool:
    """Whether workers that share memory would each make a part of the updates, as `samovar train` does by itself."""
    is_shared = num_workers > 1 and question.cluster.num_nodes(num_workers) == 1
    by_plan = question.collective in (AUTO, IN_PLACE) and not fitting.get(COMPRESS.name)
    return is_shared and by_plan and question.profile.divides_updates


def _model(overlap: str, collective: Callable[[int], str], work: Work, plans: Plans) -> ExchangeModel:
    by = (lambda _: _SUM_AND_BROADCAST) if overlap == "full" else collective
    return plans.exchange_model(by, BYTES_OF_A_FLOAT * work.num_parameters, 1.0)


def _node_as_group(cluster: Cluster, num_workers: int) -> dict[str, int]:
    """A node is a group, if there are several whole ones."""
    size = cluster.node.workers
    return {"group_size": size} if size > 1 and num_workers % size == 0 and num_workers > size else {}


def _without_network(
    question: Question, choice: SharingChoice, found: SimulatedSteps, runs: Runs
) -> SimulatedSteps | None:
    """The same run with exchanges that take no time: what is left is waiting for the slower ones.

    None if nothing would be left: workers are equal, do not wait, or go to a center each at its own speed.
    """
    worker, traits = question.cluster.worker, choice.config.traits
    are_equal = not (worker.jitter or worker.slow_every)
    if are_equal or not found.exposed_s or (traits.is_async and not traits.in_groups):
        return None
    return runs.of(replace(choice, collective=lambda _: _FEWEST_MESSAGES))


def _prediction(
    question: Question, name: str, num_workers: int, outcome: SimulatedSteps, ideal: SimulatedSteps | None
) -> Prediction:
    alone = question.work(1)
    alone_s = alone.alone_s(question.cluster)
    speed_up = outcome.samples_per_s * alone_s / alone.batch_size
    exposed_s = outcome.exposed_s
    slower_s = min(exposed_s, ideal.exposed_s) if ideal is not None else 0.0
    hours = question.samples / outcome.samples_per_s / 3600 if question.samples else None
    per_hour = question.cluster.price_per_hour(num_workers, outcome.settled.needs_center)
    return Prediction(
        strategy=name,
        workers=num_workers,
        settings=described(outcome.settled).partition(": ")[2],
        plan=outcome.plan,
        num_buckets=outcome.num_buckets,
        step_s=outcome.step_s,
        samples_per_s=outcome.samples_per_s,
        speed_up=speed_up,
        efficiency=speed_up / num_workers,
        forward_s=outcome.forward_s,
        backward_s=outcome.backward_s,
        update_s=outcome.update_s,
        slower_s=slower_s,
        exchange_s=exposed_s - slower_s,
        bytes_per_step=outcome.bytes_per_step,
        limit=_limit(outcome, slower_s, question.cluster, num_workers),
        staleness=outcome.staleness,
        hours=hours,
        price=None if hours is None or per_hour is None else hours * per_hour,
        price_per_million=None if per_hour is None else per_hour * 1e6 / outcome.samples_per_s / 3600,
    )


def _limit(outcome: SimulatedSteps, slower_s: float, cluster: Cluster, num_workers: int) -> str:
    """The limit of a step: the part that it waits for most, or "computation" if it hardly waits."""
    if outcome.exposed_s < 0.05 * outcome.step_s:
        return COMPUTATION
    if slower_s > outcome.exposed_s / 2:
        return "slower workers"
    name, share = max(outcome.busy.items(), key=lambda one: one[1])
    if share * outcome.step_s >= _IS_THE_LIMIT * outcome.exposed_s:
        return name
    if cluster.machine.ports is Ports.UNLIMITED and cluster.num_nodes(num_workers) > 1:
        return "the network's bandwidth or latency"  # which of them, no port tells
    return "latency: messages wait for each other"


@dataclass(frozen=True, slots=True)
class Verdict:
    """About one strategy: the fastest number of workers, and what stops more.

    From `ends_at` on, no number of workers makes half of what ideal ones would; None if the last one does. Before,
    those in `less_with` make less, too.
    """

    strategy: str
    best_workers: int
    best_speed_up: float
    ends_at: int | None
    less_with: tuple[int, ...]
    limit: str


def verdicts(found: Sequence[Prediction]) -> list[Verdict]:
    """One for each strategy, the fastest first."""
    names = dict.fromkeys(one.strategy for one in found)
    of_all = [_verdict([one for one in found if one.strategy == name]) for name in names]
    return sorted(of_all, key=lambda verdict: -verdict.best_speed_up)


def _verdict(rows: Sequence[Prediction]) -> Verdict:
    best = max(rows, key=lambda one: one.speed_up)
    less = [one for one in rows if one.efficiency < _ENDS_BELOW]
    ending = list(takewhile(lambda one: one in less, reversed(rows)))
    end = ending[-1] if ending else None
    less_with = tuple(one.workers for one in less if one not in ending)
    ends_at, limit = end.workers if end else None, (end or best).limit
    return Verdict(best.strategy, best.workers, best.speed_up, ends_at, less_with, limit)


def error_bars(question: Question, kept: Kept) -> dict[str, ErrorBar | None]:
    """How far predictions were off, by kind of cluster: where most workers are, in step or at a center."""
    has_center = dict.fromkeys(StrategyConfig(name).needs_center for name in question.strategies)
    kinds = [question.cluster.kind_of(question.workers[-1], each) for each in has_center]
    return {kind: kept.error_bar(kind) for kind in kinds}


_MOST_PERIOD = 64


def least_periods(question: Question, efficiency: float = 0.9) -> dict[str, int | None]:
    """Of each strategy with a period, the fewest steps between exchanges with which most workers are that efficient.

    Periods up to 64 are tried, on the largest number of workers; None if not even 64 is enough. Longer ones are taken
    for at least as efficient as shorter ones. Cost: up to 13 runs a strategy.
    """
    names = [name for name in question.strategies if StrategyConfig(name).exchanges_weights]
    return {name: _least_period(question, name, efficiency) for name in names}


def _least_period(question: Question, name: str, efficiency: float) -> int | None:
    def is_enough(period: int) -> bool:
        settings = {**question.settings, SYNC_PERIOD_STEPS: period}
        asked = replace(question, workers=question.workers[-1:], strategies=(name,), settings=settings)
        with suppress(InputError):  # too short for other settings, which fit the question's own
            return predicted(asked)[0].efficiency >= efficiency
        return False

    enough = next((period for period in whole_powers(1, _MOST_PERIOD) if is_enough(period)), None)
    if enough is None:
        return None
    return bisect_left(range(enough), True, lo=enough // 2 + 1, key=is_enough)
