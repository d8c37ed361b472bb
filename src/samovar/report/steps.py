"""The figures of steps and of a run: seconds by kind, a rank that is slower than others, and what to change."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from samovar.report.sinks import Sink

KINDS: Final = ("data", "forward", "backward", "exchange", "update")
_RATE_STEPS = 50
_WINDOW_STEPS, _MOST_OF_WINDOW = 10, 8
_LATE_SHARE, _LATE_LEAST_S = 0.1, 1e-3  # of a step: less is noise
_INPUT_SHARE, _COMMUNICATION_SHARE, _STRAGGLER_SHARE = 0.15, 0.15, 0.1


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step: waiting for data, forward, backward, waiting for the exchange, update."""

    data_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    exchange_s: float = 0.0
    update_s: float = 0.0

    def by_kind(self) -> dict[str, float]:
        return {kind: getattr(self, f"{kind}_s") for kind in KINDS}

    def plus(self, later: "StepTimes") -> "StepTimes":
        """The seconds of this step and a later one."""
        return StepTimes(**{f"{kind}_s": value + getattr(later, f"{kind}_s") for kind, value in self.by_kind().items()})


class Laps:
    """Add the time since the last call to a named part of the step. Cost: 0.2 us a call."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._last_s = 0.0
        self._seconds: dict[str, float] = {}

    def start(self) -> None:
        """A step begins."""
        self.clear()

    def clear(self) -> None:
        """Leave out all since the start."""
        self._seconds = {}
        self.skip()

    def skip(self) -> None:
        """Leave out the time since the last call."""
        self._last_s = self._clock_s()

    def lap(self, kind: str) -> None:
        now_s = self._clock_s()
        self._seconds[kind] = self._seconds.get(kind, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def times(self) -> StepTimes:
        return StepTimes(**self._seconds)


@dataclass(frozen=True, slots=True)
class StepDone:
    """All ranks' results of one step: mean loss over the global batch.

    `times` are this rank's own. `last_rank` waited least for the exchange, `late_s` less than the median of the others;
    it is None without an exchange or without others. `num_steps` were done since the last report.
    """

    steps_done: int
    loss: float
    num_samples: int
    seconds: float
    times: StepTimes
    last_rank: int | None = None
    late_s: float = 0.0
    num_steps: int = 1


def last_to_arrive(waits_s: npt.NDArray[np.float64]) -> tuple[int | None, float]:
    """The rank that waited least for the exchange, so came to it last, and how much longer the median of others waited.

    It needs no clock that ranks share. An exchange behind computing holds up only those who have to wait for it.
    """
    if len(waits_s) < 2 or np.isnan(waits_s).any():
        return None, 0.0
    last = int(waits_s.argmin())
    return last, float(np.median(np.delete(waits_s, last)) - waits_s[last])


@dataclass(frozen=True, slots=True)
class Arrival:
    """The rank that came last to an exchange, how long after the others, and the length of the step."""

    rank: int
    late_s: float
    step_s: float


class StragglerWatch:
    """Names a rank for which the others wait in most of the last steps, each rank once: the verdict adds up."""

    def __init__(self) -> None:
        self._recent: deque[Arrival] = deque(maxlen=_WINDOW_STEPS)
        self._named: set[int] = set()

    def take(self, arrival: Arrival) -> str | None:
        """A sentence, if there is news."""
        self._recent.append(arrival)
        own = [one for one in self._recent if one.rank == arrival.rank]
        if len(own) < _MOST_OF_WINDOW or arrival.rank in self._named:
            return None
        late_s, step_s = median(one.late_s for one in own), median(one.step_s for one in own)
        if late_s < max(_LATE_LEAST_S, _LATE_SHARE * step_s):
            return None
        self._named.add(arrival.rank)
        return (
            f"rank {arrival.rank} is slower than the others, which wait for it {late_s * 1e3:.3g} ms of a step of "
            f"{step_s * 1e3:.3g} ms; see what else runs on its cpus"
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """Things to try, by what takes too long: waiting for data, exchanges, or computing."""

    if_input: str
    if_exchange: str
    if_compute: str

    @classmethod
    def of_loop(cls, exchanges_weights: bool) -> "Advice":
        """In arguments of a torch loop."""
        if exchanges_weights:
            for_exchange = "a longer sync_period, or larger batches"
        else:
            for_exchange = "larger batches, or a strategy with a period (local-sgd, sync-easgd)"
        return cls(
            if_input="more workers of the DataLoader (num_workers), a faster disk, or a core for reading",
            if_exchange=for_exchange,
            if_compute="more cores, autocast in bfloat16, or torch.compile",
        )


class TimeSpent:
    """Adds up the seconds of a run's steps by kind, and the waits of others for each rank."""

    def __init__(self, advice: Advice) -> None:
        self._advice = advice
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self.num_steps = 0
        self._late_s: dict[int, float] = {}

    def add(self, times: StepTimes, arrival: Arrival | None, num_steps: int = 1) -> None:
        """This number of steps."""
        self.num_steps += num_steps
        for kind, seconds in times.by_kind().items():
            self._seconds[kind] += seconds
        if arrival is not None:
            self._late_s[arrival.rank] = self._late_s.get(arrival.rank, 0.0) + arrival.late_s

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds so far, by kind."""
        return dict(self._seconds)

    @property
    def slowest(self) -> tuple[int | None, float]:
        """The rank that the others waited for longest, and that share of the time; None without such waits."""
        total_s = sum(self._seconds.values())
        rank = max(self._late_s, key=lambda rank: self._late_s[rank], default=None)
        return (None, 0.0) if rank is None or total_s <= 0.0 else (rank, min(1.0, self._late_s[rank] / total_s))

    def verdict(self) -> str | None:
        """Shares, the bottleneck, and advice; None without any step."""
        total_s = sum(self._seconds.values())
        if total_s <= 0.0:
            return None
        shown = ", ".join(f"{kind} {seconds / total_s:.0%}" for kind, seconds in self._seconds.items())
        return f"where the time went: {shown}: {'; '.join(self._bound(total_s))}"

    @property
    def bound(self) -> str:
        """The limit of the run, without advice; "" without any step."""
        total_s = sum(self._seconds.values())
        return self._bound(total_s)[0] if total_s > 0.0 else ""

    def _bound(self, total_s: float) -> tuple[str, str]:
        rank, late_share = self.slowest
        if self._seconds["data"] > _INPUT_SHARE * total_s:
            return "input-bound", f"try {self._advice.if_input}"
        if late_share > _STRAGGLER_SHARE:
            return f"straggler-bound, the others wait {late_share:.0%} of the time for rank {rank}", "see its cpus"
        if self._seconds["exchange"] > _COMMUNICATION_SHARE * total_s:
            return "communication-bound", f"try {self._advice.if_exchange}"
        return "compute-bound", f"try {self._advice.if_compute}"


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
