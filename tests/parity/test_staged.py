"""A net that computes in memory of its own learns the same bits, however workers share what they learn.

The stand-ins for a GPU are the CPU with the copies that a GPU needs, and tests.fake_device, without native kernels.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samovar.core.stateful import StateValue
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from tests.fake_device import AWAY
from tests.parity.staged import NET, Setting, learned
from tests.threads import on_threads

CPU = torch.device("cpu")
ALONE_AT_A_CENTER = (
    "async-sgd",
    "async-msgd",
    "hogwild-sgd",
    "async-easgd",
    "async-measgd",
    "hogwild-easgd",
    "shm-easgd",
)


def of(name: str, world_size: int = 2, **more: Any) -> Setting:
    settings = {key: more.pop(key) for key in tuple(more) if key in StrategyConfig.__slots__}
    return Setting(resolved(StrategyConfig(name, **settings), world_size), world_size, **more)


SETTINGS = {
    "alone": of("sync", 1, num_parts=2),
    "plain": of("sync", num_parts=3),
    "in parts": of("sync", overlap="none", owner="parts", bucket_size_bytes=1000),
    "backward": of("sync", overlap="backward", bucket_size_bytes=1),
    "full": of("sync", overlap="full", bucket_size_bytes=1),
    "full at the root": of("sync", overlap="full", owner="root", bucket_size_bytes=1000, num_parts=2),
    "bf16, full": of("sync", overlap="full", bucket_size_bytes=1, precision="bf16"),
    "compressed": of("sync", compress="int8", always_compresses=True),
    "sync-easgd": of("sync-easgd", sync_period_steps=2, overlap="none"),
    "sync-easgd, step": of("sync-easgd", sync_period_steps=2, overlap="step"),
    "sync-easgd, period": of("sync-easgd", sync_period_steps=2, overlap="period", precision="bf16"),
    "broadcast": of("sync-easgd", sync_period_steps=2, variant="broadcast"),
    "local-sgd": of("local-sgd", sync_period_steps=2),
    "diloco": of("diloco", sync_period_steps=2),
    "diloco, streaming": of("diloco", sync_period_steps=2, fragments=2, delay_steps=1, compress="int4"),
    "round-robin-easgd": of("round-robin-easgd", sync_period_steps=2),
    "hybrid-easgd": of("hybrid-easgd", sync_period_steps=2, group_size=2),
    **{name: of(name, 1, sync_period_steps=2) for name in ALONE_AT_A_CENTER},
}

OFTEN = ("in parts", "bf16, full", "sync-easgd, period", "local-sgd", "async-sgd")
NAMES = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def on_all(net: Path, setting: Setting) -> list[dict[str, Any]]:
    return on_threads(setting.world_size, partial(learned, net, setting))


def bits(value: StateValue | list[float]) -> object:
    return (value.dtype, value.tobytes()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_with_the_copies_of_a_device(net: Path, name: str) -> None:
    plain, staged = on_all(net, SETTINGS[name]), on_all(net, replace(SETTINGS[name], device=CPU))
    for ours, theirs in zip(staged, plain, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert bits(ours[key]) == bits(theirs[key]), key
    losses = plain[0]["losses"]
    assert len(set(losses)) == len(losses)
    assert all(np.isfinite(losses))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "full", "diloco", "diloco, streaming", "sync-easgd, period"])
def test_a_run_on_a_device_goes_on_from_what_it_saved(net: Path, name: str) -> None:
    setting = replace(SETTINGS[name], device=CPU)
    for ours, theirs in zip(on_all(net, replace(setting, steps_then_saved=3)), on_all(net, setting), strict=True):
        assert {key: bits(value) for key, value in ours.items()} == {k: bits(v) for k, v in theirs.items()}


@pytest.mark.parametrize("name", ["bf16, full", pytest.param("plain", marks=pytest.mark.slow), "local-sgd"])
def test_a_device_without_native_kernels_learns_the_same(net: Path, name: str) -> None:
    """All that a step, an evaluation and a snapshot do with tensors, with none of both places in one operator."""
    setting = SETTINGS[name]
    tolerance = 1e-4 if setting.precision == "fp32" else 0.05
    for ours, theirs in zip(on_all(net, replace(setting, device=AWAY)), on_all(net, setting), strict=True):
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=tolerance)
        for found, wanted in zip(ours["evaluated"], theirs["evaluated"], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
