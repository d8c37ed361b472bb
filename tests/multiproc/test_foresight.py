"""A run says how far it was from its prediction: `samovar train` and a user's own loop."""

import json
from pathlib import Path

import pytest

from samovar.core.machine import NOMINAL
from samovar.launch.wishes import state_folder
from samovar.predict.kept import Kept
from tests.multiproc.command import succeed
from tests.multiproc.nets import write_net, write_solver

STEPS = 30
LOOP = f"""
import samovar, torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with samovar.replicate(model, optimizer) as replica:
    if replica.world_size == 1:
        replica.profile("loop.json", batch_size=8)
    for _ in range({STEPS}):
        replica.backward(model(torch.ones(8, 64)).mean())
        replica.step()
    replica.finish()
"""


@pytest.fixture(autouse=True)
def _measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `samovar doctor`, which takes some seconds."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Kept(state_folder()).keep_machine(NOMINAL)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "shm-easgd"])
def test_train_compares_several_workers_with_one(tmp_path: Path, digits: Path, strategy: str) -> None:
    solver = write_solver(write_net(tmp_path, digits), STEPS)
    common = ("train", "--solver", solver, "--threads-per-worker", 1, "--strategy", strategy, "--recipe", "none")
    alone = succeed(*common, "--workers", 1, "--out", "one", folder=tmp_path)
    assert "predicted" not in alone.output
    ended = succeed(*common, "--workers", 2, "--out", "two", folder=tmp_path)
    assert "(layers a run with one worker)" in ended.output
    foreseen = json.loads((tmp_path / "two" / "result.json").read_text())["foreseen"]
    assert foreseen["measured_s"] > 0 < foreseen["predicted_s"]
    shown = succeed("predict", "--solver", solver, "--workers", 2, "--strategy", strategy, folder=tmp_path)
    assert "in 1 runs on this kind of cluster" in shown.output


@pytest.mark.slow
def test_a_loop_compares_itself_with_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "loop.py").write_text(LOOP)
    for workers in (1, 2):
        ended = succeed("run", "--workers", workers, "loop.py", folder=tmp_path)
        assert ("predicted" in ended.output + ended.errors) is (workers == 2)
