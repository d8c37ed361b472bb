"""`samovar train` at a center with the model on a device: the bits of the host's memory; only exchanges cross the bus.

The device is tests.fake_device: its streams run late, in a drawn order. The rank's pace, its seat at the center and the
weights that it evaluates are those of the command line. It is alone, so each run of it has the same bits.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samovar.box.board import create_board
from samovar.config import RunConfig
from samovar.core.buffer import StagedBuffer
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.host import create_empty
from samovar.core.layout import Layout
from samovar.report.records import RecordWriter
from samovar.report.tracing import Voice
from samovar.strategies.center_steps import CenterSteps
from samovar.training.async_pace import AsyncPace, AsyncParts, Master, Run
from samovar.training.context import BoxDescriptors, RankContext
from samovar.training.loop import Duties, Requests, Schedule, StepMade
from samovar.training.ordered_centers import Order
from samovar.training.run_center import RunCenter
from samovar.transports.base import Transport
from tests.fake_device import AWAY, away_mode
from tests.left_out_events import COPIES_LEFT_OUT
from tests.parity.staged import NET, Rank, Setting
from tests.parity.test_near import SAVED_EVERY, Seen, near, require_little
from tests.parity.test_staged import ALONE_AT_A_CENTER, of
from tests.threads import on_threads

PERIOD = {"sync_period_steps": 4}
SETTINGS = {
    **{name: of(name, 1, **PERIOD) for name in ALONE_AT_A_CENTER},
    "async-sgd, every step": of("async-sgd", 1),
    "async-sgd, bounded": of("async-sgd", 1, sync_period_steps=2, max_staleness_steps=1),
    "async-easgd, period": of("async-easgd", 1, **PERIOD, overlap="period", worker_rate=0.6),
    "shm-easgd, bf16": of("shm-easgd", 1, **PERIOD, precision="bf16", num_parts=2),
}


def names(*often: str) -> list[Any]:
    """All settings; those that are not tested often are slow."""
    return [name if name in often else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]


@dataclass
class SeenAtACenter(Seen):
    """The same, and what is said, and what the rank has in the end."""

    said: list[str] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)


def trained(path: Path, setting: Setting, num_steps: int, seed: int, spoil: int, transport: Transport) -> SeenAtACenter:
    """`spoil`: the step before which a weight becomes infinite."""
    torch.set_num_threads(1)
    seen = SeenAtACenter()
    with away_mode(seed) as device, ExitStack() as closing:
        centers: list[RunCenter] = []

        def center_for(layout: Layout) -> RunCenter:
            centers.append(run_center(setting, layout, num_steps, transport, closing))
            return centers[0]

        parts = Rank(path, setting, transport, "alone", closing, center_for)
        seen.model_bytes = parts.model.weights.tensor_N.nbytes
        pace = at_own_speed(parts, seen, num_steps, centers[0])
        pace.begin()
        while (rate_step := pace.next_rate_step()) is not None:
            step, before = pace.steps_done, device.counts()
            if step == spoil:
                parts.model.weights.tensor_N[:1].fill_(float("inf"))
            loss = parts.worker.step(step, rate_step)
            pace.stepped(StepMade(rate_step, loss, parts.worker.times, 1.0))
            seen.counted.append(tuple(np.subtract(device.counts(), before).tolist()))
        seen.outcome = pace.end()
        seen.state = [buffer.sha256() for buffer in (parts.model.weights, *parts.solver.histories)]
    return seen


def run_center(setting: Setting, layout: Layout, num_steps: int, transport: Transport, closing: ExitStack) -> RunCenter:
    descriptors = BoxDescriptors(create_board(1), create_empty())
    for descriptor in (descriptors.board, descriptors.center):
        closing.callback(os.close, descriptor)
    config = RunConfig("train", Path("solver"), strategy=setting.strategy, timeout_s=50.0)
    made = (config, transport, transport, RecordWriter(-1), lambda _steps_done: Requests(), lambda _rank: False)
    return RunCenter(RankContext(*made, descriptors), layout, 0, num_steps, closing)


def at_own_speed(parts: Rank, seen: SeenAtACenter, num_steps: int, center: RunCenter) -> AsyncPace:
    def save(steps_done: int) -> None:
        if (under_way := getattr(parts.strategy, "_under_way", None)) is not None:
            under_way.wait(Deadline.after(50.0))  # a snapshot has the center as it is, with or without this update
        with parts.evaluated.in_place():
            parts.finite.require()
            digest = parts.model.weights.sha256()
            state = {name: value.tobytes() for name, value in parts.evaluated.strategy_state().items()}
        seen.saved.append((steps_done, len(state), f"{digest} {state}"))

    def master() -> Master:
        schedule = Schedule(0, num_steps, snapshot_interval=SAVED_EVERY, test_at_start=False, test_at_end=False)
        duties = Duties(schedule, lambda: iter(()), save, seen)
        return Master(run, duties, seen, parts.evaluated.settle)

    run = Run(center.table, center.headcount, num_steps, Voice(lambda _text: None, seen.said.append), 50.0)
    assert isinstance(parts.strategy, CenterSteps)
    made = (parts.strategy, parts.finite, Order(), parts.evaluated, center.lock_wait_s)
    return AsyncPace(run, AsyncParts(*made), master, lambda _steps_done: Requests(), lambda *own: own, 0)


def alone(path: Path, setting: Setting, num_steps: int, seed: int, spoil: int = -1) -> SeenAtACenter:
    (seen,) = on_threads(1, partial(trained, path, setting, num_steps, seed, spoil))
    return seen


def learned(seen: SeenAtACenter) -> tuple[Any, ...]:
    """All that must not depend on the place of the model. Losses of steps are reported when they have come."""
    assert seen.outcome is not None
    return seen.state, seen.saved, seen.steps, seen.said, seen.outcome.train_loss


def staged(setting: Setting) -> Setting:
    return replace(setting, device=AWAY)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


@pytest.mark.parametrize("name", names("async-sgd, every step", "async-easgd, period", "shm-easgd"))
def test_only_exchanges_cross_the_bus_and_wait_and_the_bits_are_the_same(net: Path, name: str) -> None:
    setting = SETTINGS[name]
    ours, theirs = alone(net, near(setting), 23, 7), alone(net, staged(setting), 23, 3)
    assert learned(ours) == learned(theirs)
    assert [steps for steps, _, _ in ours.saved] == [10, 20, 23]
    require_little(setting, ours, 7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SETTINGS)
def test_200_steps_and_streams_that_run_late_give_the_same_bits(net: Path, name: str) -> None:
    setting = SETTINGS[name]
    for num_steps, seeds in ((200, [1]), (12, range(10, 20))):
        wanted = learned(alone(net, staged(setting), num_steps, 3))
        for seed in seeds:
            ours = alone(net, near(setting), num_steps, seed)
            assert learned(ours) == wanted, f"seed {seed}"
            require_little(setting, ours, seed)


@pytest.mark.parametrize("name", ["async-easgd", pytest.param("async-sgd", marks=pytest.mark.slow)])
def test_weights_that_are_not_finite_are_kept_from_the_center(net: Path, name: str) -> None:
    ours, theirs = (alone(net, place(SETTINGS[name]), 12, 7, spoil=5) for place in (near, staged))
    assert learned(ours) == learned(theirs)
    assert ["not finite were kept from the center" in text for text in ours.said] == [True]


@pytest.mark.parametrize("left_out", COPIES_LEFT_OUT)
@pytest.mark.parametrize("name", names("async-easgd, period"))
def test_an_event_that_is_left_out_is_noticed(
    net: Path, name: str, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = learned(alone(net, staged(SETTINGS[name]), 12, 3))
    attribute, mistake = COPIES_LEFT_OUT[left_out]
    monkeypatch.setattr(StagedBuffer, attribute, mistake)
    for seed in range(1, 11):
        try:
            if learned(alone(net, near(SETTINGS[name]), 12, seed)) != wanted:
                return
        except SamovarError:
            return
    raise AssertionError("not noticed in 10 seeds")
