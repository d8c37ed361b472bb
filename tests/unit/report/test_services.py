"""Sinks of services, read back by each service's own package."""

import importlib
import json
import math
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import InputError
from samovar.report.sinks import Sink, close_all, metrics_choice, open_sinks

SETTINGS = {"strategy": "sync", "world_size": 2, "a[0]": "x" * 10_000}
LINES: list[tuple[int, str, Mapping[str, object]]] = [
    (1, "train", {"loss": 2.0, "samples": 64}),
    (2, "train", {"loss": 1.5, "samples": 64}),
    (2, "test", {"accuracy[0]": 0.25}),
    (2, "workers", {"steps": [2, 3]}),
]
MANY = {str(index): 1.0 for index in range(1000)}
BLOCK_BYTES = 32_768
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def imported(name: str) -> Any:
    """The module; without its package the test is skipped."""
    package = name.partition(".")[0]
    return pytest.importorskip(name, reason=f"{package} is not installed: pip install -e '.[{package}]'")


def written(place: str, folder: Path | None) -> None:
    choice = metrics_choice(place, "metrics", with_folder=folder is None)
    sinks: list[Sink] = open_sinks(choice, folder, SETTINGS, "metrics", pytest.fail)
    for line in LINES:
        sinks[0].write(*line)
    close_all(sinks)


