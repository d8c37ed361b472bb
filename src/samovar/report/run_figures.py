"""The figures of a run, from those of its steps: for `samovar train` and for a user's own loop."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samovar.report.sinks import Sink
from samovar.report.steps import Advice, Arrival, StepDone, StragglerWatch, TimeSpent

_RATE_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a run so far, as one rank sees them; `str` gives them as a line.

    `samples` and `samples_per_second` are those of all ranks, the latter over the last 50 steps. Samples are counted
    if loaders give their batch size. `seconds` are this rank's, by kind of work, without the first step, which warms
    up. `waiting_share` is the part of them that waits for exchanges. The others wait longest for `slow_rank`,
    `slow_share` of the time; it is None if ranks do not wait for each other. `verdict` says what bounds the run, and
    what to try.
    """

    steps: int
    samples: int
    samples_per_second: float
    loss: float
    seconds: Mapping[str, float]
    waiting_share: float
    slow_rank: int | None
    slow_share: float
    verdict: str

    def __str__(self) -> str:
        rate = f" · {self.samples_per_second:,.1f} samples/s" if self.samples_per_second else ""
        verdict = f" · {self.verdict}" if self.verdict else ""
        return f"step {self.steps:,} · loss {self.loss:.4g}{rate}{verdict}"


class RunFigures:
    """Adds up the steps of a run, and gives each to `sinks`. Cost: 10 us a step, and that of the sinks."""

    def __init__(self, advice: Advice, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = sinks
        self._recent: deque[StepDone] = deque(maxlen=_RATE_STEPS)
        self._spent, self._stragglers = TimeSpent(advice), StragglerWatch()
        self._is_warm = False
        self._steps_done = self._num_samples = 0
        self._loss = float("nan")

    def step_done(self, done: StepDone, learning_rate: float) -> str | None:
        """Note a step. Gives a sentence if the others have come to wait for a rank."""
        self._recent.append(done)
        self._steps_done, self._loss = done.steps_done, done.loss
        self._num_samples += done.num_samples
        arrival = None if done.last_rank is None else Arrival(done.last_rank, done.late_s, done.seconds)
        if self._sinks:
            self.write(done.steps_done, "train", _values(done, arrival, learning_rate))
        sentence = self._watch_time(done, arrival)
        return None if sentence is None else f"step {done.steps_done}: {sentence}"

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Give other values to the sinks, for example those of a test."""
        for sink in self._sinks:
            sink.write(step, kind, values)

    @property
    def seconds_of_recent(self) -> tuple[float, int]:
        """The seconds of the last steps, and their number."""
        return sum(done.seconds for done in self._recent), sum(done.num_steps for done in self._recent)

    @property
    def samples_per_second(self) -> float:
        """Of all ranks, over the last steps."""
        seconds, _ = self.seconds_of_recent
        return sum(done.num_samples for done in self._recent) / seconds if seconds > 0 else 0.0

    @property
    def mean_step(self) -> tuple[float, int]:
        """The seconds of a mean step of this rank, and of how many: without the first, which warms up."""
        num_steps = self._spent.num_steps
        return sum(self._spent.seconds.values()) / max(1, num_steps), num_steps

    def verdict(self) -> str | None:
        """Where the time went, and what to try; None without any step."""
        return self._spent.verdict()

    def figures(self) -> Figures:
        seconds, (slow_rank, slow_share) = self._spent.seconds, self._spent.slowest
        total_s = sum(seconds.values())
        return Figures(
            steps=self._steps_done,
            samples=self._num_samples,
            samples_per_second=self.samples_per_second,
            loss=self._loss,
            seconds=seconds,
            waiting_share=seconds["exchange"] / total_s if total_s > 0 else 0.0,
            slow_rank=slow_rank,
            slow_share=slow_share,
            verdict=self.verdict() or "",
        )

    def _watch_time(self, done: StepDone, arrival: Arrival | None) -> str | None:
        """Time spent, without the first step of a process, which warms up."""
        was_warm, self._is_warm = self._is_warm, True
        if not was_warm:
            return None
        self._spent.add(done.times, arrival, done.num_steps)
        return None if arrival is None else self._stragglers.take(arrival)


def _values(done: StepDone, arrival: Arrival | None, learning_rate: float) -> dict[str, object]:
    return {
        "loss": done.loss,
        "learning_rate": learning_rate,
        "samples": done.num_samples,
        "seconds": done.seconds,
        "samples_per_second": done.num_samples / done.seconds if done.seconds > 0 else 0.0,
        **{f"{kind}_s": seconds for kind, seconds in done.times.by_kind().items()},
        **({} if arrival is None else {"last_rank": arrival.rank, "late_s": arrival.late_s}),
    }
