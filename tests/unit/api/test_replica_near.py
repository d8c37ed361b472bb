"""`samovar.replicate` on a device that exchanges where its tensors lie: the same bits as on the CPU, and no waits.

The device is tests.fake_device: its streams run late, in a drawn order.
"""

import copy
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn

from samovar.api import replica
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.collectives.engine import PlannedCollectives
from samovar.core.buffer import StagedBuffer
from samovar.core.errors import SamovarError
from samovar.frontends.torch import parameters
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Transport
from samovar.transports.torch_dist import JobStore, NearCollectives, _NearRun
from tests.fake_device import AWAY, away_mode
from tests.fake_streams import FakeNccl, FakeWork, Meetings
from tests.left_out_events import COPIES_LEFT_OUT
from tests.threads import on_threads

CPU = torch.device("cpu")
TIMEOUT_S = 60.0
IN_STEP: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "sync by layers": {"name": "sync", "bucket_size_bytes": 1},
    "sync by layers, behind backward": {"name": "sync", "bucket_size_bytes": 1, "overlap": "backward"},
    "local-sgd": {"name": "local-sgd", "sync_period_steps": 4},
    "diloco": {"name": "diloco", "sync_period_steps": 4},
    "slowmo": {"name": "slowmo", "sync_period_steps": 4},
    "sync-easgd": {"name": "sync-easgd", "sync_period_steps": 4},
    "sync-easgd, none": {"name": "sync-easgd", "sync_period_steps": 4, "overlap": "none"},
    "sync-easgd, step": {"name": "sync-easgd", "sync_period_steps": 4, "overlap": "step"},
}
AT_A_CENTER: dict[str, dict[str, Any]] = {
    "async-easgd": {"name": "async-easgd", "sync_period_steps": 4},
    "shm-easgd": {"name": "shm-easgd", "sync_period_steps": 4},
}
SETTINGS = IN_STEP | AT_A_CENTER


def made_once() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


NET = made_once()
DATA = torch.randn(4, 16, 8, 6, generator=torch.Generator().manual_seed(5))
NUM_BYTES = 4 * sum(p.numel() for p in NET.parameters())


