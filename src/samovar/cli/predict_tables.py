"""The answer of `samovar predict`, as tables and as JSON."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samovar.core import units
from samovar.core.plain import to_plain
from samovar.predict.kept import ErrorBar
from samovar.predict.learning import Taught
from samovar.predict.plans import PlanCost
from samovar.predict.prediction import COMPUTATION, Question, Verdict
from samovar.predict.work import LayerVolume
from samovar.report.comparison import Prediction
from samovar.report.tables import printer, show_facts, show_lines, show_table
from samovar.report.wording import counted, rate

_MOST_COLUMNS = 12
_BY_RECIPE = "by each strategy's recipe, as in samovar train"
_WITHOUT_RECIPES = "without recipes; --recipe auto has those of samovar train"


@dataclass(frozen=True, slots=True)
class Shown:
    """All that is shown."""

    question: Question
    rows: Sequence[Prediction]
    verdicts: Sequence[Verdict]
    plans: Sequence[PlanCost]
    layers: Sequence[LayerVolume]
    periods: Mapping[str, int | None]
    learned: Sequence[Taught] = ()
    error_bars: Mapping[str, ErrorBar | None] = field(default_factory=dict)

    def as_plain(self) -> dict[str, Any]:
        """As JSON values; `simulated` says what the figures are."""
        question, profile = self.question, self.question.profile
        return {
            "simulated": True,
            "net": profile.net,
            "parameters": profile.num_parameters,
            "net_parameters": profile.net_parameters,
            "profile": profile.source,
            "cluster": question.cluster.title,
            "cluster_source": question.cluster.source,
            "batch_size": question.batch_size,
            "shares_batch": question.shares_batch,
            "samples": question.samples,
            "predictions": to_plain(list(self.rows)),
            "verdicts": to_plain(list(self.verdicts)),
            "plans": to_plain(list(self.plans)),
            "layers": to_plain(list(self.layers)),
            "least_periods": dict(self.periods),
            "has_recipes": question.has_recipes,
            "learned": to_plain(list(self.learned)),
            "error_bars": to_plain(self.error_bars),
        }


def show_prediction(shown: Shown) -> None:
    """The question, speed-ups, the figures with most workers, and the verdict."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    console, question = printer(), shown.question
    show_lines(console, *_heading(question), "")
    show_table(console, "speed-up against one worker (simulated)", *_speed_ups(shown))
    left_out = question.workers[:-_MOST_COLUMNS]
    show_lines(console, *([f"  --json also has {', '.join(map(str, left_out))}"] if left_out else []), "")
    most = question.workers[-1]
    last, together = [one for one in _in_order(shown) if one.workers == most], counted(most, "worker")
    show_table(console, f"a step with {together} (simulated)", *_steps(question, last))
    show_lines(console, "")
    show_facts(console, "verdict", _verdict(shown, last))
    if shown.periods:
        show_lines(console, "")
        periods = shown.periods.items()
        facts = [
            (name, f"an exchange every {steps} steps" if steps else "none up to 64 steps") for name, steps in periods
        ]
        show_facts(console, f"shortest period with 90 % of ideal, {together} (simulated)", facts)
    if shown.learned:
        show_lines(console, "")
        taught = counted(shown.learned[-1].workers, "worker")
        title = f"a small net learns digits, {taught} (real gradients, simulated time)"
        show_table(console, title, *_learned(shown.learned))
    if shown.plans:
        show_lines(console, "")
        size = units.size(question.profile.parameter_bytes)
        show_table(console, f"an all-reduce of {size} among {together} (simulated)", *_plans(shown.plans))
    if shown.layers:
        show_lines(console, "")
        show_table(console, "bytes of each layer in a step of all workers", *_layers(shown.layers))


def _heading(question: Question) -> list[str]:
    profile, cluster = question.profile, question.cluster
    shared = "all workers share a batch of" if question.shares_batch else "batch a worker:"
    lines = [
        f"{profile.net} · {profile.num_parameters:,} parameters, {units.size(profile.parameter_bytes)} · "
        f"{shared} {question.batch_size} · layers {profile.source or 'as given'}",
        f"cluster: {cluster.title}",
    ]
    if cluster.worker.speed is not None and not profile.flops:
        lines.append("computation: the profile's seconds, not the cluster's speed: it counts no multiply_adds")
    lines.append(f"settings: {_BY_RECIPE if question.has_recipes else _WITHOUT_RECIPES}")
    return [*lines, *([f"figures: {cluster.source}"] if cluster.source else [])]


def _in_order(shown: Shown) -> list[Prediction]:
    """The fastest strategy first."""
    place = {verdict.strategy: index for index, verdict in enumerate(shown.verdicts)}
    return sorted(shown.rows, key=lambda one: (place[one.strategy], one.workers))


def _speed_ups(shown: Shown) -> tuple[Sequence[str], list[list[str]], list[bool]]:
    workers = shown.question.workers[-_MOST_COLUMNS:]
    cells = {(one.strategy, one.workers): f"{one.speed_up:.1f}" for one in shown.rows}
    rows = [[one.strategy, *(cells[one.strategy, number] for number in workers)] for one in shown.verdicts]
    return ["workers", *map(str, workers)], rows, [False, *[True] * len(workers)]


