"""Runs whose workers train on their own: stopped and resumed, with the same workers and with others."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samovar.checkpoint.reading import read_snapshot
from tests.multiproc.command import metrics_of, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS = 40
SAVED_STEP = 21  # in the middle of every period below
STRATEGIES = {
    "sync-easgd": ("--strategy", "sync-easgd", "--sync-period", 4),
    "diloco": ("--strategy", "diloco", "--sync-period", 10),
    "local-sgd": ("--strategy", "local-sgd", "--sync-period", 8),
    "diloco streaming": (
        *("--strategy", "diloco", "--sync-period", 10),
        *("--fragments", 3, "--delay", 4, "--mixing", 0.25, "--compress", "int4"),
    ),
    "sync-easgd step": ("--strategy", "sync-easgd", "--sync-period", 4, "--overlap", "step", "--moving-rate", 0.4),
}
SELDOM = ("local-sgd", "diloco streaming", "sync-easgd", "sync-easgd step")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SELDOM else name for name in STRATEGIES]

Arguments = tuple[object, ...]
Whole = Callable[[str], Path]


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """Tests at step 30, where no exchange is due."""
    net = write_net(tmp_path_factory.mktemp("nets"), digits)
    return write_solver(net, NUM_STEPS, snapshot=SAVED_STEP, test_initialization="false")


def arguments_of(solver: Path, *more: object, workers: int = 2) -> Arguments:
    return ("train", "--solver", solver, "--workers", workers, "--threads-per-worker", 1, *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, solver: Path) -> Whole:
    """whole(name) is the folder of an uninterrupted run of STRATEGIES[name], which is made once."""

    @cache
    def get(name: str) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        succeed(*arguments_of(solver, *STRATEGIES[name], "--out", "out"), folder=folder)
        return folder / "out"

    return get


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_from_the_middle_of_a_period_with_the_same_bits(
    solver: Path, whole: Whole, tmp_path: Path, name: str
) -> None:
    arguments = arguments_of(solver, *STRATEGIES[name])
    unbroken, resumed = whole(name), tmp_path / "resumed"
    saved = unbroken / "snapshots" / f"step_{SAVED_STEP:08}"
    succeed(*arguments, "--snapshot", saved, "--out", resumed, folder=tmp_path)
    mine, theirs = result_of(resumed), result_of(unbroken)
    for field in ("weights_sha256", "test_loss", "test_accuracy", "train_loss", "steps"):
        assert mine[field] == theirs[field], field
    ends = [out / "snapshots" / f"step_{NUM_STEPS:08}" for out in (unbroken, resumed)]
    names = {path.name for path in ends[0].iterdir()}
    assert names == {path.name for path in ends[1].iterdir()}
    assert {"rank_0.safetensors", "rank_1.safetensors", "strategy.safetensors"} <= names
    for file in names - {"manifest.json"}:
        assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes(), file
    assert (ends[0] / "rank_0.safetensors").read_bytes() != (ends[0] / "rank_1.safetensors").read_bytes()
    losses = [
        [line["loss"] for line in metrics_of(out, "train") if line["step"] > SAVED_STEP] for out in (unbroken, resumed)
    ]
    assert losses[0] == losses[1]
    assert not list(tmp_path.glob("resumed/snapshots/.*"))


def test_other_workers_and_strategies_go_on_from_the_common_weights(solver: Path, whole: Whole, tmp_path: Path) -> None:
    saved = whole("diloco") / "snapshots" / f"step_{SAVED_STEP:08}"
    ended = succeed(
        *arguments_of(solver, "--snapshot", saved, "--iterations", SAVED_STEP, "--out", "alone", workers=1),
        folder=tmp_path,
    )
    assert (
        "saved by 2 workers with diloco; 1 worker with sync start from its weights, and from zero momentum"
        in ended.errors
    )
    (taken,) = (tmp_path / "alone" / "snapshots").glob("step_*")
    assert (taken / "weights.safetensors").read_bytes() == (saved / "weights.safetensors").read_bytes()
    momentum = read_snapshot(taken).parts["momentum"].values()
    assert not any(np.any(array) for array in momentum if isinstance(array, np.ndarray))


def test_more_workers_go_on_in_one_state(solver: Path, whole: Whole, tmp_path: Path) -> None:
    """A rank that the snapshot has no part of begins as the others do, also with the outer momentum."""
    saved = whole("diloco") / "snapshots" / f"step_{SAVED_STEP:08}"
    more = ("--snapshot", saved, "--iterations", SAVED_STEP + 12, "--out", "more", *STRATEGIES["diloco"])
    ended = succeed(*arguments_of(solver, *more, workers=3), folder=tmp_path)
    assert "3 workers with diloco start from its weights, and from zero momentum" in ended.errors
    parts = read_snapshot(tmp_path / "more" / "snapshots" / f"step_{SAVED_STEP + 12:08}").parts
    assert {"rank_0", "rank_1", "rank_2"} <= parts.keys()


def test_the_settings_stand_in_the_configuration_and_at_the_start(whole: Whole) -> None:
    settings: Any = read_snapshot(whole("diloco") / "snapshots" / f"step_{NUM_STEPS:08}").config["strategy"]
    assert settings["name"] == "diloco"
    assert (settings["sync_period_steps"], settings["outer_rate"], settings["outer_momentum"]) == (10, 0.7, 0.9)
    log = (whole("diloco") / "samovar.log").read_text()
    assert "diloco: an exchange every 10 steps, outer rate 0.7, outer momentum 0.9" in log


def test_the_damaged_part_of_one_rank_refuses_the_snapshot(solver: Path, whole: Whole, tmp_path: Path) -> None:
    saved = shutil.copytree(whole("diloco") / "snapshots" / f"step_{SAVED_STEP:08}", tmp_path / "saved")
    part = saved / "rank_1.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    ended = run(*arguments_of(solver, *STRATEGIES["diloco"], "--snapshot", saved, "--out", "out"), folder=tmp_path)
    assert ended.return_code == 2
    assert "rank_1.safetensors is damaged" in ended.error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--strategy", "sync-easgd", "--moving-rate", "0.7"), "--moving-rate: got 0.7; give more than 0 and less"),
        (("--sync-period", "8"), "--sync-period is not a setting of --strategy sync"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_made(
    solver: Path, tmp_path: Path, flags: Arguments, message: str
) -> None:
    ended = run(*arguments_of(solver, *flags, "--out", "out"), folder=tmp_path)
    assert ended.return_code == 2
    assert ended.error.startswith(message)
    assert not (tmp_path / "out").exists()


def test_a_frozen_layer_keeps_its_bits(digits: Path, tmp_path: Path) -> None:
    net = write_net(tmp_path, digits)
    net.write_text(net.read_text().replace("lr_mult: 1", "lr_mult: 0", 1))
    solver = write_solver(net, 4, snapshot=4, test_initialization="false")

    def convolution(workers: int, *flags: object) -> bytes:
        succeed(*arguments_of(solver, *flags, "--out", f"{workers}", workers=workers), folder=tmp_path)
        snapshot = read_snapshot(tmp_path / f"{workers}" / "snapshots" / "step_00000004")
        assert result_of(tmp_path / f"{workers}")["net_unlearned"] == snapshot.parts["weights"]["conv1/0"].size
        return np.asarray(snapshot.parts["weights"]["conv1/0"]).tobytes()

    assert convolution(3, "--strategy", "local-sgd", "--sync-period", 2) == convolution(1)


@pytest.mark.parametrize("strategy", ["sync", pytest.param("local-sgd", marks=pytest.mark.slow)])
def test_statistics_are_the_ranks_mean_where_they_are_evaluated(strategy: str, digits: Path, tmp_path: Path) -> None:
    """Each rank's BatchNorm has its own; resumed from the middle, the same bits come out."""
    net = write_net(tmp_path, digits)
    normalized = 'layer { name: "norm" type: "BatchNorm" bottom: "conv1" top: "conv1" }\nlayer {\n  name: "pool1"'
    net.write_text(net.read_text().replace('layer {\n  name: "pool1"', normalized))
    solver = write_solver(net, NUM_STEPS, snapshot=SAVED_STEP, test_initialization="false")
    arguments = arguments_of(solver, "--strategy", strategy)
    succeed(*arguments, "--out", "whole", folder=tmp_path)
    saved = tmp_path / "whole" / "snapshots" / f"step_{SAVED_STEP:08}"
    succeed(*arguments, "--snapshot", saved, "--out", "resumed", folder=tmp_path)
    assert result_of(tmp_path / "resumed")["weights_sha256"] == result_of(tmp_path / "whole")["weights_sha256"]
    if strategy == "sync":  # by ranks that divide updates: the momentum of all is the whole one
        otherwise = arguments_of(solver, "--overlap", "backward", "--bucket", "layer", "--snapshot", saved)
        succeed(*otherwise, "--out", "otherwise", folder=tmp_path)
        assert_equal_momentum(tmp_path / "otherwise", tmp_path / "whole")
    parts = read_snapshot(saved).parts
    for index in range(3):
        own = [np.asarray(parts[f"rank_{rank}"][f"weights/norm/{index}"]) for rank in range(2)]
        np.testing.assert_array_equal(parts["weights"][f"norm/{index}"], (own[0] + own[1]) / np.float32(2))
    assert (parts["rank_0"]["weights/norm/0"] != parts["rank_1"]["weights/norm/0"]).all()


def assert_equal_momentum(out: Path, other: Path) -> None:
    """Up to the rounding of sums in another order."""
    mine, theirs = (
        read_snapshot(folder / "snapshots" / f"step_{NUM_STEPS:08}").parts["momentum"] for folder in (out, other)
    )
    for name, array in theirs.items():
        if isinstance(array, np.ndarray):
            np.testing.assert_allclose(
                np.asarray(mine[name], np.float32), array.astype(np.float32), rtol=1e-2, atol=1e-4, err_msg=name
            )
