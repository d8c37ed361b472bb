"""Simulated speed-up curves: how many steps all workers make a second, against one worker alone."""

import math
from dataclasses import dataclass

from drawing.simulated import Cluster, Setting, run
from drawing.svg import Picture
from samovar.core.machine import Link

# LeNet with a batch of 64: its bytes, and the seconds of a step on one thread as `make bench` measured them.
NUM_FLOATS, STEP_S, JITTER = 431_080, 0.0146, 0.1
LINKS = {"1 Gbit/s": Link(5e-5, 125e6), "10 Gbit/s": Link(5e-5, 1.25e9)}
WORLD_SIZES = (1, 2, 4, 8, 16)
_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT, _PANEL = 640.0, 56.0, 150.0, 76.0, 220.0, 272.0


@dataclass(frozen=True)
class Curve:
    """A strategy with its defaults, and enough steps for some exchanges."""

    name: str
    num_steps: int
    style: str
    dash: str = ""


CURVES = (
    Curve("diloco", 100, "e"),
    Curve("sync-easgd", 48, "d"),
    Curve("local-sgd", 48, "f"),
    Curve("sync", 24, "a"),
    Curve("shm-easgd", 48, "b", "6 3"),
    Curve("async-sgd", 24, "c", "6 3"),
)


def speed_up(curve: Curve, link: Link, world_size: int) -> float:
    """Steps per second of all workers, against workers that exchange with nobody."""
    cluster = Cluster((1.0,) * world_size, link, STEP_S, NUM_FLOATS, JITTER)
    workers = run(Setting(curve.name, collective="ring"), cluster, curve.num_steps, watched=False)
    return sum(worker.computed_s / worker.ends_s[-1] for worker in workers)


def drawn() -> str:
    found = {
        link: {curve.name: [speed_up(curve, LINKS[link], size) for size in WORLD_SIZES] for curve in CURVES}
        for link in LINKS
    }
    told = " ".join(
        f"{link}, 16 workers: {', '.join(f'{name} {values[-1]:.1f}' for name, values in curves.items())}."
        for link, curves in found.items()
    )
    title = "Simulated speed-up of LeNet with 1 to 16 workers over two links"
    picture = Picture(_WIDTH, _TOP + _PANEL * len(found) + 16, title, told)
    picture.text(16, 27, "Speed-up by number of workers (simulated)", "text bold", size=16)
    picture.text(16, 48, "LeNet, 64 samples a worker; each worker on its own host, default settings", "soft", size=13)
    for index, (link, curves) in enumerate(found.items()):
        _panel(picture, _TOP + index * _PANEL, link, curves)
    return picture.written()


def _panel(picture: Picture, top: float, link: str, curves: dict[str, list[float]]) -> None:
    picture.text(_LEFT, top + 8, f"links of {link}")
    place = _Scale(top + 20)
    for level in WORLD_SIZES:
        picture.line([place.at(1, level), place.at(16, level)], "rule", 0.5)
        x, y = place.at(1, level)
        picture.text(x - 8, y + 4, f"{level}", "soft", size=12, anchor="end")
        x, _ = place.at(level, 1)
        picture.text(x, top + 20 + _HEIGHT + 14, f"{level}", "soft", size=12, anchor="middle")
    picture.line([place.at(1, 1), place.at(16, 16)], "rule", 1.5, "2 3")
    ends = []
    for curve in CURVES:
        points = [place.at(size, max(0.5, value)) for size, value in zip(WORLD_SIZES, curves[curve.name], strict=True)]
        picture.line(points, f"l{curve.style}", 2.2, curve.dash)
        picture.dots(points, curve.style)
        ends.append((points[-1][1], f"{curve.name} {curves[curve.name][-1]:.1f}", curve.style))
    ends.append((place.at(16, 16)[1], "ideal 16", "soft"))
    lowest = -math.inf
    for y, words, style in sorted(ends):
        lowest = max(y, lowest + 15)
        picture.text(_WIDTH - _RIGHT + 10, lowest + 4, words, style, size=13)


@dataclass(frozen=True)
class _Scale:
    """Both axes are logarithmic; the lower edge is a half."""

    top: float

    def at(self, size: float, value: float) -> tuple[float, float]:
        width = _WIDTH - _LEFT - _RIGHT
        return _LEFT + width * math.log2(size) / 4, self.top + _HEIGHT * (4 - math.log2(value)) / 5
