"""Runs next to each other and next to a prediction: speed-up, error of the prediction, and a verdict in a sentence."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from samovar.core import units
from samovar.core.errors import InputError
from samovar.core.plain import from_plain
from samovar.report.history import ENDED, FAILED, KILLED, History
from samovar.report.wording import counted, number

_SAME_ACCURACY: Final = 0.003


@dataclass(frozen=True, slots=True)
class Prediction:
    """One strategy with a number of workers, simulated.

    `speed_up` is against one worker without any exchange. Seconds are those of a mean step: `slower_s` waits for slower
    workers, `exchange_s` for the exchange. `limit` is what the exchange waits for. Times and prices of the whole
    training are None if samples or prices are not known.
    """

    strategy: str
    workers: int
    settings: str
    plan: str
    num_buckets: int
    step_s: float
    samples_per_s: float
    speed_up: float
    efficiency: float
    forward_s: float
    backward_s: float
    update_s: float
    slower_s: float
    exchange_s: float
    bytes_per_step: float
    limit: str
    staleness: float | None
    hours: float | None
    price: float | None
    price_per_million: float | None


@dataclass(frozen=True, slots=True)
class ForeseenRuns:
    """The answer of `samovar predict --json`."""

    net: str
    num_parameters: int
    cluster: str
    rows: tuple[Prediction, ...]

    def of(self, run: History) -> Prediction | None:
        """The row of this strategy with this number of workers."""
        wanted = (run.strategy, run.workers)
        return next((row for row in self.rows if (row.strategy, row.workers) == wanted), None)

    def curve(self, strategy: str) -> list[tuple[float, float]]:
        """Speed-up by workers."""
        return [(float(row.workers), row.speed_up) for row in self.rows if row.strategy == strategy]

    @property
    def one_worker(self) -> float:
        """Samples per second of one worker that never exchanges."""
        return self.rows[0].samples_per_s / self.rows[0].speed_up


def read_foreseen(path: Path) -> ForeseenRuns:
    """The prediction in this file; raises InputError if it is not the answer of `samovar predict --json`."""
    try:
        answer = json.loads(path.read_bytes())
        names = [field.name for field in fields(Prediction)]
        rows = tuple(from_plain(Prediction, {name: row[name] for name in names}) for row in answer["predictions"])
        if not rows:
            raise ValueError("it has no predictions")
        num_parameters = int(answer.get("net_parameters", answer["parameters"]))
        return ForeseenRuns(str(answer["net"]), num_parameters, str(answer["cluster"]), rows)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a file of samovar predict --json") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a prediction: {error}; give a file of samovar predict --json") from error


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs, their labels, and a prediction of them or None. Speed-ups are against `one_worker` samples per second."""

    runs: tuple[History, ...]
    labels: tuple[str, ...]
    foreseen: ForeseenRuns | None
    one_worker: float | None

    @classmethod
    def of(cls, runs: Sequence[History], foreseen: ForeseenRuns | None) -> "Comparison":
        """One worker is the run with one, else that of the prediction. Runs of different nets have none.

        Raises InputError if the prediction is of another net.
        """
        sizes = {run.result.net_parameters for run in runs if run.result is not None}
        if foreseen is not None and sizes - {foreseen.num_parameters}:
            raise InputError(f"the prediction is of {foreseen.net}, and a run trained another net; predict for its net")
        if len(sizes) > 1:
            return cls(tuple(runs), _labels(runs), foreseen, None)
        alone = [run.samples_per_second for run in runs if run.workers == 1 and run.samples_per_second]
        predicted = foreseen.one_worker if foreseen is not None else None
        return cls(tuple(runs), _labels(runs), foreseen, max(alone, default=predicted))

    def speed_up(self, run: History) -> float | None:
        return run.samples_per_second / self.one_worker if self.one_worker and run.samples_per_second else None

    def error(self, run: History) -> float | None:
        """How much faster the run was than predicted: 0.05 is 5 %. Without a prediction, the run may have its own."""
        if self.foreseen is None:
            own = None if run.result is None else run.result.foreseen
            return None if own is None else own.error
        row = self.foreseen.of(run)
        return None if row is None or not run.samples_per_second else run.samples_per_second / row.samples_per_s - 1

    def target(self) -> float | None:
        """The accuracy that all runs reached."""
        best = [run.best_accuracy for run in self.runs]
        known = [value for value in best if value is not None]
        return min(known) if len(known) == len(best) else None

    def verdict(self) -> str:
        """The outcome, in one sentence."""
        return self._of_one(self.runs[0]) if len(self.runs) == 1 else self._of_several()

    def _of_one(self, run: History) -> str:
        who = f"{run.net}: {who_trains(run)}"
        if run.state == FAILED:
            return f"{who} failed: {run.told.error}"
        if run.state != ENDED:
            return f"{who} {_so_far(run)}{'; the run was ended by force' if run.state == KILLED else ''}"
        stopped = f", stopped by {run.result.stopped_by}" if run.result and run.result.stopped_by else ""
        return f"{who} {_quality(run)} in {units.duration(run.seconds)}{self._against_one(run)}{stopped}"

    def _against_one(self, run: History) -> str:
        times, error = self.speed_up(run), self.error(run)
        speed = _rate(", at ", run.samples_per_second)
        if times is not None and run.workers != 1:
            speed += f" or {times:.2f} times one worker"
        if error is not None:
            speed += f", {abs(error):.0%} {'more' if error >= 0 else 'less'} than predicted"
        return speed

    def _of_several(self) -> str:
        rated = [(run.samples_per_second, label, run) for run, label in zip(self.runs, self.labels, strict=True)]
        rate, label, best = max(rated, key=lambda one: one[0])
        if not rate:
            return f"{len(self.runs)} runs without a rate, so none is the fastest: they count no samples, or have begun"
        times, others = self.speed_up(best), [run for run in self.runs if run is not best]
        what = f"{label} is the fastest of {len(self.runs)} runs: {rate:,.0f} samples/s"
        if times is not None and best.workers != 1:
            what += f", {times:.2f} times one worker"
        known = [run.accuracy for run in others if run.accuracy is not None]
        if best.accuracy is None or not known:
            return what
        if abs(best.accuracy - max(known)) <= _SAME_ACCURACY:
            return f"{what}, and as accurate as the best ({best.accuracy:.2%})"
        return f"{what}; it reached {best.accuracy:.2%}, and the best of the others {max(known):.2%}"


