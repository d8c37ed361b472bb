"""Figures of a loop in one process: the moment of each line, and where it goes."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar
from samovar.api.center import BoxChoice, box_choice
from samovar.api.exchanges import Exchange, _tell
from samovar.api.figures_wanted import FiguresWanted, figures_wanted
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.core.errors import InputError
from samovar.launch.wishes import METRICS, TRACE
from samovar.report.metrics import read_metrics
from samovar.report.sinks import Sink
from samovar.strategies.config import StrategyConfig


class Kept(Sink):
    def __init__(self) -> None:
        self.run: Mapping[str, object] = {}
        self.lines: list[tuple[int, str, Mapping[str, Any]]] = []
        self.num_closed = 0

    def begin(self, run: Mapping[str, object]) -> None:
        self.run = run

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        self.lines.append((step, kind, values))

    def close(self) -> None:
        self.num_closed += 1


def replica_of(team: ProcessGroup, wanted: FiguresWanted, **settings: Any) -> tuple[Replica, nn.Module]:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Replica(model, optimizer, team, StrategyConfig(**settings), 5.0, wanted=wanted), model


def steps(replica: Replica, model: nn.Module, count: int) -> None:
    for _ in range(count):
        replica.backward(model(torch.ones(2, 3)).mean())
        replica.step()


def test_a_sink_gets_the_run_and_each_step_and_is_closed_once(team: ProcessGroup) -> None:
    kept = Kept()
    replica, model = replica_of(team, figures_wanted(kept, None, has_center=False), name="local-sgd")
    data = DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=2)
    for (x,) in replica.shard(data):
        replica.backward(model(x).mean())
        replica.step()
    replica.close()
    replica.close()
    assert kept.run["strategy"] == "local-sgd"
    assert (kept.run["model"], kept.run["num_parameters"], kept.run["world_size"]) == ("Sequential", 11, 1)
    assert [(step, kind) for step, kind, _ in kept.lines] == [(step, "train") for step in range(1, 5)]
    assert all(values["samples"] == 2 and values["data_s"] > 0 for _, _, values in kept.lines)
    assert kept.lines[0][2]["learning_rate"] == 0.5
    assert kept.num_closed == 1


def test_the_figures_of_a_loop_say_where_its_time_goes(team: ProcessGroup) -> None:
    replica, model = replica_of(team, FiguresWanted())
    assert replica.figures().steps == 0
    steps(replica, model, 3)
    figures = replica.figures()
    assert isinstance(figures, samovar.Figures)
    assert (figures.steps, figures.slow_rank, figures.samples) == (3, None, 0)
    assert re.match(r"where the time went: data \d+%, forward \d+%", figures.verdict)
    assert "--" not in figures.verdict
    replica.close()


@pytest.mark.parametrize("output", [torch.Tensor.clone, lambda y: torch.complex(y[:1], y[1:])], ids=["two", "complex"])
def test_a_loss_that_is_not_one_real_number_has_no_figure(team: ProcessGroup, output: Any) -> None:
    kept = Kept()
    replica, model = replica_of(team, figures_wanted([kept], None, has_center=False))
    loss = output(model(torch.ones(2, 3)))
    replica.backward(loss, gradient=torch.ones_like(loss))
    replica.step()
    assert np.isnan(kept.lines[0][2]["loss"])
    replica.close()


def test_a_later_run_puts_the_file_aside_and_a_resumed_one_continues_it(
    team: ProcessGroup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = figures_wanted(tmp_path, None, has_center=False)
    replica, model = replica_of(team, wanted)
    steps(replica, model, 5)
    state = replica.state_dict()
    replica.close()
    replica, model = replica_of(team, wanted)
    replica.load_state_dict(state)
    steps(replica, model, 2)
    replica.close()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert "warning" not in capsys.readouterr().err
    for number, num_lines in ((1, 7), (2, 1)):
        replica, model = replica_of(team, wanted)
        steps(replica, model, 1)
        replica.close()
        assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
        assert len(read_metrics(tmp_path / f"metrics.jsonl.{number}")) == num_lines
        told = f"this one loaded no state: they are in metrics.jsonl.{number} now"
        assert capsys.readouterr().err.count(told) == 1


def test_a_folder_that_cannot_be_is_refused_by_the_name_of_the_argument(team: ProcessGroup, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"Not a directory; give a folder that can be written to with metrics$"):
        replica_of(team, figures_wanted(tmp_path / "file/m", None, has_center=False))


def test_figures_do_not_go_into_a_run_of_train(team: ProcessGroup, tmp_path: Path) -> None:
    (tmp_path / "samovar.log").touch()
    with pytest.raises(InputError, match="has a run of `samovar train`; give another folder"):
        replica_of(team, figures_wanted(tmp_path, None, has_center=False))
    assert [path.name for path in tmp_path.iterdir()] == ["samovar.log"]


def test_two_replicas_cannot_share_a_folder(team: ProcessGroup, tmp_path: Path) -> None:
    wanted = figures_wanted(tmp_path, None, has_center=False)
    replica, _ = replica_of(team, wanted)
    with pytest.raises(InputError, match="another replica writes there; give each its own folder"):
        replica_of(team, wanted)
    replica.close()
    replica_of(team, wanted)[0].close()


def test_two_runs_cannot_share_a_folder(team: ProcessGroup, tmp_path: Path) -> None:
    wanted = figures_wanted(tmp_path, None, has_center=False)
    program = "import sys; from samovar.api.figures_wanted import *; one = RunFile(Path(sys.argv[1])); print(); input()"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match="another run writes there now; give another folder"):
            replica_of(team, wanted)
        other.communicate(b"\n")
    replica_of(team, wanted)[0].close()


def test_a_forked_process_does_not_keep_the_folder(team: ProcessGroup, tmp_path: Path) -> None:
    wanted = figures_wanted(tmp_path, None, has_center=False)
    replica, _ = replica_of(team, wanted)
    is_closed, close = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(close)
        os.read(is_closed, 1)
        os._exit(0)
    replica.close()
    replica_of(team, wanted)[0].close()
    os.close(close)
    os.waitpid(child, 0)
    os.close(is_closed)


def test_the_environment_asks_for_what_the_program_does_not(
    team: ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(METRICS, str(tmp_path))
    monkeypatch.setenv(TRACE, "steps=2-3")
    wanted = figures_wanted(None, None, has_center=False)
    assert str(wanted.trace) == "2-3"
    assert figures_wanted([Kept(), "runs/own"], None, has_center=False).metrics.folder == Path("runs/own")
    replicas = [replica_of(team, wanted) for _ in range(2)]
    for replica, model in replicas:
        steps(replica, model, 4)
        replica.finish()
        replica.close()
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert found == ["metrics.jsonl", "replica1/metrics.jsonl", "replica1/trace.json.gz", "trace.json.gz"]


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(InputError, match="replicate: trace 'steps=2-3': needs a folder for the trace"):
        figures_wanted(None, "steps=2-3", has_center=False)
    model = nn.Linear(3, 1)
    with pytest.raises(InputError, match="at a center there are none: leave it out"):
        samovar.replicate(
            model, torch.optim.SGD(model.parameters()), "round-robin-easgd", metrics="runs/x", trace="steps=2-3"
        )
    with pytest.raises(InputError, match="replicate: trace '3': give the first and the last step"):
        figures_wanted("runs/x", "3", has_center=False)


def test_the_rank_that_waits_least_is_the_slow_one(team: ProcessGroup, capsys: pytest.CaptureFixture[str]) -> None:
    replica, model = replica_of(team, figures_wanted(Kept(), None, has_center=False))
    told = np.array([[1.0, 4.0, 2.0, 0.5], [1.0, 2.0, 1.0, 0.1], [0.0] * 4, [1.0, 2.0, 1.0, 0.7]])
    for _ in range(12):
        steps(replica, model, 1)
        replica._figures.hear(told)
    figures = replica.figures()
    assert (figures.slow_rank, figures.samples, figures.loss) == (1, 12 * 8, 1.5)
    assert "for rank 1; see its cpus" in figures.verdict
    replica.close()
    assert "rank 1 is slower than the others, which wait for it 500 ms" in capsys.readouterr().err


def test_a_rank_that_evaluates_alone_is_no_slow_one(team: ProcessGroup) -> None:
    replica, model = replica_of(team, FiguresWanted())
    waits_s: list[float] = []

    def hear(rows: Any) -> None:
        waits_s.append(rows[0, 3])
        replica._figures.hear(rows)

    replica._announcer.listen(hear)
    steps(replica, model, 2)
    with replica.evaluating():
        pass
    steps(replica, model, 2)
    assert np.isnan(waits_s).tolist() == [False, False, True, False]
    replica.close()


def test_the_batch_of_a_finished_run_is_that_of_its_own_steps(
    team: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was resumed; a run without a step has none."""
    sizes: list[float] = []
    monkeypatch.setattr("samovar.api.figures.compare", lambda *given: sizes.append(given[4]))
    state = None
    for count in (3, 1, 0):
        replica, model = replica_of(team, FiguresWanted())
        if state is not None and count:
            replica.load_state_dict(state)
        for (x,) in replica.shard(DataLoader(TensorDataset(torch.ones(4 * count + 1, 3)[1:]), batch_size=4)):
            replica.backward(model(x).mean())
            replica.step()
        state = replica.state_dict()
        replica.finish()
        replica.close()
    assert sizes == [4.0, 4.0]


@pytest.mark.parametrize("box", [None, box_choice("box", "net", None, False, "net")])
def test_a_run_at_a_box_where_others_work_too_is_not_compared_and_not_kept_as_one_worker(
    team: ProcessGroup, monkeypatch: pytest.MonkeyPatch, box: BoxChoice | None
) -> None:
    compared: list[object] = []
    monkeypatch.setattr("samovar.api.figures.compare", lambda *given: compared.append(given))
    monkeypatch.setattr(Replica, "_with_center", lambda *_given: Exchange())
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    replica = Replica(model, optimizer, team, StrategyConfig("async-sgd"), 5.0, box)
    steps(replica, model, 2)
    replica.finish()
    replica.close()
    assert len(compared) == (box is None)


def test_a_strategy_s_sentence_names_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(0, "--compress int8 is switched off (to keep it: --compress-always)")
    assert capsys.readouterr().err == "samovar: compress int8 is switched off (to keep it: always_compresses)\n"
