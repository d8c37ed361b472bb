"""Workers that wait for nobody, through the whole program."""

import signal
from pathlib import Path

import numpy as np
import pytest

from samovar.checkpoint.reading import read_snapshot
from samovar.report.run_folder import RunFolder
from samovar.training.order_log import read_order
from tests.multiproc.command import Command, metrics_of, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 40
WORKERS = 2

Arguments = tuple[object, ...]


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    net = write_net(tmp_path_factory.mktemp("nets"), digits)
    return write_solver(net, NUM_STEPS, test_initialization="false", display=10)


def arguments_of(solver: Path, *more: object, workers: int = WORKERS) -> Arguments:
    """Every worker has the net's own batch."""
    shape = ("--workers", workers, "--threads-per-worker", 1, "--recipe", "none")
    return ("train", "--solver", solver, *shape, *more)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, solver: Path) -> Path:
    """The folder of a run of shm-easgd that wrote down its order."""
    folder = tmp_path_factory.mktemp("recorded")
    flags = ("--strategy", "shm-easgd", "--sync-period", 2, "--record")
    succeed(*arguments_of(solver, *flags, "--out", "out"), folder=folder)
    return folder / "out"


def test_the_run_ends_by_the_mean_of_its_workers_steps(recorded: Path) -> None:
    result = result_of(recorded)
    steps = [worker["steps"] for worker in result["by_worker"]]
    assert (result["steps"], result["stop_rule"], result["replicas_equal"]) == (NUM_STEPS, "mean", None)
    assert WORKERS * NUM_STEPS <= sum(steps) <= WORKERS * (NUM_STEPS + 1)
    assert result["samples"] == 12 * sum(steps)
    for worker in result["by_worker"]:
        assert worker["updates"] == worker["steps"] // 2
        assert sum(worker["staleness"]) == worker["updates"]
        assert not worker["is_gone"]
    # One whom the other left no step in time has none.
    distances = [worker["distance"] for worker in result["by_worker"]]
    assert [distance is not None for distance in distances] == [count > 0 for count in steps]
    assert all(0 < distance < 0.5 for distance in distances if distance is not None)


def test_the_center_is_what_is_saved_and_tested(recorded: Path) -> None:
    result = result_of(recorded)
    saved = read_snapshot(recorded / "snapshots" / f"step_{NUM_STEPS:08}")
    assert set(saved.parts) == {"weights", "momentum", "strategy"}
    assert result["test_accuracy"] > 0.5
    (test,) = metrics_of(recorded, "test")
    assert test["step"] == NUM_STEPS
    assert test["accuracy"] == result["test_accuracy"]


def test_metrics_tell_of_all_workers(recorded: Path) -> None:
    train, workers = metrics_of(recorded, "train"), metrics_of(recorded, "workers")
    steps = [line["step"] for line in train]
    assert steps == sorted(set(steps))
    assert steps[-1] == workers[-1]["step"] == NUM_STEPS
    assert 0 <= result_of(recorded)["samples"] - sum(line["samples"] for line in train) <= 12 * WORKERS
    lists = {name: value for name, value in workers[-1].items() if isinstance(value, list)}
    assert {"steps", "loss", "staleness", "lock_wait_s", "distance"} <= lists.keys()
    assert {len(value) for value in lists.values()} == {WORKERS}
    log = (recorded / "samovar.log").read_text()
    assert f"stop rule mean: the run ends when workers have done, on average, {NUM_STEPS} steps" in log
    assert "slowest at" in log


def test_a_record_gives_the_same_bits_again(solver: Path, recorded: Path, tmp_path: Path) -> None:
    flags = ("--strategy", "shm-easgd", "--sync-period", 2, "--replay", recorded)
    ended = succeed(*arguments_of(solver, *flags, "--out", "out"), folder=tmp_path)
    assert "--replay" not in ended.errors
    mine, theirs = result_of(tmp_path / "out"), result_of(recorded)
    for field in ("weights_sha256", "test_loss", "test_accuracy", "samples"):
        assert mine[field] == theirs[field], field
    for worker, other in zip(mine["by_worker"], theirs["by_worker"], strict=True):
        for field in ("steps", "samples", "loss", "updates", "staleness"):
            assert worker[field] == other[field], field


def test_a_repetition_with_a_solver_that_was_edited_says_that_its_weights_are_others(
    solver: Path, recorded: Path, tmp_path: Path
) -> None:
    """The files of solver and net are no settings, and are not compared before."""
    text = solver.read_text()
    flags = ("--strategy", "shm-easgd", "--sync-period", 2, "--replay", recorded)
    try:
        solver.write_text(text.replace("base_lr: 0.01", "base_lr: 0.02"))
        ended = succeed(*arguments_of(solver, *flags, "--out", "out"), folder=tmp_path)
    finally:
        solver.write_text(text)
    theirs, own = (result_of(folder)["weights_sha256"][:8] for folder in (recorded, tmp_path / "out"))
    assert f"--replay: weights {own}… are not those in {recorded}/result.json ({theirs}…)" in ended.errors


