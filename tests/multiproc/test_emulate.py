"""`samovar run --emulate`: processes of one host behave like workers of a described cluster, and learn the same."""

import json
import re
import time
from pathlib import Path

import pytest
import torch

from samovar.api import emulated
from samovar.core.layout import Bucket, Entry, ParameterSpec
from samovar.core.machine import DescribedStep, MachineModel
from samovar.frontends.torch.backward_pass import BackwardPass
from tests.multiproc.command import run, succeed

CLUSTER = """
title = "two racks of two nodes"
[node]
workers = 2
bandwidth = "500 MB/s"
latency = "20 us"
[network]
bandwidth = "1 Gbit/s"
latency = "100 us"
overhead = "10 us"
[rack]
nodes = 1
[server]
place = "own nodes"
count = 2
"""
LOOP = """
import hashlib, sys, samovar, torch
from torch import nn
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with samovar.replicate(model, optimizer, sys.argv[1], **eval(sys.argv[2])) as replica:
    data = torch.Generator().manual_seed(replica.rank)
    for _ in range(8):
        optimizer.zero_grad()
        replica.backward(model(torch.randn(8, 64, generator=data)).square().mean())
        replica.step()
    replica.finish()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print("weights", hashlib.sha256(weights).hexdigest())
"""
PROFILE = {
    "format": "samovar profile 1",
    "net": "loop",
    "batch_size": 8,
    "layers": [
        {"name": "0", "num_parameters": 64 * 256 + 256, "forward_s": 0.001, "backward_s": 0.002},
        {"name": "2", "num_parameters": 256 * 3 + 3, "forward_s": 0.001, "backward_s": 0.002},
    ],
    "update_s": 0.001,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    return tmp_path


def weights(folder: Path, num_ranks: int, *flags: object, settings: str = "{}", strategy: str = "sync") -> set[str]:
    words = ("run", "-n", num_ranks, "--oversubscribe", "--all-lines", *flags, "loop.py", strategy, settings)
    ended = succeed(*words, folder=folder, forks_scripts=True)
    found = re.findall(r"weights (\w+)", ended.output)
    assert len(found) == num_ranks, ended.output
    return set(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("sync", {"collective": "ring", "bucket_size": "model", "factors": "none"}),
        ("sync-easgd", {"sync_period": 2}),
        ("diloco", {}),
    ],
)
def test_weights_have_the_bits_of_a_run_without_it(folder: Path, strategy: str, settings: dict[str, object]) -> None:
    asked = {"strategy": strategy, "settings": repr({"collective": "ring", **settings})}
    shaped = weights(folder, 4, "--emulate", "cluster.toml", "--profile", "profile.json", **asked)
    assert shaped == weights(folder, 4, **asked)
    assert len(shaped) == 1


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("async-msgd", "hybrid-easgd", "round-robin-easgd")]


@pytest.mark.parametrize("strategy", ["shm-easgd", *SLOW])
def test_workers_share_a_center_behind_the_described_network(folder: Path, strategy: str) -> None:
    settings = "{'group_size': 2}" if strategy == "hybrid-easgd" else "{}"
    flags = ("--emulate", "cluster.toml")
    assert len(weights(folder, 4, *flags, strategy=strategy, settings=settings)) == 1


def test_a_profile_of_emulated_steps_is_not_written(folder: Path) -> None:
    """The same program reads the file again: each run would sleep for longer than the one before."""
    (folder / "loop.py").write_text(
        LOOP.replace("    for _", '    replica.profile("profile.json", steps=2)\n    for _')
    )
    before = (folder / "profile.json").read_bytes()
    flags = ("--emulate", "cluster.toml", "--profile", "profile.json")
    ended = succeed(
        "run", "-n", 2, "--oversubscribe", *flags, "loop.py", "sync", "{}", folder=folder, forks_scripts=True
    )
    assert "no profile: these steps take the time of an emulated cluster" in ended.errors
    assert (folder / "profile.json").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--profile", "profile.json"), "is for --emulate; give the cluster, too"),
        (("--emulate", "cluster.toml", "--transport", "tcp"), "leave --transport out"),
        (("--emulate", "cluster.toml", "--keep-going"), "leave --keep-going out"),
        (("--emulate", "ethernet-10g"), "give --profile FILE"),
        (("--emulate", "titanic"), "--emulate titanic: is not a .toml file, and no such preset; allowed are"),
        (("--emulate", "fast.toml"), "describe slower links"),
        (("--emulate", "cluster.toml", "--profile", "other.json"), "this model trains 17,411"),
    ],
)
def test_what_cannot_be_emulated_is_refused(folder: Path, flags: tuple[str, ...], told: str) -> None:
    (folder / "fast.toml").write_text('title = "fast"\n[network]\nbandwidth = "1 Tbit/s"\n')
    (folder / "other.json").write_text(json.dumps(PROFILE | {"layers": PROFILE["layers"][1:]}))  # type: ignore[index]
    ended = run("run", "-n", 2, *flags, "loop.py", "sync", "{}", folder=folder, forks_scripts=True)
    assert ended.return_code
    assert told in ended.errors


def test_a_step_ends_its_parts_when_the_described_worker_would(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, slept = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(emulated, "sleep_until", lambda moment_s, _early_s: slept.append(moment_s - 100.0))
    step = DescribedStep(1.0, (30, 20, 50), (2.0, 4.0, 8.0), 0.5, 0.25)
    pace = emulated.ComputePace(step, MachineModel(compute_factors=(1.0, 3.0)), rank=1, wake_up_s=0.0)
    paced = pace.paced(BackwardPass(torch.zeros(())))
    final = paced.announced(lambda _bucket: None)
    for index, sizes in enumerate(((30,), (15, 5), (50,))):
        entries = tuple(Entry(ParameterSpec(str(size), (size,)), 0) for size in sizes)
        final(Bucket(index, entries, 0, sum(sizes)))
    pace.updating(lambda: None)
    assert slept == [3 * 1.0, 3 * 3.0, 3 * 7.0, 3 * 15.0, 3 * 0.25]
