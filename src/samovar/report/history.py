"""A run as its folder says it, at its end or while it trains: curves, where the time went, and its result."""

import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from samovar.core.errors import InputError
from samovar.core.files import opened
from samovar.report.console import LogFile
from samovar.report.metrics import Line, parsed_line
from samovar.report.result import RunResult, output_named, read_result
from samovar.report.run_folder import RunFolder, config_of
from samovar.report.steps import KINDS, Advice, Arrival, StepTimes, TimeSpent

ENDED, FAILED, KILLED, OPEN, UNTOLD = "ended", "failed", "killed", "open", "untold"
_LOG_TAIL_BYTES: Final = 1 << 16
_RECENT_STEPS: Final = 50
_START = re.compile(r"^\S+ (?:iterations [\d,]+ to )?(\d[\d,]{0,22})(?: iterations?|, \w+) · ", re.MULTILINE)
_END = re.compile(r"^\S+ (?:where the time went: |samovar: error: |run folder .*\(result\.json).*$", re.MULTILINE)
_STEP_OF = re.compile(r"^\S+ step (\d{1,18})/(\d{1,18}) ", re.MULTILINE)
_ERROR = re.compile(r"^(\S+) samovar: error: (.*)(?:\n\1 .*)*\Z", re.MULTILINE)  # its lines have one time
_RESULT = re.compile(r"^\S+ run folder .*\(result\.json.*\Z", re.MULTILINE)
_ADVICE = re.compile(r"^\S+ where the time went: .*; (.*)$", re.MULTILINE)


