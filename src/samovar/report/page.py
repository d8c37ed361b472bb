"""The page of `samovar report` and `samovar watch --web`: one HTML file that asks for nothing else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from samovar.core import units
from samovar.report import charts
from samovar.report.charts import Axis, Series, beside, cards, curves, legend, table
from samovar.report.comparison import Comparison, Prediction, facts_of
from samovar.report.history import ENDED, FAILED, KILLED, OPEN, UNTOLD, History, Steps, binned
from samovar.report.result import output_named
from samovar.report.timeline import read_events
from samovar.report.wording import number, rate

MARK: Final = "<!doctype html><!-- made by samovar report -->"
KINDS: Final = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "slower": "waiting for slower workers",
    "exchange": "waiting for the exchange",
    "in-flight": "exchange behind the computation",
}
_MEASURED: Final = ("data", "forward", "backward", "update", "exchange")
_POINTS, _TABLE_ROWS, _STEPS_OF_TIMELINE = 80, 12, 3
_BADGES: Final = {
    OPEN: "it trains",
    UNTOLD: "it trains, or has ended",
    KILLED: "it was ended by force",
    FAILED: "a run failed",
}
_HERE: Final = Path(__file__).parent
# Nothing is asked for beyond the page itself; a live page asks for itself again.
_POLICY: Final = "; ".join(
    ("default-src 'none'", "style-src 'unsafe-inline'", "script-src 'unsafe-inline'", "connect-src 'self'")
)


def page(comparison: Comparison, *, is_live: bool = False) -> str:
    """The whole page. A live one asks for itself every two seconds, and shows what is new."""
    runs = comparison.runs
    title = runs[0].net if len({run.net for run in runs}) == 1 else "runs"
    sections = (_head, _learning, _speed, _step, _timelines, _staleness, _traffic, _settings)
    body = "".join(section(comparison) for section in sections)
    style = (_HERE / "page.css").read_text("utf-8")
    script = f"<script>{(_HERE / 'page.js').read_text('utf-8')}</script>" if is_live else ""
    return (
        f'{MARK}\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - Samovar</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{style}</style></head>\n<body><main>{body}</main>"
        f"<footer>Made by Samovar. This page needs no network.</footer>{script}</body></html>\n"
    )


def _section(title: str, about: str, *parts: str) -> str:
    parts = tuple(filter(None, parts))
    return f"<section><h2>{title}</h2><p>{about}</p>{''.join(parts)}</section>" if parts else ""


def _head(comparison: Comparison) -> str:
    runs = comparison.runs
    what = "One run" if len(runs) == 1 else f"{len(runs)} runs compared"
    tiles = _tiles(comparison, runs[0]) if len(runs) == 1 else ""
    rows = [_summary(comparison, run, label) for run, label in zip(runs, comparison.labels, strict=True)]
    target = comparison.target()
    head = ["run", "state", "accuracy", "samples/s", "times one worker", "against predicted", "training", "waits"]
    head.append("bound")
    head += [f"time to {target:.2%}"] if target is not None else []
    runs_table = table("the runs", head, rows, is_open=True) if len(runs) > 1 else ""
    states = {run.state for run in runs} - {ENDED}
    badge = "".join(f'<span class="badge">{said}</span>' for state, said in _BADGES.items() if state in states)
    sentence = comparison.verdict()
    left_out = "".join(f'<p class="bound">{escape(said)}</p>' for said in comparison.left_out())
    return (
        f'<header><p class="brand">Samovar <span>{what}</span>{badge}</p><h1>{escape(sentence)}.</h1>'
        f"{tiles}{runs_table}{left_out}{_bound_sentence(runs)}</header>"
    )


def _tiles(comparison: Comparison, run: History) -> str:
    times, step_s = comparison.speed_up(run), sum(run.step_s.values())
    found = [
        ("accuracy", "" if run.accuracy is None else f"{run.accuracy:.2%}"),
        ("loss", number(run.steps.loss[-1]) if run.steps.step else ""),
        ("samples/s", _rate(run)),
        ("times one worker", "" if times is None else f"{times:.2f}"),
        ("a step", units.seconds(step_s) if step_s else ""),
        ("waiting for the exchange", f"{_waiting(run):.0%}" if step_s else ""),
        ("training", units.duration(run.seconds)),
    ]
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in found if value)
    return f'<dl class="tiles">{tiles}</dl>'


def _rate(run: History) -> str:
    return rate(run.samples_per_second) if run.samples_per_second else ""


def _waiting(run: History) -> float:
    total = sum(run.step_s.values())
    return run.step_s["exchange"] / total if total else 0.0


def _bound_sentence(runs: Sequence[History]) -> str:
    if len(runs) > 1 or not runs[0].spent.bound:
        return ""
    advice = f" ({runs[0].told.advice})" if runs[0].told.advice else ""
    return f'<p class="bound">The run is {escape(runs[0].spent.bound + advice)}.</p>'


def _summary(comparison: Comparison, run: History, label: str) -> list[str]:
    target = comparison.target()
    cells = [
        label,
        run.state_in_words,
        "" if run.accuracy is None else f"{run.accuracy:.2%}",
        _rate(run),
        _times(comparison, run),
        _error(comparison, run),
        units.duration(run.seconds),
        f"{_waiting(run):.0%}",
        run.spent.bound.partition(",")[0],
    ]
    if target is not None:
        reached = run.first_reached(target)
        cells.append("" if reached is None else units.duration(reached))
    return cells


def _learning(comparison: Comparison) -> str:
    """Loss and accuracy, by time and by samples."""
    if not any(run.steps.step or run.tests for run in comparison.runs):
        return ""
    longest_s = max((run.steps.seconds[-1] for run in comparison.runs if run.steps.step), default=0.0)
    by_time, one_s = charts.time_axis(longest_s, "training")
    by_samples = Axis(f"samples{_whose(comparison)}", charts.count, has_zero=True)
    drawn = []
    for name, x, along in (
        ("time", by_time, lambda at: at.seconds / one_s),
        ("samples", by_samples, lambda at: at.samples),
    ):
        drawn.append(f'<div class="by-{name}">{cards(*_learning_charts(comparison, x, along, name, one_s))}</div>')
    choice = "".join(
        f'<input type="radio" name="by" id="by-{name}"{" checked" if name == "time" else ""}>'
        f'<label for="by-{name}">by {name}</label>'
        for name in ("time", "samples")
    )
    choice = f'<fieldset class="choice"><legend class="hidden">Draw curves by</legend>{choice}</fieldset>'
    about = "Lines are the loss of training, as means over neighbouring steps. Marks are tests."
    return _section(
        "Learning", about, choice, _legend(comparison), *drawn, _curves_table(comparison), _tests_table(comparison)
    )


Along = Callable[..., float]


def _learning_charts(comparison: Comparison, x: Axis, along: Along, name: str, one_s: float) -> Iterator[str]:
    losses, accuracies, rates = [], [], []
    for slot, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True)):
        steps = run.steps
        at, scale = (steps.seconds, one_s) if name == "time" else (steps.samples, 1.0)
        losses.append(Series(label, slot, [(a / scale, y) for a, y in binned(at, steps.loss, _POINTS)]))
        tested = [(along(test), test.loss) for test in run.tests if test.loss is not None]
        losses.append(Series(f"{label}, tests", slot, tested, is_marks=True))
        points = [(along(test), 100 * value) for test, value in run.accuracies]
        accuracies += [Series(label, slot, points), Series(label, slot, points, is_marks=True)]
        rates.append(Series(label, slot, [(a / scale, y) for a, y in _rates(steps, at)]))
    yield curves("Loss", x, Axis("loss", lambda v: f"{v:.3g}", may_be_log=True), losses)
    if any(series.points for series in accuracies):
        yield curves("Accuracy of tests", x, Axis("accuracy", lambda v: f"{v:g} %"), accuracies)
    if any(speed for series in rates for _, speed in series.points):
        yield curves(
            f"Samples per second{_whose(comparison)}", x, Axis("samples/s", charts.count, has_zero=True), rates
        )


def _whose(comparison: Comparison) -> str:
    """Whose samples lines count, if not those of all workers."""
    own = [name for run, name in zip(comparison.runs, comparison.labels, strict=True) if run.is_of_worker_0]
    return "" if not own else " of worker 0" + ("" if len(own) == len(comparison.runs) else f" in {', '.join(own)}")


def _rates(steps: Steps, at: Sequence[float]) -> list[tuple[float, float]]:
    """Speed over stretches of the run, without the first step."""
    size = max(1, len(at) // (_POINTS // 3))
    return [(at[last], steps.rate(last - size, last)) for last in range(size, len(at), size)]


def _legend(comparison: Comparison) -> str:
    if len(comparison.runs) == 1:
        return ""
    return legend([(label, slot) for slot, label in enumerate(comparison.labels)])


def _curves_table(comparison: Comparison) -> str:
    rows = []
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        steps, before = run.steps, (0.0, 0.0)
        ends = zip(
            *(binned(x, steps.loss, _TABLE_ROWS) for x in (steps.step, steps.samples, steps.seconds)), strict=True
        )
        for (step, loss), (samples, _), (seconds, _) in ends:
            speed = (samples - before[0]) / (seconds - before[1]) if seconds > before[1] else 0.0
            before = samples, seconds
            counted = [f"{samples:,.0f}", rate(speed)] if samples else ["", ""]
            rows.append([label, f"{step:,.0f}", units.duration(seconds), number(loss), *counted])
    head = ["run", "step", "time", "loss", f"samples{_whose(comparison)}", "samples/s"]
    return table("Curves as a table", head, rows)


def _tests_table(comparison: Comparison) -> str:
    rows = []
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        step = max(1, -(-len(run.tests) // _TABLE_ROWS))
        for test in run.tests[::-step][::-1]:
            accuracy, loss = output_named(test.outputs, "accuracy"), test.loss
            cells = ["" if accuracy is None else f"{accuracy:.2%}", "" if loss is None else number(loss)]
            rows.append([label, f"{test.step:,}", f"{test.samples:,.0f}", units.duration(test.seconds), *cells])
    samples = f"samples{_whose(comparison)}"
    return table("Tests as a table", ["run", "step", samples, "time", "accuracy", "loss"], rows)


def _speed(comparison: Comparison) -> str:
    """Speed-up by workers, with the predicted curves."""
    foreseen = comparison.foreseen
    measured = [(run, comparison.speed_up(run)) for run in comparison.runs]
    known = [(run, times) for run, times in measured if times is not None and run.workers]
    if not known or (foreseen is None and len({run.workers for run, _ in known}) < 2):
        return ""
    strategies = list(dict.fromkeys(run.strategy for run, _ in known))
    series = [
        Series(f"{name}, predicted", slot, foreseen.curve(name), is_foreseen=True)
        for slot, name in enumerate(strategies)
        if foreseen is not None
    ]
    for slot, name in enumerate(strategies):
        points = [(float(run.workers or 1), times) for run, times in known if run.strategy == name]
        series.append(Series(f"{name}, measured", slot, points, is_marks=True))
    most = max(point[0] for one in series for point in one.points)
    workers = sorted({point[0] for one in series for point in one.points})
    series.insert(0, Series("ideal", 0, [(1.0, 1.0), (most, most)], is_ideal=True))
    x = Axis("workers", lambda value: f"{value:g}", has_zero=True, ticks=_spread(workers))
    chart = curves("Speed-up against one worker", x, Axis("times", lambda value: f"{value:g}", has_zero=True), series)
    source = f"Lines are predicted, for {escape(foreseen.cluster)}. " if foreseen is not None else ""
    about = f"{source}Marks are measured. The thin line is ideal."
    labels = [(name, slot) for slot, name in enumerate(strategies)]
    rows = [_speed_row(comparison, run, label) for run, label in zip(comparison.runs, comparison.labels, strict=True)]
    head = ["run", "samples/s", "times one worker", "predicted samples/s", "predicted with", "against predicted"]
    return _section("Speed-up", about, legend(labels), beside(chart, table("Speed-up", head, rows, is_open=True)))


def _spread(workers: Sequence[float]) -> Sequence[float]:
    """Numbers of workers whose names do not run into each other."""
    kept: list[float] = []
    for one in reversed(workers):
        if not kept or kept[-1] - one >= workers[-1] / 12:
            kept.append(one)
    return kept


def _speed_row(comparison: Comparison, run: History, label: str) -> list[str]:
    row = _foreseen(comparison, run)
    predicted = ["", ""] if row is None else [rate(row.samples_per_s), row.settings]
    return [label, _rate(run), _times(comparison, run), *predicted, _error(comparison, run)]


def _times(comparison: Comparison, run: History) -> str:
    times = comparison.speed_up(run)
    return "" if times is None else f"{times:.2f}"


def _error(comparison: Comparison, run: History) -> str:
    error = comparison.error(run)
    return "" if error is None else f"{error:+.0%}"


def _foreseen(comparison: Comparison, run: History) -> Prediction | None:
    return None if comparison.foreseen is None else comparison.foreseen.of(run)


def _step(comparison: Comparison) -> str:
    """The parts of a step, measured and predicted."""
    bars = []
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        if run.step_s:
            bars.append((label, {kind: run.step_s[kind] for kind in _MEASURED}))
        row = _foreseen(comparison, run)
        if row is not None:
            kinds = ("forward", "backward", "update", "slower", "exchange")
            settings = f" ({row.settings})" if row.settings else ""
            bars.append((f"{label}, predicted{settings}", {kind: getattr(row, f"{kind}_s") for kind in kinds}))
    if not bars:
        return ""
    used = {kind: name for kind, name in KINDS.items() if any(parts.get(kind) for _, parts in bars)}
    rows = [
        [
            label,
            *(units.seconds(parts[kind]) if kind in parts else "" for kind in used),
            units.seconds(sum(parts.values())),
        ]
        for label, parts in bars
    ]
    about = "Means over the steps of worker 0. Exchanges behind the computation take no time here."
    as_table = table("The step as a table", ["run", *used.values(), "step"], rows)
    return _section("A step", about, charts.kinds_legend(used), charts.stacked("A mean step", bars, KINDS), as_table)


def _timelines(comparison: Comparison) -> str:
    drawn, found = [], set()
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        events = read_events(run.files.trace)
        drawn.append(charts.timeline(label, events, KINDS, _STEPS_OF_TIMELINE))
        found |= {event["cat"].replace(" ", "-") for event in events}
    if not any(drawn):
        return ""
    used = {kind: name for kind, name in KINDS.items() if kind in found}
    about = "The work of all ranks on one clock. Below each rank are its exchanges behind the computation."
    return _section("Timeline", about, charts.kinds_legend(used), *drawn)


def _staleness(comparison: Comparison) -> str:
    numbered = enumerate(zip(comparison.labels, comparison.runs, strict=True))
    found = [(label, slot, run.staleness) for slot, (label, run) in numbered if sum(run.staleness)]
    if not found:
        return ""
    last = max(index for _, _, counts in found for index, value in enumerate(counts) if value)
    size = max(len(counts) for _, _, counts in found)
    labels = [f"{index}" + ("+" if index == size - 1 else "") for index in range(last + 1)]
    groups = []
    for label, slot, counts in found:
        padded = [*counts, *[0] * size][: last + 1]
        groups.append((label, slot, [one / sum(counts) for one in padded]))
    chart = charts.columns("Share of updates by staleness", "updates of others in between", groups, labels)
    rows = [[label, *(f"{share:.1%}" for share in shares)] for label, _, shares in groups]
    about = "Between a worker's look at the center and its own update come updates of others. Few are better."
    names = [(label, slot) for label, slot, _ in groups]
    looks = legend(names) if len(comparison.runs) > 1 else ""
    return _section("Staleness", about, looks, beside(chart, table("Staleness", ["run", *labels], rows, is_open=True)))


def _traffic(comparison: Comparison) -> str:
    """Bytes and memory, as the result has them."""
    rows = []
    for run, label in zip(comparison.runs, comparison.labels, strict=True):
        result, row = run.result, _foreseen(comparison, run)
        if result is None:
            continue
        sent = result.bytes_sent_per_step
        memory = max(result.peak_memory_bytes, default=0)
        buckets = ", ".join(map(units.size, result.bucket_sizes_bytes))
        predicted = units.size(row.bytes_per_step) if row is not None else ""
        num_steps = result.samples / max(1, result.effective_batch)  # of this process, if the run was resumed
        # Where workers do not wait, the steps of the run may be those of one of them.
        of_all = units.size(sent * (sum(one.steps for one in result.by_worker) or result.steps * result.workers))
        speed = f"{units.size(sent * num_steps / result.seconds)}/s" if result.seconds else ""
        rows.append([label, units.size(sent), predicted, of_all, speed, buckets, units.size(memory) if memory else ""])
    head = ["run", "sent a step", "predicted, busiest worker", "sent by all", "a worker sends", "buckets"]
    head.append("memory of a worker")
    about = "Bytes of a step are the mean of all workers. Those that all have sent are of the whole run."
    return _section("Bytes", about, table("Bytes", head, rows, is_open=True))


def _settings(comparison: Comparison) -> str:
    facts = [facts_of(run) for run in comparison.runs]
    names = dict.fromkeys(name for one in facts for name in one)
    rows = [[name, *_values(name, facts)] for name in names]
    rows = [row for row in rows if any(row[1:])]
    apart = [row for row in rows if len(set(row[1:])) > 1 or len(facts) == 1]
    same = [row[:2] for row in rows if row not in apart]
    own = table("Settings", ["setting", *comparison.labels], apart, is_open=True)
    shared = table("Settings that all runs have in common", ["setting", "all runs"], same)
    return _section("Settings", "Given to the run, or chosen by it.", own, shared)


def _values(name: str, facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Of all runs. A strategy's switch that is off is in no configuration."""
    found = [one.get(name, "") for one in facts]
    return [one or "no" for one in found] if "yes" in found else found
