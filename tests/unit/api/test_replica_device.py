"""`samovar.replicate` on a device: the same bits as on the CPU, and nothing of both places in one operator.

The stand-ins for a GPU are the CPU with the copies that a GPU needs, and tests.fake_device.
"""

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samovar.api.process_group import ProcessGroup
from samovar.api.reductions import ReplicaBuffers
from samovar.api.replica import Replica
from samovar.collectives.engine import PlannedCollectives
from samovar.core.buffer import pinned, sent
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.frontends.torch import parameters, state
from samovar.frontends.torch.late import Losses
from samovar.frontends.torch.optimizers import Optimizers
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Transport
from samovar.transports.torch_dist import NearCollectives
from tests.fake_device import AWAY, away_mode
from tests.threads import on_threads

STEPS = 6
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "sync": (2, {"name": "sync"}),
    "sync by layers": (2, {"name": "sync", "bucket_size_bytes": 1}),
    "sync as int8": (2, {"name": "sync", "compress": "int8", "always_compresses": True}),
    "local-sgd": (2, {"name": "local-sgd", "sync_period_steps": 2}),
    "diloco": (2, {"name": "diloco", "sync_period_steps": 2}),
    "sync-easgd": (2, {"name": "sync-easgd", "sync_period_steps": 2, "overlap": "period"}),
    "async-easgd": (1, {"name": "async-easgd", "sync_period_steps": 2}),
    "async-sgd": (1, {"name": "async-sgd", "sync_period_steps": 2}),
}
CPU = torch.device("cpu")
OFTEN = ("sync by layers", "diloco", "async-sgd")
NAMES = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models on the CPU are trained with the copies of a GPU."""
    monkeypatch.setattr(state, "device_of", lambda _parameters: CPU)


def made_once() -> Any:
    """BatchNorm's statistics, weights that lie channels-last, and one that is not used."""
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 3))
    model[0].to(memory_format=torch.channels_last)
    model.unused = nn.Linear(2, 2)
    return model


NET = made_once()


def learned(settings: dict[str, Any], device: torch.device, with_half: bool, transport: Transport) -> Any:
    """Losses, what `evaluating` shows, and the weights in the end; saved, and loaded into a second replica halfway."""
    torch.set_num_threads(1)
    with away_mode() if device == AWAY else nullcontext():
        team = ProcessGroup(PlannedCollectives(transport, lambda _num_bytes: "direct"), 60.0)
        model, optimizer, replica = made(team, settings, device, with_half)
        generator = torch.Generator().manual_seed(transport.group.rank)
        found: list[Any] = []
        for step in range(STEPS):
            if step == 3:
                state = replica.state_dict()
                assert {tensor.device for tensor in state["model"].values()} == {CPU}
                model, optimizer, replica = made(team, settings, device, with_half)
                replica.load_state_dict(state)
            images = torch.randn(4, 2, 4, 4, generator=generator).to(device)
            labels = torch.randint(0, 3, (4,), generator=generator).to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(scores(model, images), labels)
            replica.backward(loss)
            replica.step()
            found.append(float(loss.detach()))
            if step % 2:
                with replica.evaluating(), torch.no_grad():
                    found += [scores(model.eval(), images).flatten().tolist(), values(model)]
                model.train()
        replica.finish()
        return [*found, values(model)]


def made(team: ProcessGroup, settings: dict[str, Any], device: torch.device, with_half: bool) -> Any:
    model = copy.deepcopy(NET)  # threads share torch's generator
    if with_half:
        model[3].to(torch.bfloat16)
    model.to(device)
    momentum = 0.0 if settings["name"] == "async-sgd" else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    return model, optimizer, Replica(model, optimizer, team, StrategyConfig(**settings), 60.0)


def scores(model: Any, images: torch.Tensor) -> torch.Tensor:
    *first, last = model[:3], model[3], model[4]
    x = first[0](images)
    return last(first[1](x.to(first[1].weight.dtype)).float())


def values(model: nn.Module) -> list[float]:
    tensors = [*model.parameters(), *model.buffers()]
    return [value for tensor in tensors for value in tensor.detach().float().flatten().tolist()]