def _steps(question: Question, last: Sequence[Prediction]) -> tuple[Sequence[str], list[list[str]], list[bool]]:
    is_priced, rows = any(one.price is not None for one in last), []
    for one in last:
        seconds = (one.step_s, one.forward_s + one.backward_s + one.update_s, one.slower_s, one.exchange_s)
        row = [one.strategy, rate(one.samples_per_s), f"{one.efficiency:.0%}", *map(units.seconds, seconds)]
        row.append(units.size(one.bytes_per_step))
        row += [units.duration(3600 * (one.hours or 0))] if question.samples is not None else []
        rows.append([*row, *([f"{one.price or 0:,.2f}"] if is_priced else []), one.limit])
    head = ["strategy", "samples/s", "of ideal", "step", "compute", "slower", "exchange", "sent"]
    head += ["training"] if question.samples is not None else []
    head += [question.cluster.node.currency] if is_priced else []
    return [*head, "waits for"], rows, [False, *[True] * (len(head) - 1), False]


def _verdict(shown: Shown, last: Sequence[Prediction]) -> list[tuple[str, str]]:
    best = shown.verdicts[0]
    row = next(one for one in shown.rows if (one.strategy, one.workers) == (best.strategy, best.best_workers))
    settings = ", ".join(filter(None, (row.settings, _cut(row), f"{row.plan} plan" if row.plan else "")))
    workers = counted(best.best_workers, "worker")
    facts = [("fastest", f"{best.strategy}, {workers}: {best.best_speed_up:.1f} times one worker")]
    facts.append(("its settings", settings))
    cut = [one for one in last if one.num_buckets > 1 and one.strategy != best.strategy]
    facts += [(f"{one.strategy}'s", f"{one.settings}, {_cut(one)}, {one.plan} plan") for one in cut]
    for one in shown.verdicts:
        facts.append((one.strategy, _ending(one, shown.question.workers[-1])))
    for kind, bar in shown.error_bars.items():
        facts.append((f"error {kind.rpartition(', ')[2]}", str(bar or "not known: no run on this kind of cluster yet")))
    return facts


_LESS_ACCURATE = 0.01


def _learned(rows: Sequence[Taught]) -> tuple[Sequence[str], list[list[str]], list[bool]]:
    goal = rows[0].learned.points[-1].accuracy - _LESS_ACCURATE
    head = ["strategy", "accuracy", "loss", "steps", "time", f"to {goal:.3f}", "staleness", "at most"]
    return head, [_taught(one, goal) for one in rows], [False, *[True] * (len(head) - 1)]


def _taught(one: Taught, goal: float) -> list[str]:
    last, staleness, hours = one.learned.points[-1], one.learned.mean_staleness, one.hours_to(goal)
    return [
        one.strategy,
        f"{last.accuracy:.3f}",
        f"{last.loss:.3g}",
        f"{last.steps}",
        units.duration(last.steps * one.step_s),
        "never" if hours is None else units.duration(3600 * hours),
        *(("", "") if staleness is None else (f"{staleness:.1f}", f"{max(one.learned.staleness)}")),
    ]


def _cut(row: Prediction) -> str:
    return f"{row.num_buckets} buckets" if row.num_buckets > 1 else ""


def _ending(verdict: Verdict, most: int) -> str:
    dips, workers = ", ".join(map(str, verdict.less_with)), counted(most, "worker")
    if verdict.ends_at is not None:
        also = f", also with {dips}" if dips else ""
        return f"less than half of ideal from {verdict.ends_at} workers on{also}: {verdict.limit}"
    if verdict.limit == COMPUTATION and not dips:
        return f"no limit up to {workers}"
    reach = f"with {workers}, less with {dips}" if dips else f"up to {workers}"
    return f"half of ideal or more {reach}" + (
        "" if verdict.limit == COMPUTATION else f"; it waits for {verdict.limit}"
    )


def _plans(plans: Sequence[PlanCost]) -> tuple[Sequence[str], list[list[str]], list[bool]]:
    rows = [
        [one.name, f"{one.steps}", units.size(one.bytes_per_rank), f"{one.num_messages:,}", units.seconds(one.seconds)]
        for one in plans
    ]
    return ["plan", "steps", "sent by one", "messages", "time"], rows, [False, True, True, True, True]


def _layers(layers: Sequence[LayerVolume]) -> tuple[Sequence[str], list[list[str]], list[bool]]:
    rows = []
    for one in layers:
        sizes = map(units.size, (one.weight_bytes, one.data_bytes))
        rows.append([one.name, one.type, *sizes, f"{one.data_bytes / one.weight_bytes:.3g}", f"{one.advice} parallel"])
    head = ["layer", "type", "weights |W|", "outputs |D|", "|D|/|W|", "less is sent"]
    return head, rows, [False, False, True, True, True, False]