def _numbers() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Steps:
    """The steps of all workers, a value for each line: `samples` and `seconds` are those since the run began."""

    step: "array[float]" = field(default_factory=_numbers)
    samples: "array[float]" = field(default_factory=_numbers)
    seconds: "array[float]" = field(default_factory=_numbers)
    loss: "array[float]" = field(default_factory=_numbers)

    def add(self, line: Line) -> None:
        """A line of kind "train"."""
        before_samples, before_s = (self.samples[-1], self.seconds[-1]) if self.step else (0.0, 0.0)
        samples, seconds = (
            before_samples + float(line.get("samples", 0.0)),
            before_s + float(line.get("seconds", 0.0)),
        )
        if not (math.isfinite(samples) and math.isfinite(seconds)):
            raise ValueError("its samples or seconds are not finite")
        self.step.append(line["step"])
        self.samples.append(samples)
        self.seconds.append(seconds)
        self.loss.append(float(line.get("loss", "nan")))

    def rate(self, first: int, last: int) -> float:
        """Samples per second between two lines."""
        seconds = self.seconds[last] - self.seconds[first]
        return (self.samples[last] - self.samples[first]) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Test:
    """A test pass: its outputs, and how far the run was."""

    step: int
    samples: float
    seconds: float
    outputs: Mapping[str, float]

    @property
    def loss(self) -> float | None:
        return self.outputs.get("test_loss", self.outputs.get("loss"))  # runs of before wrote outputs alone


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The facts that only samovar.log has of the last launch: all steps, the error that ended it, and what to try.

    While a launcher has it open (`is_open`), last words in it are of an earlier launch, and left out.
    """

    total_steps: int | None = None
    error: str | None = None
    advice: str = ""
    has_result: bool = False
    is_open: bool | None = None


class History:
    """The run in `folder`. `look` reads all that has come since. A missing file counts as empty.

    Raises InputError if the folder is not a run's, or gone, or a file is broken. Cost: 32 bytes of memory a step.
    """

    def __init__(self, folder: Path) -> None:
        self.files = RunFolder(folder)
        if not any(path.is_file() for path in (self.files.metrics, self.files.config, self.files.result)):
            raise InputError(f"{folder} is not the folder of a run: it has no metrics.jsonl; give a run's folder")
        self._clear()

    def _clear(self) -> None:
        self._place, self._inode, self._num_lines = 0, 0, 0
        self.steps = Steps()
        self.tests: list[Test] = []
        self._has_workers_line = False
        self._num_told_workers, self._worker_rates = 0, 0.0
        self._told_staleness: tuple[int, ...] = ()
        self.result: RunResult | None = None
        self.told = LogEnd()
        self.config: Mapping[str, Any] = {}
        self.spent = TimeSpent(Advice("", "", ""))

    def look(self) -> "History":
        """Read on."""
        if not self.files.path.is_dir():
            raise InputError(f"{self.files.path} is gone: was it moved, or its run refused? Give a run's folder")
        for line in self._new_lines():
            try:
                self._take(line)
            except (TypeError, ValueError, ArithmeticError) as error:
                where = f"{self.files.metrics}:{self._num_lines}"
                raise InputError(f"{where} is not a line of a run: {error}; remove that line") from error
        self.told = log_end(self.files.log)
        self.config = config_of(self.files)
        self.result = read_result(self.files.result) if is_of_last_run(self.files, self.told) else None
        return self

    @property
    def state(self) -> str:
        """ENDED, FAILED, OPEN, KILLED if its launcher is gone without a word, or UNTOLD if it keeps no log."""
        if self.result is not None:
            return ENDED
        return FAILED if self.told.error else {True: OPEN, False: KILLED, None: UNTOLD}[self.told.is_open]

    @property
    def state_in_words(self) -> str:
        """How it ended, or that it trains."""
        if self.result is not None and self.result.stopped_by:
            return f"stopped by {self.result.stopped_by} at step {self.result.steps:,}"
        words = {OPEN: "trains", UNTOLD: "trains, or has ended", KILLED: "ended by force", ENDED: "ended"}
        return words.get(self.state, f"failed: {self.told.error}")

    @property
    def name(self) -> str:
        return self.files.path.resolve().name

    @property
    def net(self) -> str:
        """Its own name, else that of its file."""
        if self.result is not None and self.result.net:
            return self.result.net
        model = self.config.get("model")
        return Path(model).stem if isinstance(model, str) else self.name

    @property
    def strategy(self) -> str:
        strategy = self.config.get("strategy")
        own = strategy.get("name") if isinstance(strategy, dict) else None
        return self.result.strategy if self.result is not None else str(own or "")

    @property
    def workers(self) -> int | None:
        if self.result is not None:
            return self.result.workers
        told = self.config.get("workers")
        return told if isinstance(told, int) else self._num_told_workers or None

    @property
    def batch_size(self) -> float:
        """The samples of a step of all workers; before there is a result, as its lines have them. 0: not known."""
        if self.result is not None:
            return self.result.effective_batch
        num_steps = self.steps.step[-1] - self.steps.step[0] if self.steps.step else 0.0
        return (self.steps.samples[-1] - self.steps.samples[0]) / num_steps if num_steps > 0 else 0.0

    @property
    def computes_with(self) -> tuple[object, ...]:
        """The threads, the precision and the kind of device of each worker, as far as they are known."""
        threads = self.config.get("threads_per_worker") if self.result is None else self.result.threads_per_worker
        precision = self.config.get("precision", "fp32") if self.result is None else self.result.precision
        return threads, precision, str(self.config.get("device", "cpu")).partition(":")[0]

    @property
    def is_of_worker_0(self) -> bool:
        """Whether its lines count the samples of worker 0 alone: those of a loop at a center."""
        return self._has_workers_line and not self.config

    @property
    def samples_per_second(self) -> float:
        """Of all workers, over the whole run, without the first step of a run that does not say it itself."""
        if self.result is not None:
            return self.result.samples_per_second
        return self._of_each() or (self.steps.rate(0, -1) if self.steps.step else 0.0)

    @property
    def recent_samples_per_second(self) -> float:
        """The same, over the last steps."""
        recent = self.steps.rate(max(-_RECENT_STEPS, -len(self.steps.step)), -1) if self.steps.step else 0.0
        return self._of_each() or recent

    def _of_each(self) -> float:
        """The sum of what the workers of a loop at a center said last."""
        return self._worker_rates if self.is_of_worker_0 else 0.0

    @property
    def seconds(self) -> float:
        """The training loop. A result has those of the last process, and a resumed run the lines of all."""
        told = 0.0 if self.result is None else self.result.seconds
        return max(told, self.steps.seconds[-1] if self.steps.step else 0.0)

    @property
    def accuracy(self) -> float | None:
        """The last one tested after a step."""
        if self.result is not None and self.result.test_accuracy is not None:
            return self.result.test_accuracy
        return next((value for test, value in reversed(self.accuracies) if test.step), None)

    @property
    def best_accuracy(self) -> float | None:
        """Of all tests after a step."""
        return max((value for test, value in self.accuracies if test.step), default=None)

    @property
    def accuracies(self) -> list[tuple[Test, float]]:
        """The tests that give one."""
        found = ((test, output_named(test.outputs, "accuracy")) for test in self.tests)
        return [(test, value) for test, value in found if value is not None]

    @property
    def step_s(self) -> dict[str, float]:
        """Mean seconds of a step by kind, of worker 0; without the first one, which warms up."""
        count = len(self.steps.step) - 1
        if count > 0 and not self.config:  # a loop's line may be of several steps
            count = round(self.steps.step[-1] - self.steps.step[0])
        return {kind: seconds / count for kind, seconds in self.spent.seconds.items()} if count > 0 else {}

    def first_reached(self, accuracy: float) -> float | None:
        """Seconds of training until a test had this accuracy."""
        return next((test.seconds for test, value in self.accuracies if value >= accuracy), None)

    @property
    def staleness(self) -> tuple[int, ...]:
        """Updates by the number of updates of others that they had not seen; of all workers."""
        rows = [one.staleness for one in self.result.by_worker] if self.result is not None else []
        return _sums(rows) or self._told_staleness

    def _new_lines(self) -> Iterator[Line]:
        """Whole lines that have come; all of them, if the file is another one than before."""
        try:
            with opened(self.files.metrics) as file:
                end = file.seek(0, 2)
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode or end < self._place:
                    self._clear()
                self._inode = 0  # until all are taken: a line that is broken is told again by the next look
                file.seek(self._place)
                pieces = file.read(end - self._place).split(b"\n")[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{self.files.metrics} cannot be read: {error.strerror}; check its permissions") from error
        for text in pieces:
            self._num_lines += 1
            self._place += len(text) + 1
            yield parsed_line(self.files.metrics, self._num_lines, text)
        self._inode = inode

    def _take(self, line: Line) -> None:
        kind = line["kind"]
        if kind == "train":
            self.steps.add(line)
            if len(self.steps.step) > 1 and "forward_s" in line:
                times = {f"{part}_s": float(line.get(f"{part}_s", 0.0)) for part in KINDS}
                self.spent.add(StepTimes(**times), _arrival(line))
        elif kind == "test":
            outputs = {name: float(value) for name, value in line.items() if isinstance(value, float | int)}
            samples, seconds = self._progress(line["step"])
            self.tests.append(Test(line["step"], samples, seconds, {k: v for k, v in outputs.items() if k != "step"}))
        elif kind == "workers":
            self._take_workers(line)

    def _take_workers(self, line: Line) -> None:
        self._has_workers_line = True
        self._num_told_workers = len(line.get("steps", ()))
        rates = zip(line.get("samples_per_second", ()), line.get("is_gone", ()), strict=False)
        self._worker_rates = sum(float(rate) for rate, is_gone in rates if not is_gone)
        # A loop has means in the place of rows.
        self._told_staleness = _sums([row for row in line.get("staleness", ()) if isinstance(row, list)])

    def _progress(self, step: int) -> tuple[float, float]:
        """Samples and seconds when a step was tested; the test may come before the line of its step."""
        if not self.steps.step:
            return 0.0, 0.0
        missing = max(0.0, step - self.steps.step[-1])
        share = 1 + missing / self.steps.step[-1]
        return share * self.steps.samples[-1], share * self.steps.seconds[-1]


def _arrival(line: Line) -> Arrival | None:
    if line.get("last_rank") is None:
        return None
    return Arrival(line["last_rank"], float(line.get("late_s", 0.0)), float(line.get("seconds", 0.0)))


def _sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Of each column. Raises ValueError if rows have different lengths."""
    return tuple(map(sum, zip(*rows, strict=True)))