def learned(
    settings: dict[str, Any],
    num_steps: int,
    seed: int | None,
    meetings: Meetings | None,
    transport: Transport,
    connect: Any = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The weights in the end; of each step the bytes over the bus and the host's waits for the device."""
    torch.set_num_threads(1)
    rank = transport.group.rank
    with nullcontext() if meetings is None else away_mode(seed and seed + rank) as device:
        host = PlannedCollectives(transport, lambda _num_bytes: "direct")
        if meetings is not None:
            connect = partial(NearCollectives, FakeNccl(meetings, rank), device=AWAY)
        team = ProcessGroup(host, timeout_s, connect_near=connect)
        place = CPU if device is None else AWAY
        model = copy.deepcopy(NET).to(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        batches = [batch.to(place) for batch in DATA[rank]]
        member = Replica(model, optimizer, team, StrategyConfig(**settings), timeout_s)
        counted = [] if device is None else [device.counts()]
        for step in range(num_steps):
            optimizer.zero_grad()
            x = batches[step % len(batches)]
            member.backward(F.mse_loss(model(x), x[:, :4]))
            member.step()
            if device is not None:
                counted.append(device.counts())
        weights = values_of(model)
        member.finish()
        with member.evaluating():  # the center, where there is one: with what was under way
            weights += values_of(model)
        member.close()
    return weights, [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairwise(counted)]


def values_of(model: nn.Module) -> list[float]:
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def on_all(
    name: str, num_steps: int, seed: int | None, world_size: int = 2, *, away: bool, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    world_size = world_size if name in IN_STEP else 1
    meetings = Meetings(world_size) if away else None
    return on_threads(world_size, partial(learned, SETTINGS[name], num_steps, seed, meetings, timeout_s=timeout_s))


@pytest.fixture(autouse=True)
def _away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "DEVICE_TYPES", ("cpu", AWAY.type))


OFTEN = ("sync by layers, behind backward", "sync-easgd")
NAMES = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in IN_STEP]


def require_near(name: str, num_steps: int, seed: int, plain: list[Any]) -> None:
    """The same bits. Nothing crosses the bus but losses and flags of the step and of those before it.

    After the first step the weights of all ranks are compared, which reads them once.
    """
    for (ours, (_, *counted)), (theirs, _) in zip(on_all(name, num_steps, seed, away=True), plain, strict=True):
        assert ours == theirs, f"seed {seed}"
        assert all(num_waits == 0 for _, num_waits in counted), (seed, counted)
        assert all(num_bytes < 8 * num_steps for num_bytes, _ in counted), (seed, counted)


@pytest.mark.parametrize("name", NAMES)
def test_in_step_nothing_crosses_the_bus_and_the_host_never_waits(name: str) -> None:
    require_near(name, 8, 7, on_all(name, 8, None, away=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_STEP)
def test_200_steps_and_streams_that_run_late_give_the_same_bits(name: str) -> None:
    require_near(name, 200, 1, on_all(name, 200, None, away=False))
    plain = on_all(name, 12, None, away=False)
    for seed in range(10, 30):
        require_near(name, 12, seed, plain)


@pytest.mark.parametrize("name", AT_A_CENTER)
@pytest.mark.parametrize(("num_steps", "seed"), [(24, 3), pytest.param(200, 1, marks=pytest.mark.slow)])
def test_at_a_center_only_exchanges_cross_the_bus(name: str, num_steps: int, seed: int) -> None:
    plain = on_all(name, num_steps, None, away=False)
    ((ours, counted),) = on_all(name, num_steps, seed, away=True)
    assert ours == plain[0][0]
    for step, (num_bytes, num_waits) in enumerate(counted):
        if (step + 1) % 4:
            assert num_bytes < 100, (step, counted)
            assert num_waits == 0, (step, counted)
        else:
            assert 2 * NUM_BYTES <= num_bytes < 2 * NUM_BYTES + 1000, (step, counted)
            assert num_waits == 1, (step, counted)


def begins_early(group: FakeNccl, tensor: Any, combine: Any) -> FakeWork:
    """Not behind the work that the tensor comes from."""
    there = partial(group._meetings.arrive, group._number, group._rank, tensor.inner, combine)
    group._number += 1
    group._stream.add(lambda: None, there)
    return FakeWork(group._stream.record_event())


LEFT_OUT: dict[str, tuple[str, Any, str, Any]] = {
    f"{what}: {name}": (name, *planted)
    for what, names, planted in (
        ("an operation's beginning", IN_STEP, (FakeNccl, "_begin", begins_early)),
        ("an operation's end", IN_STEP, (_NearRun, "finish", lambda run, _deadline: setattr(run, "_work", None))),
        *((what, AT_A_CENTER, (StagedBuffer, *mistake)) for what, mistake in COPIES_LEFT_OUT.items()),
    )
    for name in names
}


@pytest.mark.parametrize(
    "left_out",
    [one if one.endswith(": sync-easgd") else pytest.param(one, marks=pytest.mark.slow) for one in LEFT_OUT],
)
def test_an_event_that_is_left_out_is_noticed(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, place, attribute, mistake = LEFT_OUT[left_out]
    plain = [weights for weights, _ in on_all(name, 12, None, away=False)]
    monkeypatch.setattr(place, attribute, mistake)
    for seed in range(1, 11):
        try:  # a rank may fail alone: the other one waits for it to the end of its time
            if [weights for weights, _ in on_all(name, 12, seed, away=True, timeout_s=4.0)] != plain:
                return
        except SamovarError:
            return
    raise AssertionError("not noticed in 10 seeds")


@pytest.mark.parametrize("name", ["sync by layers, behind backward", pytest.param("diloco", marks=pytest.mark.slow)])
def test_the_same_code_exchanges_memory_of_the_host_by_gloo(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = on_all(name, 12, None, away=False)
    monkeypatch.setattr(replica, "device_of", lambda _parameters: CPU)
    store = JobStore(distributed.HashStore(), "here")

    def by_gloo(transport: Transport) -> Any:
        rank = transport.group.rank
        group = store.near("near", rank, 2, CPU, 60.0)
        return learned(SETTINGS[name], 12, None, None, transport, lambda among: NearCollectives(group, among, CPU))

    for (ours, _), (theirs, _) in zip(on_threads(2, by_gloo), plain, strict=True):
        assert ours == theirs
