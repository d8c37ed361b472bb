"""Runs next to each other and next to a prediction: speed-up, error of the prediction, and a verdict in a sentence."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from samovar.core import units
from samovar.core.errors import InputError
from samovar.core.plain import from_plain
from samovar.report.history import ENDED, FAILED, KILLED, UNTOLD, History
from samovar.report.run_folder import strategy_settings, whole_number
from samovar.report.wording import counted, number, rate

_SAME_ACCURACY: Final = 0.003
_SAME_BATCH: Final = 0.05
_HASH_DIGITS: Final = 8
_FACTS_OF_CONFIG: Final = (
    *("model", "weights", "snapshot", "iterations", "seed", "batch_mode", "large_batch", "exact", "shuffle"),
    *("hold_data", "device", "precision", "transport", "recipe", "stop_rule", "box"),
)
_FACTS_OF_RESULT: Final = (
    *("net_parameters", "threads_per_worker", "effective_batch", "steps", "samples"),
    *("collective", "transport", "buckets", "owner", "precision"),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One strategy with a number of workers, simulated.

    `speed_up` is against one worker without any exchange. Seconds are those of a mean step: `slower_s` waits for slower
    workers, `exchange_s` for the exchange. `limit` is what the exchange waits for. `bytes_per_step` are those of the
    busiest worker. Times and prices of the whole training are None if samples or prices are not known.
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
    """The answer of `samovar predict --json`. If `shares_batch`, all workers together have a batch, else each."""

    net: str
    num_parameters: int
    cluster: str
    batch_size: int
    shares_batch: bool
    rows: tuple[Prediction, ...]

    def of(self, run: History) -> Prediction | None:
        """The row of this strategy with this number of workers, if it is of this run's batch."""
        return self._row(run) if self.has_batch_of(run) else None

    def has_batch_of(self, run: History) -> bool:
        return _is_near(run.batch_size, self.batch_size * (1 if self.shares_batch else run.workers or 1))

    def is_of_another_batch(self, run: History) -> bool:
        """Whether only the batch keeps its row from the run."""
        return self._row(run) is not None and run.batch_size > 0 and not self.has_batch_of(run)

    @property
    def batch(self) -> str:
        return f"batches of {self.batch_size:,} {'for all workers' if self.shares_batch else 'a worker'}"

    def _row(self, run: History) -> Prediction | None:
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
        answer = json.loads(path.read_bytes(), parse_int=whole_number)
        names = [field.name for field in fields(Prediction)]
        rows = tuple(from_plain(Prediction, {name: row[name] for name in names}) for row in answer["predictions"])
        if not rows:
            raise ValueError("it has no predictions")
        if not all(row.samples_per_s > 0 and row.speed_up > 0 for row in rows):
            raise ValueError("a speed in it is not above 0")
        num_parameters = int(answer.get("net_parameters", answer["parameters"]))
        batch = int(answer["batch_size"]), bool(answer["shares_batch"])
        return ForeseenRuns(str(answer["net"]), num_parameters, str(answer["cluster"]), *batch, rows)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a file of samovar predict --json") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is not a prediction: {error}; give a file of samovar predict --json") from error


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs, their labels, and a prediction of them or None."""

    runs: tuple[History, ...]
    labels: tuple[str, ...]
    foreseen: ForeseenRuns | None

    @classmethod
    def of(cls, runs: Sequence[History], foreseen: ForeseenRuns | None) -> "Comparison":
        """Raises InputError if the prediction is of another net, or of none of the runs' batches."""
        if foreseen is not None:
            _require_fitting(foreseen, runs)
        return cls(tuple(runs), _labels(runs), foreseen)

    def one_worker(self, run: History) -> float | None:
        """Samples per second of one worker like those of this run: of the fastest such run, else as predicted.

        Runs of different nets have none.
        """
        if not _have_one_net(self.runs):
            return None
        alone = [one.samples_per_second for one in self.runs if _is_one_worker_of(one, run) and one.samples_per_second]
        foreseen = self.foreseen if self.foreseen is not None and self.foreseen.has_batch_of(run) else None
        return max(alone, default=None if foreseen is None else foreseen.one_worker)

    def speed_up(self, run: History) -> float | None:
        alone = self.one_worker(run)
        return run.samples_per_second / alone if alone and run.samples_per_second else None

    def left_out(self) -> list[str]:
        """Sentences about figures that the page leaves out, since they would compare unlike runs."""
        labelled = list(zip(self.runs, self.labels, strict=True))
        said, foreseen = [], self.foreseen
        if foreseen is not None and (others := [name for run, name in labelled if foreseen.is_of_another_batch(run)]):
            said.append(f"The prediction is of {foreseen.batch}, so it says nothing about {', '.join(others)}.")
        apart = [name for run, name in labelled if (run.workers or 1) > 1 and self.one_worker(run) is None]
        if not apart or (foreseen is None and all(run.workers != 1 for run in self.runs)):
            return said
        if not _have_one_net(self.runs):
            return [*said, "The runs train different nets, so none is set against one worker."]
        need = "a run of one worker that has ended, with equal batch, threads, precision and device"
        return [*said, f"No speed-up for {', '.join(apart)}: it needs {need}."]

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
        labelled = list(zip(self.runs, self.labels, strict=True))
        sound = [one for one in labelled if one[0].state not in (FAILED, KILLED)]
        best, label = max(sound or labelled, key=lambda one: one[0].samples_per_second)
        if not best.samples_per_second:
            return f"{len(self.runs)} runs without a rate, so none is the fastest: they count no samples, or have begun"
        times, others = self.speed_up(best), [run for run in self.runs if run is not best]
        state = "" if best.state == UNTOLD or best.state_in_words == ENDED else f" ({best.state_in_words})"
        count = f"{len(self.runs)} runs" if len(sound) in (0, len(labelled)) else "the runs that did not fail"
        what = f"{label}{state} is the fastest of {count}: {rate(best.samples_per_second)} samples/s"
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