def log_end(log: Path) -> LogEnd:
    is_open = LogFile.is_written(log)  # before its last words are read
    try:
        with opened(log) as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return LogEnd()
    launches = [found.start() for found in _START.finditer(tail)]
    launches += [found.end() for found in _END.finditer(tail)] if is_open else []
    tail = tail[max(launches, default=0) :]
    start, steps, error, advice = (list(form.finditer(tail))[-1:] for form in (_START, _STEP_OF, _ERROR, _ADVICE))
    total = steps[0][2] if steps else start[0][1].replace(",", "") if start else None
    return LogEnd(
        None if total is None else int(total),
        error[0][2] if error else None,
        advice[0][1] if advice else "",
        _RESULT.search(tail) is not None,
        is_open,
    )


def is_of_last_run(files: RunFolder, told: LogEnd) -> bool:
    """Whether there is a result, and it is that of the last run here, whose start wrote config.json."""
    if told.has_result:  # copies keep no times
        return files.result.is_file()
    try:
        return files.result.stat().st_mtime_ns >= (files.config.stat().st_mtime_ns if files.config.exists() else 0)
    except FileNotFoundError:
        return False


def binned(xs: "array[float]", ys: "array[float]", most: int) -> list[tuple[float, float]]:
    """At most `most` points: means of as many lines each."""
    edges = [round(index * len(xs) / most) for index in range(most + 1)] if len(xs) > most else range(len(xs) + 1)
    return [(xs[last - 1], sum(ys[first:last]) / (last - first)) for first, last in pairwise(edges) if last > first]
