"""Pictures and tables of a report as SVG and HTML, coloured by page.css: curves, bars, and a timeline of ranks."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from samovar.core import units
from samovar.report.timeline import Event

SLOTS: Final = 6  # colours of lines in page.css
_WIDTH, _HEIGHT = 380.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 10.0, 12.0, 40.0
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2", "12 4")
_DECADES_OF_LOG = 1.5
_LARGEST: Final = 1e300  # an axis needs room above it
_MOST_RANKS, _LEAST_SHARE, _OUTLINED = 16, 2e-4, 12
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line with the look of number `slot`; only marks with `is_marks`, thin and without colour if `is_ideal`."""

    label: str
    slot: int
    points: Sequence[Point]
    is_marks: bool = False
    is_foreseen: bool = False
    is_ideal: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The name of an axis, and how its values are written; from zero with `has_zero`."""

    name: str
    written: Callable[[float], str]
    has_zero: bool = False
    may_be_log: bool = False
    ticks: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    is_log: bool
    ticks: Sequence[float]

    def place(self, value: float) -> float:
        """From 0 to 1."""
        low, high, value = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return (value - low) / (high - low)


def count(value: float) -> str:
    """Short: 1.2k, 34M."""
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def is_drawable(value: float) -> bool:
    """Whether an axis can reach it."""
    return abs(value) <= _LARGEST


def time_axis(longest_s: float, what: str) -> tuple[Axis, float]:
    """An axis of times in the unit that fits, and that unit in seconds."""
    unit, one_s = next((u for u in (("hours", 3600.0), ("minutes", 60.0)) if longest_s > 2 * u[1]), ("seconds", 1.0))
    return Axis(f"{unit} of {what}", lambda value: f"{value:g}", has_zero=True), one_s


def curves(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """A chart of lines, or nothing to see as a sentence. Points that are not finite or far too large are left out."""
    shown = [(one, [p for p in one.points if all(map(is_drawable, p))]) for one in series]
    shown = [(one, points) for one, points in shown if points]
    if not shown:
        return f'<figure class="chart"><figcaption>{escape(title)}</figcaption><p class="none">no figures</p></figure>'
    across = _scale(x, [point[0] for _, points in shown for point in points])
    up = _scale(y, [point[1] for _, points in shown for point in points])
    said = "; ".join(f"{one.label}: {y.written(points[0][1])} to {y.written(points[-1][1])}" for one, points in shown)
    about = f"{title}, by {x.name}. {said}"
    body = _grid(x, y, across, up) + "".join(_drawn(one, points, across, up, y.written) for one, points in shown)
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(about)}">{body}</svg></figure>'
    )


def _scale(axis: Axis, values: Sequence[float]) -> _Scale:
    low, high = min(values), max(values)
    is_log = axis.may_be_log and low > 0 and math.log10(high / low) > _DECADES_OF_LOG
    if is_log:
        low, high = 10 ** (math.floor(2 * math.log10(low)) / 2), 10 ** (math.ceil(2 * math.log10(high)) / 2)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [10.0**power for power in powers if low * 0.999 <= 10.0**power <= high * 1.001]
        return _Scale(low, high, True, ticks)
    low = 0.0 if axis.has_zero else low
    if high - low <= 1e-12 * abs(low):  # equal, but for rounding
        high = low + (abs(low) or 1.0)
    step = _nice((high - low) / 4.5)
    last = math.ceil(high / step - 1e-9) * step if axis.ticks is None else high
    first = math.floor(low / step + 1e-9) * step
    ticks = [first + index * step for index in range(round((last - first) / step) + 1)]
    return _Scale(first, last, False, axis.ticks or ticks)


def _nice(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(one for one in (1, 2, 2.5, 5, 10) if one * power >= raw * 0.999)


def _at(point: Point, across: _Scale, up: _Scale) -> Point:
    x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * across.place(point[0])
    return x, _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * up.place(point[1])


def _grid(x: Axis, y: Axis, across: _Scale, up: _Scale) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in up.ticks:
        at = _at((across.low, tick), across, up)[1]
        parts.append(f'<path class="grid" d="M{_LEFT:g} {at:.1f}H{right:g}"/>')
        parts.append(f'<text x="{_LEFT - 6:g}" y="{at + 4:.1f}" text-anchor="end">{escape(y.written(tick))}</text>')
    for tick in across.ticks:
        at = _at((tick, up.low), across, up)[0]
        parts.append(f'<path class="grid" d="M{at:.1f} {bottom:g}v4"/>')
        side = "end" if at > right - 12 else "middle"
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17:g}" text-anchor="{side}">{escape(x.written(tick))}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT:g} {bottom:g}H{right:g}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="name" x="{middle:g}" y="{_HEIGHT - 6:g}" text-anchor="middle">{escape(x.name)}</text>')
    return "".join(parts)


def _drawn(series: Series, points: Sequence[Point], across: _Scale, up: _Scale, written: Callable[[float], str]) -> str:
    places = [_at(point, across, up) for point in points]
    look = "ideal" if series.is_ideal else f"s{series.slot % SLOTS}"
    if series.is_marks:
        names = [escape(f"{series.label}: {written(point[1])}") for point in points]
        marks = "".join(mark(series.slot, place, name=name) for place, name in zip(places, names, strict=True))
        return f'<g class="mark {look}">{marks}</g>'
    style = f"line {look}" + (" foreseen" if series.is_foreseen else "")
    way = "L".join(f"{px:.1f} {py:.1f}" for px, py in places)
    return f'<path class="{style}" stroke-dasharray="{_DASHES[_shape(series.slot)]}" d="M{way}"/>'


def _shape(slot: int) -> int:
    """The dashes and the marks of a line; when colours begin again, each has others: 36 lines differ."""
    return (slot + slot // SLOTS) % SLOTS


def mark(slot: int, place: Point, size: float = 4.5, name: str = "") -> str:
    """Circle, square, triangle, diamond, cross or bar: what tells lines apart without colours."""
    x, y, s = *place, size
    ways = (
        f"M{x - s:.1f} {y:.1f}a{s} {s} 0 1 0 {2 * s} 0a{s} {s} 0 1 0 {-2 * s} 0z",
        f"M{x - s:.1f} {y - s:.1f}h{2 * s}v{2 * s}h{-2 * s}z",
        f"M{x:.1f} {y - s * 1.2:.1f}l{s * 1.2} {s * 2.2}h{-2.4 * s}z",
        f"M{x:.1f} {y - s * 1.3:.1f}l{s * 1.3} {s * 1.3}l{-1.3 * s} {s * 1.3}l{-1.3 * s} {-1.3 * s}z",
        f"M{x - s:.1f} {y - s / 3:.1f}h{2 * s}v{s * 0.7}h{-2 * s}z",
        f"M{x - s / 3:.1f} {y - s:.1f}h{s * 0.7}v{2 * s}h{-0.7 * s}z",
    )
    return f'<path d="{ways[_shape(slot)]}"><title>{name}</title></path>'


def legend(labels: Sequence[tuple[str, int]]) -> str:
    """Names of lines with their looks."""
    items = []
    for label, slot in labels:
        line = f'<path class="line s{slot % SLOTS}" stroke-dasharray="{_DASHES[_shape(slot)]}" d="M1 8H35"/>'
        dot = f'<g class="mark s{slot % SLOTS}">{mark(slot, (18.0, 8.0), 4.0)}</g>'
        items.append(f'<li><svg viewBox="0 0 36 16" width="36" height="16" aria-hidden="true">{line}{dot}</svg>')
        items.append(f"{escape(label)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def kinds_legend(kinds: Mapping[str, str]) -> str:
    """Kinds of work, by class, with their names."""
    items = "".join(f'<li><span class="key {kind}"></span>{escape(name)}</li>' for kind, name in kinds.items())
    return f'<ul class="legend">{items}</ul>'


def stacked(title: str, rows: Sequence[tuple[str, Mapping[str, float]]], kinds: Mapping[str, str]) -> str:
    """Bars of seconds, one below the other: each is divided by kind."""
    longest = max((sum(parts.values()) for _, parts in rows), default=0.0) or 1.0
    bars = []
    for label, parts in rows:
        total = sum(parts.values())
        said = ", ".join(f"{kinds[kind]} {units.seconds(seconds)}" for kind, seconds in parts.items() if seconds > 0)
        pieces = "".join(
            f'<span class="{kind}" style="width:{100 * seconds / longest:.3f}%" '
            f'title="{escape(kinds[kind])}: {units.seconds(seconds)}"></span>'
            for kind, seconds in parts.items()
            if seconds > 0
        )
        bars.append(
            f'<div class="row"><span class="who">{escape(label)}</span>'
            f'<span class="bar" role="img" aria-label="{escape(said)}">{pieces}</span>'
            f'<span class="sum">{units.seconds(total)}</span></div>'
        )
    return f'<figure class="bars"><figcaption>{escape(title)}</figcaption>{"".join(bars)}</figure>'


def columns(title: str, x_name: str, groups: Sequence[tuple[str, int, Sequence[float]]], labels: Sequence[str]) -> str:
    """A histogram of shares, side by side for each group (name, look, shares)."""
    up = _scale(Axis("", str, has_zero=True), [share for _, _, shares in groups for share in shares])
    across = _Scale(0.0, float(len(labels)), False, [])
    grid = _grid(Axis(x_name, str), Axis("", lambda share: f"{share:.0%}"), across, up)
    width = (_WIDTH - _LEFT - _RIGHT) / len(labels)
    one = 0.8 * width / len(groups)
    bottom, parts = _HEIGHT - _BOTTOM, [grid]
    for index, label in enumerate(labels):
        middle = _LEFT + (index + 0.5) * width
        parts.append(f'<text x="{middle:.1f}" y="{bottom + 17:g}" text-anchor="middle">{label}</text>')
        for number, (_, slot, shares) in enumerate(groups):
            top = _at((0.0, shares[index]), across, up)[1]
            left = middle + (number - len(groups) / 2) * one
            shape = f'x="{left:.1f}" y="{top:.1f}" width="{one:.1f}" height="{bottom - top:.1f}"'
            parts.append(f'<rect class="column s{slot % SLOTS}" {shape}/>')
    said = ". ".join(f"{name}: " + ", ".join(f"{share:.0%}" for share in shares) for name, _, shares in groups)
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" '
        f'role="img" aria-label="{escape(f"{title}: {said}")}">{"".join(parts)}</svg></figure>'
    )


def timeline(title: str, spans: Sequence[Event], kinds: Mapping[str, str], most_steps: int) -> str:
    """Some steps from the middle of a trace: what each rank did, and below it exchanges behind the computation."""
    steps = sorted({span["name"] for span in spans if span["cat"] == "step"}, key=lambda name: int(name.split()[1]))
    first = (len(steps) - most_steps) // 2 if len(steps) > most_steps else 0
    names = steps[first : first + most_steps]
    chosen = [span for span in spans if span["cat"] == "step" and span["name"] in names]
    start = min((span["ts"] for span in chosen), default=0.0)
    stop = max((span["ts"] + span["dur"] for span in chosen), default=0.0)
    if stop <= start:
        return ""
    ranks = sorted({span["pid"] for span in spans})
    drawn = [span for span in spans if span["ts"] < stop and span["ts"] + span["dur"] > start]
    rows = [_rank_row(rank, drawn, start, stop) for rank in ranks[:_MOST_RANKS]]
    left_out = f"; the first {_MOST_RANKS} of {len(ranks)} ranks" if len(ranks) > _MOST_RANKS else ""
    caption = f"{title}: {names[0]}" + (f" to {names[-1].removeprefix('step ')}" if len(names) > 1 else "") + left_out
    said = f"{caption}, {units.seconds((stop - start) * 1e-6)} together. Rows: {', '.join(kinds.values())}"
    ticks = "".join(
        f'<span style="left:{25 * index}%">{units.seconds((stop - start) * 1e-6 * index / 4)}</span>'
        for index in range(5)
    )
    return (
        f'<figure class="timeline"><figcaption>{escape(caption)}</figcaption>'
        f'<div class="scroll" tabindex="0" role="img" aria-label="{escape(said)}"><div class="wide">{"".join(rows)}'
        f'<div class="ticks" aria-hidden="true">{ticks}</div></div></div></figure>'
    )


def _rank_row(rank: int, spans: Sequence[Event], start: float, stop: float) -> str:
    """A rank's work above, and what it had in flight below."""
    shapes, edges = [], []
    for span in spans:
        left, right = max(span["ts"], start), min(span["ts"] + span["dur"], stop)
        if span["pid"] != rank or right - left < _LEAST_SHARE * (stop - start):
            continue
        x, width = 1000 * (left - start) / (stop - start), 1000 * (right - left) / (stop - start)
        if span["cat"] == "step":
            edges.append(f'<path class="edge" d="M{x:.2f} 0V30"/>')
            continue
        kind, is_below = span["cat"].replace(" ", "-"), span["cat"] == "in flight"
        name = escape(f"{span['name']}, {units.seconds(span['dur'] * 1e-6)}")
        kind += "" if width > _OUTLINED else " slim"
        place = f'x="{x:.2f}" width="{width:.2f}" y="{21 if is_below else 1}" height="{8 if is_below else 18}"'
        shapes.append(f'<rect class="{kind}" {place}><title>{name}</title></rect>')
    drawn = "".join(shapes) + "".join(edges)
    svg = f'<svg viewBox="0 0 1000 30" preserveAspectRatio="none">{drawn}</svg>'
    return f'<div class="track"><span class="who">rank {rank}</span>{svg}</div>'


def cards(*charts: str) -> str:
    shown = [chart for chart in charts if chart]
    return f'<div class="cards">{"".join(shown)}</div>' if shown else ""


def beside(chart: str, table: str) -> str:
    return f'<div class="beside">{chart}<div>{table}</div></div>'


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, is_open: bool = False) -> str:
    """A table whose first column names the rows, without columns that are empty; folded up, if it repeats a picture."""
    used = [index for index in range(len(head)) if any(row[index] for row in rows)]
    if not used:
        return ""
    first = "".join(f'<th scope="col">{escape(head[index])}</th>' for index in used)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(row[index]) or '–'}</td>" for index in used[1:])
        + "</tr>"
        for row in rows
    )
    made = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    return made if is_open else f"<details><summary>{escape(caption)}</summary>{made}</details>"