def test_a_record_of_workers_that_look_ahead_has_their_reads_of_the_velocity(solver: Path, tmp_path: Path) -> None:
    ahead = ("--strategy", "async-msgd", "--look-ahead")
    for more in (("--record", "--out", "recorded"), ("--replay", "recorded", "--out", "replayed")):
        succeed(*arguments_of(solver, *ahead, *more), folder=tmp_path)
    recorded, replayed = (result_of(tmp_path / name) for name in ("recorded", "replayed"))
    assert recorded["weights_sha256"] == replayed["weights_sha256"]
    for rank in range(recorded["workers"]):
        is_update = read_order(RunFolder(tmp_path / "recorded").order(rank)).is_update
        num_pulls = 1 + is_update.count(True)
        assert is_update.count(False) == 2 * num_pulls, rank


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--sync-period", 4), "was recorded with sync_period_steps 2, this run has 4"),
        (("--sync-period", 2, "--seed", 7), "was recorded with seed None, this run has 7"),
    ],
)
def test_a_record_is_not_followed_with_other_settings(
    solver: Path, recorded: Path, tmp_path: Path, changed: Arguments, message: str
) -> None:
    flags = ("--strategy", "shm-easgd", *changed, "--replay", recorded)
    ended = run(*arguments_of(solver, *flags, "--out", "out"), folder=tmp_path)
    assert ended.return_code == 2
    assert message in ended.error
    assert not (tmp_path / "out").exists()


def test_a_record_that_began_at_a_snapshot_is_followed_from_it_alone(
    solver: Path, recorded: Path, tmp_path: Path
) -> None:
    saved, strategy = recorded / "snapshots" / f"step_{NUM_STEPS:08}", ("--strategy", "shm-easgd", "--sync-period", 2)
    flags = (*strategy, "--read-first", "--iterations", NUM_STEPS + 20)
    for more in (("--record", "--out", "first"), ("--replay", "first", "--out", "again")):
        succeed(*arguments_of(solver, *flags, "--snapshot", saved, *more), folder=tmp_path)
    first, again = (result_of(tmp_path / name) for name in ("first", "again"))
    assert first["weights_sha256"] == again["weights_sha256"]
    for other in ((*flags, "--replay", "first"), (*strategy, "--snapshot", saved, "--replay", recorded)):
        ended = run(*arguments_of(solver, *other, "--out", "out"), folder=tmp_path)
        assert (ended.return_code, "was recorded with snapshot" in ended.error) == (2, True), ended.error


def test_any_number_of_workers_goes_on_from_a_center(solver: Path, recorded: Path, tmp_path: Path) -> None:
    saved = recorded / "snapshots" / f"step_{NUM_STEPS:08}"
    flags = ("--strategy", "shm-easgd", "--snapshot", saved, "--iterations", NUM_STEPS)
    ended = succeed(*arguments_of(solver, *flags, "--out", "out", workers=1), folder=tmp_path)
    assert "all workers start from the center that it holds" in ended.errors
    (taken,) = (tmp_path / "out" / "snapshots").glob("step_*")
    assert (taken / "weights.safetensors").read_bytes() == (saved / "weights.safetensors").read_bytes()
    assert result_of(tmp_path / "out")["weights_sha256"] == result_of(recorded)["weights_sha256"]


def test_a_signal_stops_all_and_saves_their_center(digits: Path, tmp_path: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 10_000_000)
    arguments = arguments_of(solver, "--strategy", "async-sgd", "--stop-rule", "first", "--out", "out")
    out = tmp_path / "out"
    with Command(*arguments, folder=tmp_path, is_forked=True) as command:
        command.wait_for_step(out, 20)
        command.send(signal.SIGTERM)
        ended = command.wait()
    assert ended.return_code == 75, ended.errors
    result = result_of(out)
    assert result["stopped_by"] == "SIGTERM"
    assert result["steps"] == max(worker["steps"] for worker in result["by_worker"])
    assert (out / "snapshots" / f"step_{result['steps']:08}").is_dir()


@pytest.mark.slow
def test_statistics_are_the_workers_mean_where_they_are_evaluated(digits: Path, tmp_path: Path) -> None:
    """BatchNorm trains on, and its net is tested with sums that fit the center."""
    net = write_net(tmp_path, digits)
    normalized = 'layer { name: "norm" type: "BatchNorm" bottom: "conv1" top: "conv1" }\nlayer {\n  name: "pool1"'
    net.write_text(net.read_text().replace('layer {\n  name: "pool1"', normalized))
    solver = write_solver(net, 100, test_initialization="false")
    succeed(*arguments_of(solver, "--strategy", "async-easgd", "--sync-period", 2, "--out", "out"), folder=tmp_path)
    assert result_of(tmp_path / "out")["test_accuracy"] > 0.8
    weights = read_snapshot(tmp_path / "out" / "snapshots" / "step_00000100").parts["weights"]
    count = float(np.asarray(weights["norm/2"])[0])
    assert 10 < count < 1000  # a moving sum of the steps of one worker, not of both


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--stop-rule", "mean"), "--stop-rule: workers with sync always step together"),
        (("--strategy", "shm-easgd", "--stop-rule", "last"), "--stop-rule: got 'last'; choose one of: mean, master"),
        (("--strategy", "hogwild-sgd", "--record"), "--record: hogwild-sgd cannot be repeated"),
        (("--strategy", "async-easgd", "--trace", "steps=1-2"), "--trace: shows how workers wait for each other"),
        (
            ("--strategy", "shm-easgd", "--replay", "nowhere"),
            "--replay nowhere: is not the folder of a run with --record",
        ),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_made(
    solver: Path, tmp_path: Path, flags: Arguments, message: str
) -> None:
    ended = run(*arguments_of(solver, *flags, "--out", "out"), folder=tmp_path)
    assert ended.return_code == 2
    assert ended.error.startswith(message)
    assert not (tmp_path / "out").exists()
