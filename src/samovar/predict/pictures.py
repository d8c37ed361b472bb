"""Pictures of a prediction by matplotlib, as PNG and SVG: speed-up, a step, price, and learning."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from samovar.core.errors import InputError
from samovar.core.modules import Missing
from samovar.predict.learning import Taught
from samovar.predict.prediction import Question, verdicts
from samovar.report.comparison import Prediction

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise Missing.of("matplotlib").as_error() from error

# Okabe and Ito's colours, which most people tell apart; a line's dashes tell more than seven.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", ":")
_PARTS = (
    ("forward_s", "forward", "#0072B2"),
    ("backward_s", "backward", "#56B4E9"),
    ("update_s", "update", "#009E73"),
    ("slower_s", "waiting for slower workers", "#999999"),
    ("exchange_s", "waiting for the exchange", "#D55E00"),
)
_FORMATS = ("png", "svg")
_DOTS_PER_INCH = 150


def draw(question: Question, found: Sequence[Prediction], learned: Sequence[Taught], folder: Path) -> Iterator[Path]:
    """Write the pictures into the folder, and return their paths. Raises InputError if it cannot be written."""
    pictures = {"speed-up": _speed_up(question, found), "step": _step(question, found)}
    if any(one.price_per_million is not None for one in found):
        pictures["price"] = _price(question, found)
    if learned:
        pictures["learning"] = _learning(question, learned)
    if any(one.learned.staleness for one in learned):
        pictures["staleness"] = _staleness(question, learned)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in pictures.items():
            for kind in _FORMATS:
                path = folder / f"{name}.{kind}"
                figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Date": None} if kind == "svg" else None)
                yield path
    except OSError as error:
        raise InputError(f"--pictures {folder}: cannot be written: {error.strerror}; give another folder") from error


def _figure(question: Question, title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(f"{title} (simulated)", fontsize=13)
    about = f"{question.profile.net} on {question.cluster.title}".replace("$", r"\$")  # which would begin a formula
    axes.set_title(about, fontsize=9, color="#555555", wrap=True)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _line(index: int) -> dict[str, str]:
    """A line that looks like no other."""
    colour, dash = _COLOURS[index % len(_COLOURS)], _DASHES[index // len(_COLOURS) % len(_DASHES)]
    return {"color": colour, "linestyle": dash}


def _lines(question: Question, found: Sequence[Prediction], axes: Any, field: str) -> None:
    for index, verdict in enumerate(verdicts(found)):
        rows = [one for one in found if one.strategy == verdict.strategy]
        values = [getattr(one, field) for one in rows]
        axes.plot([one.workers for one in rows], values, **_line(index), marker="o", ms=3.5, label=verdict.strategy)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(question.workers, [str(number) for number in question.workers])
    axes.set_xlabel("workers")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _speed_up(question: Question, found: Sequence[Prediction]) -> Figure:
    figure, axes = _figure(question, "Speed-up against one worker")
    axes.plot(question.workers, question.workers, color="#bbbbbb", linewidth=4, zorder=0, label="ideal")
    _lines(question, found, axes, "speed_up")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("times one worker")
    return figure


def _price(question: Question, found: Sequence[Prediction]) -> Figure:
    figure, axes = _figure(question, "Price of a million samples")
    _lines(question, found, axes, "price_per_million")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel(question.cluster.node.currency)
    return figure


def _learning(question: Question, learned: Sequence[Taught]) -> Figure:
    figure, axes = _figure(question, f"A small net learns, {learned[-1].workers} workers")
    longest_s = max(one.learned.points[-1].steps * one.step_s for one in learned)
    name, one_s = ("hours", 3600) if longest_s > 2 * 3600 else ("minutes", 60)
    for index, one in enumerate(learned):
        times = [point.steps * one.step_s / one_s for point in one.learned.points]
        axes.plot(times, [point.loss for point in one.learned.points], **_line(index), label=one.strategy)
    axes.set_yscale("log")
    axes.set_xlabel(f"{name} on the cluster")
    axes.set_ylabel("loss of the test digits")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _staleness(question: Question, learned: Sequence[Taught]) -> Figure:
    figure, axes = _figure(question, f"Staleness of updates, {learned[-1].workers} workers")
    for index, one in enumerate(learned):
        counts = one.learned.staleness
        if total := sum(counts.values()):
            shares = [counts.get(number, 0) / total for number in range(max(counts) + 1)]
            axes.plot(range(len(shares)), shares, **_line(index), marker="o", ms=3.5, label=one.strategy)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("updates of others before one's own")
    axes.set_ylabel("of all updates")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _step(question: Question, found: Sequence[Prediction]) -> Figure:
    most = question.workers[-1]
    figure, axes = _figure(question, f"A step with {most} workers")
    rows = {one.strategy: one for one in found if one.workers == most}
    names = [one.strategy for one in verdicts(found)]
    left = [0.0] * len(names)
    for field, label, colour in _PARTS:
        values = [1e3 * getattr(rows[name], field) for name in names]
        axes.barh(names, values, left=left, color=colour, label=label)
        left = [before + value for before, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    shown = sorted(left)[len(left) // 2] * 3
    if max(left) > shown:  # the slowest would leave the others too small to see
        axes.set_xlim(0, shown)
        for place, total in enumerate(left):
            if total > shown:
                axes.annotate(f"{total:,.0f} ms ", (shown, place), ha="right", va="center", color="white", fontsize=8)
    axes.set_xlabel("milliseconds")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, -0.3), ncol=3, frameon=False)
    return figure