def _require_fitting(foreseen: ForeseenRuns, runs: Sequence[History]) -> None:
    sizes = {run.result.net_parameters for run in runs if run.result is not None}
    if sizes - {foreseen.num_parameters}:
        raise InputError(f"the prediction is of {foreseen.net}, and a run trained another net; predict for its net")
    others = [run for run in runs if foreseen.is_of_another_batch(run)]
    if others and not any(foreseen.of(run) for run in runs):
        batch = f"{who_trains(others[0])} had {others[0].batch_size:,.0f} samples a step together"
        raise InputError(f"the prediction is of {foreseen.batch}, and {batch}; predict with --batch for its own")


def _is_near(batch_size: float, other: float) -> bool:
    """Before a run has ended, its lines say about how many samples a step has."""
    return math.isclose(batch_size, other, rel_tol=_SAME_BATCH)


def _have_one_net(runs: Sequence[History]) -> bool:
    """By the size of the net, and by its file if the run has not ended."""
    ended = [run for run in runs if run.result is not None]
    files = {str(run.config.get("model")) for run in ended}
    others = {str(run.config.get("model")) for run in runs if run.result is None and run.config}
    return len({run.result.net_parameters for run in ended if run.result is not None}) <= 1 and others <= files


def _is_one_worker_of(one: History, run: History) -> bool:
    """Whether it trained as each worker of the run did: with its batch, or with that of all."""
    batches = one.batch_size, one.batch_size * (run.workers or 1)
    is_like = one.computes_with == run.computes_with and any(_is_near(run.batch_size, batch) for batch in batches)
    return one.workers == 1 and one.state == ENDED and is_like


def facts_of(run: History) -> dict[str, str]:
    """Settings and choices of a run as text, by name; "" if it has none of this name."""
    hosts, result = run.config.get("hosts"), run.result
    found: dict[str, object] = {
        "folder": str(run.files.path),
        "net": run.net,
        "strategy": run.strategy,
        "workers": run.workers,
        **{name: value for name, value in strategy_settings(run.config).items() if name not in ("name", "own")},
        **{name: run.config.get(name) for name in _FACTS_OF_CONFIG},
        "hosts": hosts.get("hosts") if isinstance(hosts, dict) else None,
    }
    if result is not None:
        found |= {name: getattr(result, name) for name in _FACTS_OF_RESULT}
        found["hash of weights"] = result.weights_sha256[:_HASH_DIGITS]
        found |= {"recipe": ", ".join(result.recipe_changes) or result.recipe, **result.versions}
    return {name.replace("_", " "): _as_text(value) for name, value in found.items()}


def _as_text(value: object) -> str:
    """A value of JSON; of a host its name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_as_text, value))
    if isinstance(value, dict):
        parts = (f"{name} {_as_text(part)}".replace("_", " ") for name, part in value.items() if part is not None)
        return _as_text(value["name"]) if "name" in value else ", ".join(parts)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


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
    return f"{before}{rate(samples_per_second)} samples/s" if samples_per_second else ""
