"""What workers of a launch see of each other, and the one that reports, tests and saves for all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samovar.box.board import Board
from samovar.config import RunConfig
from samovar.core.group import Group
from samovar.core.layout import Layout, ParameterSpec
from samovar.membership.kept_memory import KeptMemory
from samovar.membership.progress_table import ProgressTable, WorkerState
from samovar.report.steps import StepTimes
from samovar.strategies.config import StrategyConfig
from samovar.training import evaluation
from samovar.training.async_pace import Master
from samovar.training.context import BoxDescriptors
from samovar.training.loop import Duties, Schedule
from samovar.training.run_center import RunCenter
from samovar.transports.shm import ShmTransport, create_segment


def table_of(segment: int, rank: int, own_host: Sequence[int], first_step: int = 0) -> ProgressTable:
    members: Any = SimpleNamespace(post=lambda _: None)
    transport = ShmTransport(segment, Group(rank, 4), oversubscribed=True)
    return ProgressTable(transport, members, lambda _: False, first_step, own_host)


def test_a_signal_to_one_worker_reaches_all_though_few_look_far(monkeypatch: pytest.MonkeyPatch) -> None:
    segment, seen, words = create_segment(4), set[tuple[int, int]](), ProgressTable._words
    tables = [table_of(segment, rank, range(rank // 2 * 2, rank // 2 * 2 + 2)) for rank in range(4)]
    os.close(segment)

    def look(table: ProgressTable, rank: int) -> Any:
        seen.add((table.rank, rank))
        return words(table, rank)

    monkeypatch.setattr(ProgressTable, "_words", look)
    assert tables[3].asked_to_stop(15) == 15
    assert [tables[rank].asked_to_stop(0) for rank in (0, 1, 2)] == [15, 15, 15]
    assert seen == {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0), (2, 2), (2, 3)}


def test_a_worker_has_the_steps_that_it_showed_wherever_another_one_began() -> None:
    """A worker of a run at a box that comes back begins at the run's step, which a slow one may not have reached."""
    segment = create_segment(4)
    slow, back = table_of(segment, 1, range(4)), table_of(segment, 0, range(4), first_step=50)
    os.close(segment)
    slow.show(WorkerState(40))
    assert [state.steps_done for state in back.states()] == [50, 40, 50, 50]


def test_a_worker_that_comes_back_has_its_steps_before_it_trains() -> None:
    """It may die again before: then the others do its share, and not the steps that it had done."""
    segment = create_segment(2)

    def life(rank: int, life: int = 0) -> RunCenter:
        config = RunConfig("train", Path("solver"), workers=2, strategy=StrategyConfig("async-sgd"))
        transport = ShmTransport(segment, Group(rank, 2), oversubscribed=True, is_back=life > 0)
        box = BoxDescriptors(*memory.files)
        common: dict[str, Any] = {"lasting": transport, "is_gone": lambda _: False, "life": life, "key": None}
        context: Any = SimpleNamespace(config=config, transport=transport, box=box, **common)
        return RunCenter(context, Layout.pack([ParameterSpec("w", (4,))]), 0, 1000, ExitStack())

    with KeptMemory(2) as memory:
        centers = [life(0), life(1)]
        for center in centers:
            center.table.show(WorkerState(100))
        seat = centers[1]._session.seat
        seat.center.close()  # type: ignore[attr-defined]
        Board(memory.files[0]).leave(seat.member)
        assert life(1, 1).table.run_steps() == 100
    os.close(segment)


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
