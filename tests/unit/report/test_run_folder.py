"""The run folder, result.json and metrics.jsonl."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import InputError
from samovar.core.plain import to_plain
from samovar.report.metrics import MetricsWriter, read_metrics
from samovar.report.result import Foreseen, read_result, write_result
from samovar.report.run_folder import create_run_folder, write_json_atomic

from .examples import RESULT, WORKER

FORESEEN = Foreseen(cluster="c", net="n", strategy="sync", workers=2, predicted_s=1.0, measured_s=0.0, profile="timed")

NOW = datetime(2026, 11, 20, 14, 12)


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_default_name_tells_when_and_what_and_is_never_used_twice() -> None:
    paths = [create_run_folder(None, "LeNet", "sync", NOW).path for _ in range(3)]
    assert [str(path) for path in paths] == [
        "runs/20261120-1412-lenet-sync",
        "runs/20261120-1412-lenet-sync-2",
        "runs/20261120-1412-lenet-sync-3",
    ]
    assert all(path.is_dir() for path in paths)


@pytest.mark.parametrize(
    ("net_name", "expected"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("My Net\n\x1b[2J", "my-net-2j"),
        ("", "net"),
        ("...", "net"),
        ("Größe", "gr-e"),
        ("a" * 500, "a" * 60),
        ("VGG_ILSVRC_16", "vgg_ilsvrc_16"),
    ],
)
def test_a_net_name_becomes_a_safe_part_of_a_file_name(net_name: str, expected: str) -> None:
    path = create_run_folder(None, net_name, "shm-easgd", NOW).path
    assert path == Path("runs") / f"20261120-1412-{expected}-shm-easgd"


def test_a_given_folder_is_created_with_its_parents_and_may_be_there(tmp_path: Path) -> None:
    for _ in range(2):
        folder = create_run_folder(tmp_path / "a" / "b", "LeNet", "sync", NOW)
    assert folder.path.is_dir()
    assert list(folder.path.iterdir()) == []


def test_the_files_have_their_places(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path / "run", "LeNet", "sync", NOW)
    places = [folder.config, folder.metrics, folder.result, folder.snapshots, folder.log, folder.rank_log(3)]
    assert [str(place.relative_to(folder.path)) for place in places] == [
        "config.json",
        "metrics.jsonl",
        "result.json",
        "snapshots",
        "samovar.log",
        "rank3.log",
    ]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match=r"cannot use .*taken as run folder: File exists; give a folder"):
        create_run_folder(tmp_path / "taken", "LeNet", "sync", NOW)
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(InputError, match="cannot use runs as run folder: File exists"):
        create_run_folder(None, "LeNet", "sync", NOW)
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_folder_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(InputError, match="cannot use /proc/self as run folder"):
        create_run_folder(Path("/proc/self"), "LeNet", "sync", NOW)
    with pytest.raises(InputError, match="cannot use /proc/no/run as run folder"):
        create_run_folder(Path("/proc/no/run"), "LeNet", "sync", NOW)


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for value in (1, {"rate": math.inf, "path": ("a", "b")}):
        write_json_atomic(path, {"value": value})
    assert json.loads(path.read_text()) == {"value": {"rate": "Infinity", "path": ["a", "b"]}}
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_disk_that_refuses_leaves_the_old_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_json_atomic(path, {"value": 1})
    program = (
        "import resource, sys; from pathlib import Path; from samovar.report.run_folder import write_json_atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_json_atomic(Path(sys.argv[1]), {'value': 'x' * 5000})"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert "config.json cannot be written: File too large (5,0" in done.stderr
    assert json.loads(path.read_text()) == {"value": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_result_comes_back(tmp_path: Path) -> None:
    for result in (RESULT, replace(RESULT, train_loss=math.inf, test_accuracy=None, stopped_by="SIGINT")):
        write_result(tmp_path / "result.json", result)
        assert read_result(tmp_path / "result.json") == result


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not the result of a run: Expecting"),
        ("[]", "RunResult is .*, not an object"),
        ('{"steps": 1}', "lacks"),
        ("[" * 100_000, "is not the result"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_result(tmp_path / "result.json")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"samples": 10**400}, "result.json is not the result of a run: the number 10000000000000000000... has more"),
        ({"workers": -(10**20)}, "has more than 64 bits; give a run's result.json"),
        (
            {"by_worker": [to_plain(replace(WORKER, staleness=row)) for row in ((1,), (1, 2))]},
            "has rows of staleness of different lengths",
        ),
        ({"foreseen": to_plain(FORESEEN)}, "foreseen.measured_s is 0.0, not above 0"),
    ],
)
def test_figures_that_no_run_has_are_refused(tmp_path: Path, changed: dict[str, Any], complaint: str) -> None:
    values = to_plain(RESULT)
    del values["run_folder"]
    (tmp_path / "result.json").write_text(json.dumps({**values, **changed}))
    with pytest.raises(InputError, match=complaint):
        read_result(tmp_path / "result.json")


def test_a_result_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"nothing.json cannot be read: No such file"):
        read_result(Path("nothing.json"))


def steps_of(path: Path, kind: str | None = None) -> list[int]:
    return [line["step"] for line in read_metrics(path) if kind in (None, line["kind"])]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    """Steps 1 to 6, with tests at 0, 3 and 6."""
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(0, "test", {"accuracy": 0.1})
        for step in range(1, 7):
            writer.write(step, "train", {"loss": 1 / step, "learning_rate": 0.01})
            if step % 3 == 0:
                writer.write(step, "test", {"accuracy": step / 10})
    return path


def test_each_line_stands_as_it_was_given(metrics: Path) -> None:
    assert steps_of(metrics, "train") == [1, 2, 3, 4, 5, 6]
    assert [line for line in read_metrics(metrics) if line["kind"] == "test"] == [
        {"step": step, "kind": "test", "accuracy": step / 10 or 0.1} for step in (0, 3, 6)
    ]


def test_a_line_is_there_when_append_returns(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write(1, "train", {"loss": math.nan})
        (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(line["loss"])


def test_a_resumed_run_has_each_step_once(metrics: Path) -> None:
    with MetricsWriter(metrics, start_step=3) as writer:
        writer.write(3, "test", {"accuracy": 0.3})  # the test is repeated on resume
        for step in (4, 5):
            writer.write(step, "train", {"loss": 9})
    assert steps_of(metrics, "train") == [1, 2, 3, 4, 5]
    assert steps_of(metrics, "test") == [0, 3]
    assert read_metrics(metrics)[-1] == {"step": 5, "kind": "train", "loss": 9}


def test_a_new_run_starts_a_new_file(metrics: Path) -> None:
    with MetricsWriter(metrics) as writer:
        writer.write(1, "train", {"loss": 1})
    assert steps_of(metrics) == [1]


def test_a_line_that_a_kill_cut_short_is_left_out(metrics: Path) -> None:
    os.truncate(metrics, metrics.stat().st_size - 5)
    assert steps_of(metrics, "test") == [0, 3]
    with MetricsWriter(metrics, start_step=6) as writer:
        writer.write(6, "test", {"accuracy": 0.6})
    assert steps_of(metrics, "test") == [0, 3, 6]


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"kind": "train"}', '{"step": "1", "kind": "train"}'])
def test_a_damaged_line_is_named(metrics: Path, line: str) -> None:
    lines = metrics.read_text().splitlines()
    lines[4] = line
    metrics.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"metrics.jsonl:5 is n.* remove that line"):
        read_metrics(metrics)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import resource, sys; from pathlib import Path; from samovar.report.metrics import MetricsWriter\n"
        "writer = MetricsWriter(Path(sys.argv[1]), 0, '--metrics')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for step in range(100): writer.write(step, 'train', {'loss': 0.5})"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    advice = "make room there or give another folder with --metrics"
    assert f"metrics.jsonl cannot be written: File too large; {advice}" in done.stderr
    assert path.stat().st_size < 1000
    assert path.read_bytes().endswith(b"}\n")
    assert steps_of(path) == list(range(len(steps_of(path))))