def who_trains(run: History) -> str:
    """The workers and their strategy."""
    workers = counted(run.workers, "worker") if run.workers else "workers"
    return f"{workers} with {run.strategy}" if run.strategy and run.workers != 1 else workers


def _labels(runs: Sequence[History]) -> tuple[str, ...]:
    """Names that tell the runs apart."""
    said = [who_trains(run) for run in runs]
    if len(set(said)) < len(said) or not all(run.workers for run in runs):
        said = [run.name for run in runs]
    if len(set(said)) < len(said):
        said = [str(run.files.path) for run in runs]
    return tuple(said)


def _quality(run: History) -> str:
    if run.accuracy is not None:
        return f"reached {run.accuracy:.2%} accuracy"
    loss = run.steps.loss[-1] if run.steps.step else None
    return "trained" if loss is None else f"trained to a loss of {number(loss)}"


def _so_far(run: History) -> str:
    is_one = run.workers == 1
    if not run.steps.step:
        return f"{'has' if is_one else 'have'} not made a step yet"
    step, total = round(run.steps.step[-1]), run.told.total_steps
    reached = f"{'is' if is_one else 'are'} at step {step:,}{f' of {total:,}' if total else ''}"
    return f"{reached}, with loss {number(run.steps.loss[-1])}{_rate(' and ', run.recent_samples_per_second)}"


def _rate(before: str, samples_per_second: float) -> str:
    """Nothing for a loop that counts no samples: it has no shard, and names no batch size."""
    return f"{before}{samples_per_second:,.0f} samples/s" if samples_per_second else ""
