"""`samovar train` in step with the model on its devices: the bits of the host's memory, and no step that waits.

The device is tests.fake_device: its streams run late, in a drawn order. What it computes is compared with the same
device, where each step copies the model, waits, and updates it in the host's memory.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from samovar.collectives.engine import RecordExchange
from samovar.core.errors import NotFinite
from samovar.frontends.torch.late import LateCopy
from samovar.report.steps import StepDone
from samovar.training.in_step import NUM_RECORD_FIELDS, InStep
from samovar.training.loop import Duties, Observer, Outcome, Requests, Schedule, StepMade
from samovar.transports.base import Transport
from tests.fake_device import AWAY, away_mode
from tests.fake_streams import Meetings
from tests.parity.staged import NET, Rank, Setting, batches
from tests.parity.test_staged import of
from tests.threads import on_threads

PERIOD = {"sync_period_steps": 4}
SETTINGS = {
    "alone": of("sync", 1, num_parts=2),
    "sync": of("sync"),
    "by layers, behind backward": of("sync", overlap="backward", bucket_size_bytes=1, num_parts=2),
    "bf16": of("sync", precision="bf16"),
    "local-sgd": of("local-sgd", **PERIOD),
    "diloco": of("diloco", **PERIOD),
    "slowmo": of("slowmo", **PERIOD),
    "sync-easgd": of("sync-easgd", **PERIOD),
    "sync-easgd, none": of("sync-easgd", **PERIOD, overlap="none"),
    "sync-easgd, step": of("sync-easgd", **PERIOD, overlap="step"),
    "round-robin-easgd": of("round-robin-easgd", **PERIOD),
}
OFTEN = ("by layers, behind backward", "sync-easgd")
SAVED_EVERY = 10
MASK_BYTES = 6 * 20  # of the dropout, drawn on the host
INPUT_BYTES = sum(tensor.nbytes for tensor in next(batches(0, 2)).tensors.values())
SMALL_BYTES = 64  # losses, and whether each weight is finite


def allowed(setting: Setting, step: int, model_bytes: int) -> tuple[int, int]:
    """The most bytes over the bus, and the waits, of step `step`, from 1: at a center an exchange has one."""
    small = setting.num_parts * (INPUT_BYTES + MASK_BYTES) + SMALL_BYTES
    if setting.strategy.needs_center and step % (setting.strategy.sync_period_steps or 1) == 0:
        return 2 * model_bytes + small, 1
    return small, 0


@dataclass
class Seen(Observer):
    """What a rank's observer is told, and of each step the bytes over the bus and the host's waits for the device."""

    losses: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    saved: list[tuple[int, int, str]] = field(default_factory=list)
    counted: list[tuple[int, int]] = field(default_factory=list)
    model_bytes: int = 0
    outcome: Outcome | None = None

    def step_done(self, done: StepDone) -> None:
        self.losses.append(done.loss)
        self.steps.append(done.steps_done)


def trained(path: Path, setting: Setting, num_steps: int, seed: int | None, spoil: int, transport: Transport) -> Seen:
    """`spoil`: the step before which a weight of this rank becomes infinite."""
    torch.set_num_threads(1)
    rank, seen = transport.group.rank, Seen()
    with away_mode(seed and seed + rank) as device, ExitStack() as closing:
        parts = Rank(path, setting, transport, "near", closing)
        seen.model_bytes = parts.model.weights.tensor_N.nbytes
        pace = in_step(parts, seen, num_steps, SAVED_EVERY if spoil < 0 else 0, transport)
        pace.begin()
        while (step := pace.next_rate_step()) is not None:
            before = device.counts()
            if step == spoil and rank == 1:
                parts.model.weights.tensor_N[:1].fill_(float("inf"))
            loss = parts.worker.step(step)
            pace.stepped(StepMade(step, loss, parts.worker.times, 1.0))
            seen.counted.append(tuple(np.subtract(device.counts(), before).tolist()))
        seen.outcome = pace.end()
    return seen


def in_step(parts: Rank, seen: Seen, num_steps: int, saved_every: int, transport: Transport) -> InStep:
    def save(steps_done: int) -> None:
        with parts.evaluated.in_place():
            parts.finite.require()
            digest = parts.model.weights.sha256()
        seen.saved.append((steps_done, len(seen.losses), digest))

    schedule = Schedule(0, num_steps, snapshot_interval=saved_every, test_at_start=False, test_at_end=False)
    return InStep(
        Duties(schedule, lambda: iter(()), save, seen),
        schedule,
        RecordExchange(transport, NUM_RECORD_FIELDS),
        parts.strategy.exchanges_at,
        parts.worker.forward,
        lambda _steps_done: Requests(),
        parts.finite,
        50.0,
    )


def on_all(path: Path, setting: Setting, num_steps: int, seed: int | None, spoil: int = -1) -> list[Seen]:
    return on_threads(setting.world_size, partial(trained, path, setting, num_steps, seed, spoil))


def near(setting: Setting) -> Setting:
    return replace(setting, device=AWAY, meetings=Meetings(setting.world_size))


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def require_near(net: Path, name: str, num_steps: int, seed: int, staged: list[Seen]) -> None:
    for ours, theirs in zip(on_all(net, near(SETTINGS[name]), num_steps, seed), staged, strict=True):
        assert ours.saved == theirs.saved, f"seed {seed}"  # after the report of all steps before
        assert ours.losses == theirs.losses, f"seed {seed}"
        assert ours.steps == theirs.steps == list(range(1, num_steps + 1))
        require_little(SETTINGS[name], ours, seed)


def require_little(setting: Setting, ours: Seen, seed: int) -> None:
    """Of each step without a snapshot: the model crosses the bus where it is exchanged at a center, and only there."""
    for step, (num_bytes, num_waits) in enumerate(ours.counted, 1):
        most_bytes, waits = allowed(setting, step, ours.model_bytes)
        if step % SAVED_EVERY:
            assert num_bytes <= most_bytes, (seed, step, ours.counted)
            assert num_waits == waits, (seed, step, ours.counted)


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]
)
def test_a_step_on_the_device_gives_the_same_bits_and_waits_for_nothing(net: Path, name: str) -> None:
    staged = on_all(net, replace(SETTINGS[name], device=AWAY), 12, 3)
    require_near(net, name, 12, 7, staged)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SETTINGS)
def test_200_steps_and_streams_that_run_late_give_the_same_bits(net: Path, name: str) -> None:
    require_near(net, name, 200, 1, on_all(net, replace(SETTINGS[name], device=AWAY), 200, 3))
    staged = on_all(net, replace(SETTINGS[name], device=AWAY), 12, 3)
    for seed in range(10, 20):
        require_near(net, name, 12, seed, staged)


def test_a_loss_that_is_read_before_it_has_come_is_noticed(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(SETTINGS["sync"], device=AWAY)
    losses = [rank.losses for rank in on_all(net, setting, 9, 3)]
    monkeypatch.setattr(LateCopy, "has_come", lambda _copy: True)
    monkeypatch.setattr(LateCopy, "values", lambda copy: copy._host.tolist())
    assert [rank.losses for rank in on_all(net, near(setting), 9, 7)] != losses


def test_a_weight_that_is_not_finite_ends_the_run_a_few_steps_later(net: Path) -> None:
    with pytest.raises(NotFinite, match=r"rank [01]: the weights of .* are not finite after step 8; lower base_lr"):
        on_all(net, near(SETTINGS["sync"]), 40, None, spoil=3)
