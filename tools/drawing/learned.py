"""Accuracy against samples and against time, from the curves that `make bench-learning` keeps."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drawing.svg import Picture

CURVES = Path("docs/pictures/learning.json")
_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT, _PANEL = 720.0, 56.0, 190.0, 40.0, 230.0, 320.0
_STYLES = tuple((style, dash) for dash in ("", "6 3", "2 3") for style in "adefbc")
Curves = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Panel:
    """The benchmark whose curves it shows, and what its axis counts in, `unit` of it a mark."""

    benchmark: str
    title: str
    words: str
    per: float = 1.0


PANELS = (
    Panel("learning", "By samples: four workers, CIFAR-10 quick", "thousands of samples", 1000),
    Panel("learning-time", "By time: two workers against one", "seconds of training"),
    Panel("learning-slow", "By time: one of four workers at a quarter of the speed (simulated)", "seconds, simulated"),
)


@dataclass(frozen=True)
class _Scale:
    """Both axes are linear, from the lowest to the highest value."""

    top: float
    most: float
    lowest: float
    highest: float

    def at(self, x: float, value: float) -> tuple[float, float]:
        width = _WIDTH - _LEFT - _RIGHT
        share = (max(value, self.lowest) - self.lowest) / (self.highest - self.lowest)
        return _LEFT + width * x / self.most, self.top + _HEIGHT * (1 - share)


def drawn(root: Path) -> str:
    kept = json.loads((root / CURVES).read_text(encoding="utf-8"))
    panels = [panel for panel in PANELS if kept.get(panel.benchmark)]
    told = " ".join(f"{panel.title}: {_ends(kept[panel.benchmark])}." for panel in panels)
    picture = Picture(_WIDTH, _TOP + _PANEL * len(panels), "Accuracy of strategies on the way (measured)", told)
    picture.text(16, 27, "Accuracy on the way, means over the seeds", "text bold", size=16)
    for index, panel in enumerate(panels):
        _draw(picture, _TOP + index * _PANEL, panel, kept[panel.benchmark])
    return picture.written()


def _ends(curves: Curves) -> str:
    return ", ".join(f"{name} ends at {points[-1][1]:.3f}" for name, points in curves.items())


def _draw(picture: Picture, top: float, panel: Panel, curves: Curves) -> None:
    picture.text(16, top + 16, panel.title, size=14)
    values = [value for points in curves.values() for _, value in points]
    lowest, highest = math.floor(20 * min(values)) / 20, math.ceil(20 * max(values)) / 20
    most = max(x for points in curves.values() for x, _ in points)
    place = _Scale(top + 30, most, lowest, highest)
    for mark in range(round(20 * lowest), round(20 * highest) + 1):
        picture.line([place.at(0, mark / 20), place.at(most, mark / 20)], "rule", 0.5)
        picture.text(_LEFT - 8, place.at(0, mark / 20)[1] + 4, f"{mark / 20:.2f}", "soft", size=12, anchor="end")
    for part in range(5):
        x = most * part / 4
        shown = f"{x / panel.per:,.0f}" + (f" {panel.words}" if part == 4 else "")
        picture.text(place.at(x, lowest)[0], top + 30 + _HEIGHT + 16, shown, "soft", size=12, anchor="middle")
    lowest_words = -math.inf
    ends = sorted(zip(curves.items(), _STYLES, strict=False), key=lambda one: -one[0][1][-1][1])
    for (name, points), (style, dash) in ends:
        picture.line([place.at(x, value) for x, value in points], f"l{style}", 2.0, dash)
        lowest_words = max(place.at(most, points[-1][1])[1], lowest_words + 15)
        picture.text(_WIDTH - _RIGHT + 12, lowest_words + 4, f"{name} {points[-1][1]:.3f}", style, size=12)
