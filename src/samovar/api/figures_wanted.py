"""Where the figures of a replica go: to the sinks that the program names, or else its environment."""

import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

from samovar.box.board import Row
from samovar.core.errors import InputError
from samovar.core.files import locked
from samovar.core.trace import TraceWindow
from samovar.launch.wishes import METRICS, TRACE, figure_wishes
from samovar.report.metrics import MetricsWriter
from samovar.report.run_folder import RunFolder, create_figures_folder
from samovar.report.sinks import MetricsChoice, Place, Sink, metrics_choice, open_sinks

METRICS_WHAT: Final = "replicate: metrics"
_folders_in_use: dict[Path, int] = {}  # their locks
# A forked process, such as a worker of a DataLoader, may outlive this one, and the run be started again.
os.register_at_fork(after_in_child=lambda: [*map(os.close, map(_folders_in_use.pop, [*_folders_in_use]))])


@dataclass(frozen=True, slots=True)
class FiguresWanted:
    """The sinks of one replica, and the steps that are traced. `what` named them: the arguments or the environment."""

    metrics: MetricsChoice = field(default_factory=MetricsChoice)
    trace: TraceWindow | None = None
    what: str = METRICS_WHAT

    @property
    def folder(self) -> RunFolder | None:
        return None if self.metrics.folder is None else RunFolder(self.metrics.folder)

    def of_replica(self, number: int) -> "FiguresWanted":
        """For the `number`-th replica of this process. Later ones get a folder inside that of the environment."""
        if self.what != METRICS or self.metrics.folder is None or not number:
            return self
        return replace(self, metrics=replace(self.metrics, folder=self.metrics.folder / f"replica{number}"))

    def of_worker(self) -> "FiguresWanted":
        """For a worker that comes and goes: a folder inside that of the job, named after host and process."""
        if self.metrics.folder is None:
            return self
        folder = self.metrics.folder / f"{socket.gethostname()}-{os.getpid()}"
        return replace(self, metrics=replace(self.metrics, folder=folder))


def figures_wanted(metrics: Place | Sequence[Place] | None, trace: str | None, *, has_center: bool) -> FiguresWanted:
    """The figures that arguments ask for, or else SAMOVAR_METRICS and SAMOVAR_TRACE. Raises InputError."""
    (wished, wished_trace), what = figure_wishes(), METRICS_WHAT
    if metrics is None and wished is not None:
        metrics, what = wished, METRICS
    choice, written = metrics_choice(metrics, what), trace or wished_trace
    if written is None:
        return FiguresWanted(choice, None, what)
    name = "replicate: trace" if trace else TRACE
    if choice.folder is None:
        raise InputError(f"{name} {written!r}: needs a folder for the trace; give metrics='FOLDER', too")
    if has_center:
        raise InputError(f"{name} {written!r}: shows exchanges among ranks; at a center there are none: leave it out")
    return FiguresWanted(choice, TraceWindow.parse(str(written), name), what)


class RunFile(Sink):
    """metrics.jsonl in the folder of one replica at a time; it is opened with the first line.

    A program that loads a state continues behind the lines of that step; else an older file gets another name. Raises
    InputError if the folder cannot be used, has a run of `samovar train`, or another replica or job uses it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = create_figures_folder(folder, METRICS_WHAT)
        self._place = folder.resolve()
        if self._place in _folders_in_use:
            raise InputError(f"{METRICS_WHAT} {str(folder)!r}: another replica writes there; give each its own folder")
        refusal = f"{METRICS_WHAT} {str(folder)!r}: another run writes there now; give another folder"
        _folders_in_use[self._place] = locked(self._place, refusal)
        self._writer: MetricsWriter | None = None
        self._start_step = 0

    def go_to(self, step: int) -> None:
        """Replace the lines after `step`."""
        self._end()
        self._start_step = step

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        if self._writer is None:
            if self._start_step == 0 and self._folder.metrics.exists():
                self._put_aside(self._folder.metrics)
            self._writer = MetricsWriter(self._folder.metrics, self._start_step, "metrics or --metrics")
        self._writer.write(step, kind, values)

    def close(self) -> None:
        self._end()
        if (lock := _folders_in_use.pop(self._place, None)) is not None:
            os.close(lock)

    def _put_aside(self, older: Path) -> None:
        names = (older.with_name(f"{older.name}.{number}") for number in count(1))
        kept = older.rename(next(name for name in names if not name.exists()))
        warn(f"{older} had figures of an earlier run, and this one loaded no state: they are in {kept.name} now")

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def open_wanted(wanted: FiguresWanted, run: Mapping[str, object]) -> tuple[RunFile | None, list[Sink]]:
    """The file of the replica and all sinks, in which it comes first. Raises InputError."""
    folder = wanted.metrics.folder
    file = None if folder is None else RunFile(folder)
    try:
        sinks = open_sinks(wanted.metrics, folder, run, wanted.what, warn)
    except BaseException:
        if file is not None:
            file.close()
        raise
    return file, [*([] if file is None else [file]), *sinks]


def say(sentence: str) -> None:
    sys.stderr.write(f"samovar: {sentence}\n")


def warn(sentence: str) -> None:
    say(f"warning: {sentence}")


def workers_values(rows: Iterable[Row]) -> dict[str, object]:
    """The figures of the workers at a center, for sinks."""
    found = list(rows)
    return {
        "steps": [row.progress.steps for row in found],
        "loss": [row.progress.loss for row in found],
        "samples_per_second": [row.progress.samples_per_s for row in found],
        "updates": [row.progress.updates for row in found],
        "staleness": [row.progress.staleness_mean for row in found],
        "lock_wait_s": [row.progress.lock_wait_s for row in found],
        "is_gone": [not row.is_alive for row in found],
    }