@pytest.mark.parametrize("named", [True, False])
def test_tensorboard_shows_each_value(tmp_path: Path, named: bool) -> None:
    events = imported("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / ("events" if named else "tensorboard")
    written(f"tensorboard:{folder}" if named else "tensorboard", None if named else tmp_path)
    shown = events.EventAccumulator(str(folder)).Reload()
    assert [(event.step, event.value) for event in shown.Scalars("train/loss")] == [(1, 2.0), (2, 1.5)]
    assert [event.value for event in shown.Scalars("test/accuracy[0]")] == [0.25]
    assert [event.value for event in shown.Scalars("workers/steps/1")] == [3.0]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = imported("wandb")
    yield wandb
    wandb.teardown()


@pytest.mark.slow
def test_wandb_gets_each_value_in_a_run_of_its_own(offline: Any, tmp_path: Path) -> None:
    written("wandb:their-project", None)
    assert offline.run is None
    found = history(tmp_path)
    assert [(row["step"], row["train/loss"]) for row in found if "train/loss" in row] == [(1, 2.0), (2, 1.5)]
    assert [row["test/accuracy[0]"] for row in found if "test/accuracy[0]" in row] == [0.25]


@pytest.mark.slow
def test_wandb_gets_them_in_the_run_that_is_open(offline: Any, tmp_path: Path) -> None:
    run = offline.init(project="mine")
    written("wandb", None)
    assert offline.run is run
    assert run.config["world_size"] == 2
    run.finish()
    assert [row["train/loss"] for row in history(tmp_path) if "train/loss" in row] == [2.0, 1.5]


def history(folder: Path) -> list[dict[str, float]]:
    """The rows that wandb would send, from its own file."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for data in records_of(path.read_bytes()):
        record = records.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return rows


def records_of(content: bytes) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it: in blocks, whole (1) or as a first, middle and last part (2, 3, 4)."""
    place, record = 7, b""  # behind wandb's own head
    while place + 7 <= len(content):
        if BLOCK_BYTES - place % BLOCK_BYTES < 7:
            place += BLOCK_BYTES - place % BLOCK_BYTES
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with its files in a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = imported("mlflow")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()


@pytest.mark.slow
def test_mlflow_gets_each_value_in_a_run_of_its_own(tracked: Any) -> None:
    written("mlflow:theirs", None)
    assert tracked.active_run() is None
    client = tracked.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("theirs").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["strategy"] == "sync"
    assert len(run.data.params["a_0_"]) == 500
    found = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((metric.step, metric.value) for metric in found) == [(1, 2.0), (2, 1.5)]
    assert run.data.metrics["test/accuracy_0_"] == 0.25


@pytest.mark.slow
def test_mlflow_gets_them_in_the_run_that_is_active_and_no_nan(tracked: Any) -> None:
    tracked.set_experiment("own")
    with tracked.start_run() as own:
        tracked.log_params({"strategy": "theirs"})
        (sink,) = open_sinks(metrics_choice("mlflow", "metrics"), None, SETTINGS, "metrics", pytest.fail)
        sink.write(1, "train", {"loss": math.nan, "samples": 1})
        sink.close()
        assert tracked.active_run().info.run_id == own.info.run_id
    data = tracked.MlflowClient().get_run(own.info.run_id).data
    assert data.metrics == {"train/samples": 1.0}
    assert (data.params["strategy"], data.params["world_size"]) == ("theirs", "2")


class SilentClient:
    """A client whose server does not answer until `answers` is set; then it raises `error`, if any."""

    def __init__(self, error: Exception | None = None) -> None:
        self.answers = threading.Event()
        self.metrics: list[Any] = []
        self._error = error

    def log_batch(self, _run_id: str, metrics: list[Any]) -> None:
        assert self.answers.wait(60)
        if self._error is not None:
            raise self._error
        self.metrics += metrics


@pytest.mark.slow
def test_mlflow_keeps_no_step_waiting_for_a_silent_server(tracked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (sink,) = mlflow_with(client := SilentClient(), pytest.fail, monkeypatch)
    for step in range(1, 601):  # more than one sending
        sink.write(step, "train", {"loss": 1.0})
    assert client.metrics == []
    client.answers.set()
    sink.close()
    assert [metric.step for metric in client.metrics] == list(range(1, 601))
    assert tracked.active_run() is None


@pytest.mark.slow
def test_a_run_continues_without_an_mlflow_that_fails(tracked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    (sink,) = mlflow_with(client := SilentClient(ConnectionError("gone")), warnings.append, monkeypatch)
    sink.write(1, "train", {"loss": 1.0})
    client.answers.set()
    while not warnings:
        sink.write(2, "train", MANY)
    sink.close()
    (warning,) = warnings
    assert "ConnectionError: gone; the run continues without it" in warning


@pytest.mark.slow
@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_run_continues_without_an_mlflow_that_is_silent_for_long(
    tracked: Any, at_the_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("samovar.report.sinks.mlflow._CLOSING_S", 0.0)
    monkeypatch.setattr("samovar.report.sinks.mlflow._MOST_WAITING", 1500)
    (sink,) = mlflow_with(client := SilentClient(), warnings.append, monkeypatch)
    sink.write(1, "train", {"loss": 1.0})
    sink.write(2, "train", MANY)
    assert warnings == []
    if at_the_end:
        sink.close()
    else:
        sink.write(3, "train", MANY)
    client.answers.set()
    (warning,) = warnings
    assert "waits for the tracking server" in warning


@pytest.mark.slow
def test_a_process_that_ends_does_not_wait_for_an_mlflow_that_failed(tracked: Any) -> None:
    """MLflow would end the run at exit, and try for minutes to reach a server that is gone."""
    program = (
        "from samovar.report.sinks import metrics_choice, open_sinks\n"
        "(sink,) = open_sinks(metrics_choice('mlflow:theirs', 'metrics'), None, {}, 'metrics', print)\n"
        "del sink._inner._client\n"
        "sink.write(1, 'train', {'loss': 1.0})\n"
        "sink.close()\n"
    )
    environment = os.environ | {"MLFLOW_TRACKING_URI": tracked.get_tracking_uri()}
    words = [sys.executable, "-c", program]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert "the run continues without it" in said
    client = tracked.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("theirs").experiment_id])
    assert run.info.status == "RUNNING"


def mlflow_with(client: SilentClient, warn: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> list[Sink]:
    sinks = open_sinks(metrics_choice("mlflow:theirs", "metrics"), None, {}, "metrics", warn)
    monkeypatch.setattr(sinks[0]._inner, "_client", client)  # type: ignore[attr-defined]
    return sinks


@pytest.mark.slow
def test_mlflow_leaves_no_run_open_if_it_cannot_begin(tracked: Any) -> None:
    alike = {"a(": 1, "a)": 2}  # one name to MLflow, which takes each once
    with pytest.raises(InputError, match="metrics mlflow: "):
        open_sinks(metrics_choice("mlflow", "metrics"), None, alike, "metrics", pytest.fail)
    assert tracked.active_run() is None
