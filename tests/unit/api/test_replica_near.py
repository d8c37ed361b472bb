"""`samovar.replicate` on a device that exchanges where its tensors lie: the same bits as on the CPU, and no waits.

The device is tests.fake_device: its streams run late, in a drawn order.
"""

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.collectives.engine import PlannedCollectives
from samovar.frontends.torch import parameters
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Transport
from samovar.transports.torch_dist import NearCollectives
from tests.fake_device import AWAY, away_mode
from tests.fake_streams import FakeDevice, FakeNccl, Meetings
from tests.threads import on_threads

CPU = torch.device("cpu")
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
    settings: dict[str, Any], num_steps: int, seed: int | None, meetings: Meetings | None, transport: Transport
) -> Any:
    """The weights in the end; of each step the bytes over the bus and the host's waits for the device."""
    torch.set_num_threads(1)
    rank = transport.group.rank
    with nullcontext() if meetings is None else away_mode(seed and seed + rank) as device:
        host = PlannedCollectives(transport, lambda _num_bytes: "direct")

        def connect(among: Any) -> NearCollectives:
            return NearCollectives(FakeNccl(meetings, rank), among, AWAY)  # type: ignore[arg-type]

        team = ProcessGroup(host, 20.0, connect_near=None if meetings is None else connect)
        place = CPU if device is None else AWAY
        model = copy.deepcopy(NET).to(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        batches = [batch.to(place) for batch in DATA[rank]]
        replica = Replica(model, optimizer, team, StrategyConfig(**settings), 20.0)
        counted = [] if device is None else [device.counts()]
        for step in range(num_steps):
            optimizer.zero_grad()
            x = batches[step % len(batches)]
            replica.backward(F.mse_loss(model(x), x[:, :4]))
            replica.step()
            if device is not None:
                counted.append(device.counts())
        replica.finish()
        weights = [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]
        replica.close()
    return weights, [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in zip(counted, counted[1:])]


def on_all(name: str, num_steps: int, seed: int | None, world_size: int = 2, *, away: bool) -> list[Any]:
    world_size = world_size if name in IN_STEP else 1
    meetings = Meetings(world_size) if away else None
    return on_threads(world_size, partial(learned, SETTINGS[name], num_steps, seed, meetings))


@pytest.fixture(autouse=True)
def _away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "DEVICE_TYPES", ("cpu", AWAY.type))


@pytest.mark.parametrize("name", IN_STEP)
def test_in_step_nothing_crosses_the_bus_and_the_host_never_waits(name: str) -> None:
    plain = on_all(name, 12, None, away=False)
    for (ours, counted), (theirs, _) in zip(on_all(name, 12, 7, away=True), plain, strict=True):
        assert ours == theirs
        assert all(waits == 0 for _, waits in counted), counted
        assert all(num_bytes < 200 for num_bytes, _ in counted), counted
