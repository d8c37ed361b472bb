"""The worker that reports, tests and saves for its launch."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from samovar.membership.progress_table import WorkerState
from samovar.report.steps import StepTimes
from samovar.training import evaluation
from samovar.training.async_pace import Master
from samovar.training.loop import Duties, Schedule


def test_the_last_snapshot_is_of_the_center_that_is_tested_at_the_end() -> None:
    """A snapshot is due after the last step, and the center takes one more update while others end."""
    center = [1.0]
    saved: list[float] = []
    tested: list[float] = []
    steps = iter([9, 10, 10])
    states = [WorkerState(steps_done=10, num_samples=40, loss=0.5)]
    table: Any = SimpleNamespace(states=lambda: states, run_steps=lambda: next(steps), leads=True)
    run: Any = SimpleNamespace(table=table, num_steps=10)

    def nothing(*_: object) -> None: ...

    observer: Any = SimpleNamespace(workers_seen=nothing, step_done=nothing, tested=nothing, ended=nothing)

    def evaluate() -> Iterator[evaluation.TestResult]:
        tested.append(center[0])
        yield evaluation.TestResult({}, 0.0, ())

    duties = Duties(Schedule(0, 10, snapshot_interval=5), evaluate, lambda _: saved.append(center[0]), observer)
    master = Master(run, duties, observer, settle=lambda: None)
    master.look(0, StepTimes())
    center[0] = 2.0
    master.finish(0, StepTimes())
    assert saved == [1.0, 2.0]
    assert tested == [2.0]
