"""`--metrics` of `samovar train` and `samovar run`: the figures in TensorBoard, a sink of one's own, and a folder."""

import json
import re
from pathlib import Path

import pytest

from samovar.report.metrics import read_metrics
from samovar.report.sinks import scalars
from tests.multiproc.command import run, succeed
from tests.multiproc.nets import write_net, write_solver
from tests.unit.report.test_services import imported

OWN = """
import json, samovar
from pathlib import Path

class Mine(samovar.Sink):
    def begin(self, run):
        self.file = Path("mine.jsonl").open("w")
        self.say({"strategy": run["strategy"], "period": run.get("strategy/sync_period_steps")})
    def say(self, value):
        self.file.write(json.dumps(value) + "\\n")
    def write(self, step, kind, values):
        self.say({"step": step, "kind": kind, **values})
    def close(self):
        self.say("closed")
        self.file.close()
"""
SCRIPT = """
import torch, samovar
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
replica = samovar.replicate(model, optimizer)
for _ in range(6):
    replica.backward(model(torch.ones(2, 3)).mean())
    replica.step()
replica.finish()
"""
TRAIN = ("--workers", 1, "--threads-per-worker", 1, "--out", "out")


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    return write_solver(write_net(tmp_path, digits), 4)


def test_a_run_gives_each_line_to_tensorboard_and_to_a_class(tmp_path: Path, solver: Path) -> None:
    events = imported("tensorboard.backend.event_processing.event_accumulator")
    sinks = ("--metrics", "tensorboard,mine.py:Mine")
    succeed("train", "--solver", solver, *TRAIN, *sinks, "--strategy", "local-sgd", folder=tmp_path)
    lines = read_metrics(tmp_path / "out/metrics.jsonl")
    mine = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert mine == [{"strategy": "local-sgd", "period": 8}, *lines, "closed"]
    assert {line["kind"] for line in lines} == {"train", "test"}
    shown = events.EventAccumulator(str(tmp_path / "out/tensorboard")).Reload()
    for line in lines:
        values = {name: value for name, value in line.items() if name not in ("step", "kind")}
        for name, value in scalars(line["kind"], values):
            (event,) = [event for event in shown.Scalars(name) if event.step == line["step"]]
            assert event.value == pytest.approx(value)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["nowhere.py:Mine", "runs/x", "mine.py:json"])
def test_a_sink_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, solver: Path, flag: str) -> None:
    ended = run("train", "--solver", solver, *TRAIN, "--metrics", flag, folder=tmp_path)
    assert ended.return_code == 2
    assert "--metrics" in ended.errors
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_script_has_figures_without_a_change(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    flags = ("--metrics", "figures", "--trace", "steps=3-4")
    ended = run("run", "-n", 2, *flags, "script.py", folder=tmp_path)
    assert ended.return_code == 0, ended.errors
    assert re.search(r"samovar: where the time went: data \d+%", ended.errors)
    assert "samovar: trace of steps 3-4: figures/trace.json.gz" in ended.errors
    assert [line["step"] for line in read_metrics(tmp_path / "figures/metrics.jsonl")] == list(range(1, 7))
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["metrics.jsonl", "trace.json.gz"]


@pytest.mark.slow
def test_a_trace_without_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = run("run", "-n", 2, "--trace", "steps=3-4", "script.py", folder=tmp_path)
    assert (ended.return_code, ended.errors.count("give --metrics FOLDER")) == (2, 1)


@pytest.mark.slow
def test_a_folder_that_has_a_run_of_train_keeps_its_figures(tmp_path: Path, solver: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    succeed("train", "--solver", solver, *TRAIN, folder=tmp_path)
    before = (tmp_path / "out/metrics.jsonl").read_bytes()
    ended = run("run", "-n", 2, "--metrics", "out", "script.py", folder=tmp_path)
    sentence = "--metrics 'out': has a run of `samovar train`; give another folder"
    assert (ended.return_code, ended.error) == (2, sentence)
    assert (tmp_path / "out/metrics.jsonl").read_bytes() == before
