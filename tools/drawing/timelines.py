"""A timeline for each strategy: four workers, the last one slower, who compute, exchange and wait."""

from dataclasses import dataclass

from drawing.simulated import COMPUTE, EXCHANGE, WAIT, Cluster, Setting, Worker, run
from drawing.svg import Picture
from samovar.core.machine import Link

# A net of 1 MB and a step of 10 ms over links of 2 Gbit/s: an all-reduce takes about half a step.
CLUSTER = Cluster((1.0, 1.05, 1.1, 1.5), Link(5e-5, 250e6), 0.01, 250_000)
UNTIL_S = 0.16
NUM_STEPS = 17  # as many as the fastest can begin until then
_PERIOD = (("sync_period_steps", 4),)
_WIDTH, _LEFT, _RIGHT = 640.0, 86.0, 88.0
_LANE, _BAR, _BEHIND = 30.0, 17.0, 5.0
_STYLES = {COMPUTE: "a", EXCHANGE: "b", WAIT: "c"}
_LEGEND = ((COMPUTE, "computes"), (EXCHANGE, "exchanges"), (WAIT, "waits"))


@dataclass(frozen=True)
class Panel:
    """One run of a picture, and its caption."""

    words: str
    setting: Setting


def _periodic(name: str, words: str = "an exchange every 4 steps", **settings: object) -> Panel:
    return Panel(words, Setting(name, (*_PERIOD, *settings.items())))


STRATEGIES: dict[str, tuple[Panel, ...]] = {
    "sync": (
        Panel("an exchange every step, after the backward pass", Setting("sync", (("overlap", "none"),))),
        Panel(
            "overlap backward: four buckets, behind the backward pass",
            Setting("sync", (("overlap", "backward"), ("bucket_size_bytes", 1)), num_buckets=4),
        ),
    ),
    "local-sgd": (_periodic("local-sgd"),),
    "diloco": (
        _periodic("diloco", "an exchange every 4 steps here, every 50 by default"),
        _periodic("diloco", "streaming: 2 fragments, each taken 1 step later", fragments=2, delay_steps=1),
    ),
    "slowmo": (_periodic("slowmo", "an exchange every 4 steps here, every 12 by default"),),
    "sync-easgd": (
        _periodic("sync-easgd", "overlap none: an exchange every 4 steps", overlap="none"),
        _periodic("sync-easgd", "overlap period, the default: behind the next 4 steps", overlap="period"),
    ),
    "async-sgd": (_periodic("async-sgd", "an exchange every 4 steps here, every step by default"),),
    "async-msgd": (_periodic("async-msgd", "an exchange every 4 steps here, every step by default"),),
    "hogwild-sgd": (_periodic("hogwild-sgd", "an exchange every 4 steps here, every step by default"),),
    "round-robin-easgd": (_periodic("round-robin-easgd", "an exchange every 4 steps, in the order of ranks"),),
    "async-easgd": (
        _periodic("async-easgd", "overlap none, the default: an exchange every 4 steps", overlap="none"),
        _periodic("async-easgd", "overlap period: behind the next 4 steps", overlap="period"),
    ),
    "async-measgd": (_periodic("async-measgd"),),
    "hogwild-easgd": (_periodic("hogwild-easgd"),),
    "shm-easgd": (_periodic("shm-easgd", "a read, then a push behind the next steps, every 4 steps"),),
    "hybrid-easgd": (
        _periodic("hybrid-easgd", "two groups of two: in step inside, at the center between", group_size=2),
    ),
}


def drawn(name: str) -> str:
    """The picture of this strategy."""
    panels = [(panel, run(panel.setting, CLUSTER, NUM_STEPS)) for panel in STRATEGIES[name]]
    height_of_panel = 4 * _LANE + 44
    told = " ".join(_told(panel, workers) for panel, workers in panels)
    title = f"{name}: four workers over {1000 * UNTIL_S:.0f} ms, the last one 1.5 times slower"
    picture = Picture(_WIDTH, 44 + height_of_panel * len(panels) + 34, title, told)
    picture.text(16, 27, name, "text bold", size=16)
    picture.text(_WIDTH - 16, 27, "simulated run of the product's own code", "soft", size=13, anchor="end")
    for index, (panel, workers) in enumerate(panels):
        _panel(picture, 44 + index * height_of_panel, panel.words, workers)
    _legend(picture, 44 + height_of_panel * len(panels) + 16)
    return picture.written()


def _told(panel: Panel, workers: list[Worker]) -> str:
    steps = ", ".join(str(worker.steps_until(UNTIL_S)) for worker in workers)
    waits = ", ".join(f"{1000 * worker.seconds(WAIT, UNTIL_S):.0f}" for worker in workers)
    return f"{panel.words}. Steps of workers 0 to 3: {steps}; they wait {waits} ms."


def _panel(picture: Picture, top: float, words: str, workers: list[Worker]) -> None:
    scale = (_WIDTH - _LEFT - _RIGHT) / UNTIL_S
    picture.text(16, top + 12, words, "soft")
    for lane, worker in enumerate(workers):
        y = top + 22 + lane * _LANE
        picture.text(16, y + 15, f"worker {lane}")
        for kind, style in _STYLES.items():
            spans = worker.during(kind, UNTIL_S)
            inset = 3.0 if kind == WAIT else 0.0
            picture.rectangles([_place(span, y + inset, _BAR - 2 * inset, scale) for span in spans], style)
        spans = worker.during(EXCHANGE, UNTIL_S, behind=True)
        picture.rectangles([_place(span, y + _BAR + 2, _BEHIND, scale) for span in spans], _STYLES[EXCHANGE])
        picture.text(_WIDTH - 16, y + 15, f"{worker.steps_until(UNTIL_S)} steps", anchor="end")
    axis = top + 22 + len(workers) * _LANE + 2
    for moment in range(5):
        at = moment * UNTIL_S / 4
        words = f"{1000 * at:.0f}" + (" ms" if moment == 4 else "")
        picture.line([(_LEFT + at * scale, axis - 4), (_LEFT + at * scale, axis)], "rule")
        picture.text(_LEFT + at * scale, axis + 12, words, "soft", size=12, anchor="middle")


def _place(span: tuple[float, float], top: float, height: float, scale: float) -> tuple[float, float, float, float]:
    """With a gap to the next, if there is room for one."""
    left, width = _LEFT + span[0] * scale, (span[1] - span[0]) * scale
    return left, top, max(0.4, width - 0.8 if width > 4 else width), height


def _legend(picture: Picture, y: float) -> None:
    x = _LEFT
    for kind, words in _LEGEND:
        inset = 3.0 if kind == WAIT else 0.0
        picture.rectangle((x, y - 10 + inset, 14, 12 - 2 * inset), _STYLES[kind])
        picture.text(x + 20, y + 1, words, size=13)
        x += 44 + 7 * len(words)
    picture.rectangle((x, y - 6, 14, _BEHIND), _STYLES[EXCHANGE])
    picture.text(x + 20, y + 1, "exchanges while it computes", size=13)
