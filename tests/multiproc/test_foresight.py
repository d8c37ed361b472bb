"""A run says how far it was from its prediction: `samovar train` and a user's own loop."""

import json
from pathlib import Path

import pytest

from samovar.core.host import Others, family_seconds
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
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Others:
    """As after `samovar doctor`, which takes some seconds. Gives the other programs of this machine, from now on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Kept(state_folder()).keep_machine(NOMINAL)
    return Others(own_s=family_seconds)


def assert_predicted(text: str, output: str, others: Others) -> None:
    """Skip the test if it is missing because the machine is busy: then nothing is predicted."""
    if text not in output and others.share() > 0.1:
        pytest.skip("other programs compute on this machine, so no run is predicted")
    assert text in output


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "shm-easgd"])
def test_train_compares_several_workers_with_one(tmp_path: Path, digits: Path, strategy: str, others: Others) -> None:
    solver = write_solver(write_net(tmp_path, digits), STEPS)
    common = ("train", "--solver", solver, "--threads-per-worker", 1, "--strategy", strategy, "--recipe", "none")
    alone = succeed(*common, "--workers", 1, "--out", "one", folder=tmp_path)
    assert "predicted" not in alone.output
    ended = succeed(*common, "--workers", 2, "--out", "two", folder=tmp_path)
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    assert result["owner"] == ("parts" if strategy == "sync" else None), "a prediction takes it from here"
    assert_predicted("(layers a run with one worker)", ended.output, others)
    foreseen = result["foreseen"]
    assert foreseen["measured_s"] > 0 < foreseen["predicted_s"]
    shown = succeed("predict", "--solver", solver, "--workers", 2, "--strategy", strategy, folder=tmp_path)
    assert "in 1 runs on this kind of cluster" in shown.output


@pytest.mark.slow
def test_a_loop_compares_itself_with_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Others
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "loop.py").write_text(LOOP)
    alone, ended = (succeed("run", "--workers", workers, "loop.py", folder=tmp_path) for workers in (1, 2))
    assert "predicted" not in alone.output + alone.errors
    assert 0.0 <= json.loads((tmp_path / "loop.json").read_text())["busy"] <= 1.0
    assert_predicted("predicted", ended.output + ended.errors, others)
