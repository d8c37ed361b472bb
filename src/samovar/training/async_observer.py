"""How the master tells what workers do that wait for nobody: of all together as of any run, and of each."""

import math
from collections.abc import Sequence
from dataclasses import replace

from samovar.membership.progress_table import WorkerState
from samovar.report.records import Progress
from samovar.report.result import WorkerFigures
from samovar.training.loop import StepDone
from samovar.training.observer import RunObserver


class WorkersObserver(RunObserver):
    """Beside each progress a line of kind "workers" in metrics.jsonl: lists with a value for each worker."""

    _states: Sequence[WorkerState] = ()

    def workers_seen(self, _steps_done: int, states: Sequence[WorkerState]) -> None:
        """Before `step_done` of the same step."""
        self._states = states

    def _progress(self, done: StepDone, rate: float) -> Progress:
        figures = [worker_figures(state) for state in self._states]
        names = ("steps", "loss", "samples_per_second", "updates", "staleness", "lock_wait_s", "distance", "is_gone")
        values = {name: [getattr(one, name) for one in figures] for name in names}
        self._metrics.append(done.steps_done, "workers", values)
        return replace(super()._progress(done, rate), workers=_in_words(self._states))


def worker_figures(state: WorkerState) -> WorkerFigures:
    """The state of a worker as it stands in result.json."""
    return WorkerFigures(
        steps=state.steps_done,
        samples=state.num_samples,
        samples_per_second=state.samples_per_second,
        loss=_known(state.loss),
        updates=state.num_updates,
        staleness=state.staleness,
        lock_wait_s=state.lock_wait_s,
        distance=_known(state.distance),
        is_gone=state.is_gone,
        refused=state.num_refused,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _in_words(states: Sequence[WorkerState]) -> str:
    """Who is slowest and fastest, and how stale updates are: "rank 1 slowest at 31, rank 0 fastest at 62 samples/s"."""
    rates = {rank: state.samples_per_second for rank, state in enumerate(states) if not state.is_gone}
    if len(rates) < 2:
        return ""
    slowest, fastest = min(rates, key=lambda rank: rates[rank]), max(rates, key=lambda rank: rates[rank])
    text = f"rank {slowest} slowest at {rates[slowest]:,.0f}, rank {fastest} fastest at {rates[fastest]:,.0f} samples/s"
    return f"{text}, staleness {mean_staleness(states):.1f}"


def mean_staleness(states: Sequence[WorkerState]) -> float:
    """Over all updates of all workers."""
    counts: list[int] = [sum(column) for column in zip(*(state.staleness for state in states), strict=True)]
    return sum(staleness * count for staleness, count in enumerate(counts)) / max(1, sum(counts))