def on_all(name: str, device: torch.device) -> list[Any]:
    world_size, settings = SETTINGS[name]
    with_half = name not in ("async-sgd", "async-easgd")
    return on_threads(world_size, partial(learned, settings, device, with_half))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_with_the_copies_of_a_device(name: str, request: pytest.FixtureRequest) -> None:
    plain = on_all(name, CPU)
    request.getfixturevalue("staged")
    assert on_all(name, CPU) == plain
    assert plain[0][0] != plain[0][1]


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")  # which the stand-in can copy
@pytest.mark.parametrize("name", NAMES)
def test_a_model_away_from_the_cpu_learns_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = on_all(name, CPU)
    monkeypatch.setattr(parameters, "DEVICE_TYPES", ("cpu", AWAY.type))
    for ours, theirs in zip(on_all(name, AWAY), plain, strict=True):
        for found, wanted in zip(ours, theirs, strict=True):
            assert found == pytest.approx(wanted, rel=0.05, abs=0.02)  # bfloat16 rounds what differs in the last bit


def test_models_on_several_devices_and_on_other_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"'1\.weight' is on meta; models are trained on cpu or cuda here"):
        parameters.trained_parameters(model, Optimizers(optimizer))
    monkeypatch.setattr(parameters, "DEVICE_TYPES", ("cpu", "meta"))
    with pytest.raises(InputError, match=r"'0\.weight' is on cpu and '1\.weight' on meta; each rank trains on one"):
        parameters.trained_parameters(model, Optimizers(optimizer))


def test_late_losses_are_those_that_came_whatever_writes_to_their_memory() -> None:
    """As the replays of a CUDA graph do. With torch's default device set, pinned memory is the host's."""
    with away_mode(seed=3) as device, AWAY:
        losses, loss = Losses(), torch.ones(())
        for value in (1.0, 2.0):
            losses.add(loss.fill_(value))
        found = losses.take(2)
        loss.fill_(3.0)
        device.synchronize()
        assert (found or losses.take(2)) == ([1.0, 2.0], 2)
        assert sent(torch.ones(2, device=CPU), AWAY).tolist() == [1.0, 1.0]
        assert not pinned(2, AWAY).any()


def test_a_float64_buffer_on_a_device_has_a_mean() -> None:
    with away_mode():
        model: Any = nn.Module()
        model.register_buffer("sums", torch.tensor([1.0, 3.0], dtype=torch.float64).to(AWAY))
        with state.BufferMean(model).replaced(np.array([2.0, 3.0], np.float32)):
            assert model.sums.tolist() == [2.0, 3.0]
        assert model.sums.tolist() == [1.0, 3.0]


def waits_for_buffers(transport: Transport) -> list[int]:
    """Of steps 1 to 4."""
    with away_mode() as device:
        team = ProcessGroup(PlannedCollectives(transport, lambda _num_bytes: "direct"), 60.0)
        model = nn.BatchNorm1d(3).to(AWAY)
        buffers = ReplicaBuffers(model, team, partial(Deadline.after, 60.0), is_async=True, period=4)
        waits = []
        for step in range(1, 5):
            before = device.synchronizations
            buffers.stepped(step)
            waits.append(device.synchronizations - before)
        return waits


def test_buffers_at_a_center_are_read_from_a_device_at_exchanges_alone() -> None:
    assert on_threads(2, waits_for_buffers) == [[0, 0, 0, 2]] * 2


def test_a_model_on_another_device_than_the_connected_one_is_copied() -> None:
    def of(transport: Transport) -> bool:
        host = PlannedCollectives(transport, lambda _num_bytes: "direct")
        first, second = torch.device("cuda:0"), torch.device("cuda:1")
        team = ProcessGroup(host, 20.0, connect_near=lambda among: NearCollectives(None, among, first))
        near, other = (team.collectives_for(StrategyConfig(name="sync"), place) for place in (first, second))
        return isinstance(near, NearCollectives) and other is host

    assert on_threads(1, of) == [True]
