"""Weights that become infinite or no numbers: the run says so, and nothing is made of them."""

import shutil
from pathlib import Path

import lmdb
import numpy as np
import pytest

from samovar.core.errors import NotFinite
from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.caffe.schema import message_class
from samovar.strategies.catalog import STRATEGIES
from tests.multiproc.command import Ended, result_of, run
from tests.multiproc.nets import write_net, write_solver

HUGE, GROWING = "1e30", "30"
AT_ONCE = ("sync", "async-easgd")
IN_STEP = ("sync", "sync-easgd", "local-sgd", "diloco")
STEPS = 40
SLOW = 10_000  # a net whose steps take long enough that no worker starts when the others have done them all


def train(folder: Path, digits: Path, rate: str, strategy: str, workers: int, *more: object, hidden: int = 32) -> Ended:
    solver = write_solver(write_net(folder, digits, hidden=hidden), STEPS, snapshot=4)
    solver.write_text(solver.read_text().replace("base_lr: 0.01", f"base_lr: {rate}"))
    arguments = ("--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--strategy", strategy)
    return run("train", *arguments, *more, "--out", folder / "run", folder=folder)


@pytest.mark.parametrize(
    ("strategy", "workers", "rate", "precision"),
    [
        pytest.param(
            strategy,
            4 if workers == 2 and strategy == "hybrid-easgd" else workers,
            rate,
            precision,
            marks=[] if (strategy in AT_ONCE and workers == 2 and rate == HUGE and precision == "fp32") else slow,
        )
        for slow in [[pytest.mark.slow]]
        for strategy in STRATEGIES
        for workers in (1, 2)
        for rate in (HUGE, GROWING)
        for precision in ("fp32", "bf16")
    ],
)
def test_a_rate_that_is_too_high_ends_the_run(
    tmp_path: Path, digits: Path, strategy: str, workers: int, rate: str, precision: str
) -> None:
    ended = train(tmp_path, digits, rate, strategy, workers, "--precision", precision)

    if rate == GROWING and ended.return_code == 0:
        assert_all_finite(tmp_path / "run")  # it learned nothing, but in numbers
        return
    assert ended.return_code == NotFinite.exit_code, ended.errors
    last = ended.errors.splitlines()[-1]
    assert "not finite" in last
    assert "after step" in last
    assert "learning rate" in last
    assert "lower base_lr" in last
    assert ("no snapshot was written" in last) != ("resume with --snapshot" in last)
    assert not (tmp_path / "run" / "result.json").exists()
    assert "test accuracy" not in ended.output
    assert_all_finite(tmp_path / "run")


def test_a_snapshot_whose_center_is_finite_does_not_hold_a_workers_bad_weights(tmp_path: Path, digits: Path) -> None:
    """The first step makes weights infinite. Its loss is finite, and the center has not met them."""
    solver = write_solver(write_net(tmp_path, digits), STEPS, snapshot=1)
    solver.write_text(solver.read_text().replace("base_lr: 0.01", "base_lr: 3e38"))
    arguments = ("--solver", solver, "--workers", 2, "--threads-per-worker", 1, "--strategy", "sync-easgd")

    ended = run("train", *arguments, "--recipe", "none", "--sync-period", 4, "--out", "run", folder=tmp_path)

    assert ended.return_code == NotFinite.exit_code, ended.errors
    assert "are not finite after step 1 (loss 2." in ended.error
    assert "no snapshot was written" in ended.error
    assert not list(tmp_path.glob("run/snapshots/step_*"))


def assert_all_finite(out: Path) -> None:
    """Every snapshot of the run."""
    for model in out.glob("snapshots/*/*.caffemodel"):
        assert all(np.isfinite(blob).all() for blobs in read_caffemodel(model).values() for blob in blobs), model


@pytest.mark.parametrize("strategy", ["async-easgd", pytest.param("async-sgd", marks=pytest.mark.slow)])
def test_a_worker_that_meets_a_bad_record_goes_on_from_the_center(tmp_path: Path, digits: Path, strategy: str) -> None:
    bad = with_bad_record(digits, tmp_path / "bad")

    ended = train(tmp_path, bad, "0.0001", strategy, 4, "--sync-period", 2, hidden=SLOW)

    assert ended.return_code == 0, ended.errors
    assert ended.errors.count("weights that are not finite were kept from the center") == 1
    result = result_of(tmp_path / "run")
    assert sum(worker["refused"] for worker in result["by_worker"]) >= 1
    assert not any(worker["is_gone"] for worker in result["by_worker"])
    assert np.isfinite(result["test_loss"])
    assert_all_finite(tmp_path / "run")


def test_in_turn_a_worker_that_meets_a_bad_record_goes_on_from_the_center(tmp_path: Path, digits: Path) -> None:
    bad = with_bad_record(digits, tmp_path / "bad")

    ended = train(tmp_path, bad, "0.01", "round-robin-easgd", 4, "--sync-period", 2)

    assert ended.return_code == 0, ended.errors
    assert ended.errors.count("weights that are not finite were kept from the center") == 1
    result = result_of(tmp_path / "run")
    assert result["refused_by_rank"][1] >= 1
    assert np.isfinite(result["test_loss"])
    assert_all_finite(tmp_path / "run")


def test_a_worker_that_is_refused_too_often_is_lost(tmp_path: Path, digits: Path) -> None:
    bad = with_bad_record(digits, tmp_path / "bad")

    ended = train(tmp_path, bad, "0.0001", "async-easgd", 4, "--sync-period", 2, "--max-refused-pushes", 1, hidden=SLOW)

    assert ended.return_code == 0, ended.errors
    assert "the others continue, and it does not come back" in ended.errors
    assert [worker["is_gone"] for worker in result_of(tmp_path / "run")["by_worker"]].count(True) == 1


@pytest.mark.parametrize("strategy", ["sync", *(pytest.param(name, marks=pytest.mark.slow) for name in IN_STEP[1:])])
def test_in_step_the_rank_with_the_bad_record_is_named(tmp_path: Path, digits: Path, strategy: str) -> None:
    ended = train(tmp_path, with_bad_record(digits, tmp_path / "bad"), "0.01", strategy, 4)

    assert ended.return_code == NotFinite.exit_code
    assert f"rank {BAD_RECORD // 12 % 4}: " in ended.error
    assert "(loss nan" in ended.error


BAD_RECORD = 12 * 4 * 2 + 12 + 5  # of batches of 12 the second one of step 3: rank 1's


def with_bad_record(digits: Path, folder: Path) -> Path:
    """The digits as floats, one of whose training records holds what is no number."""
    folder.mkdir()
    shutil.copytree(digits / "digits_test_lmdb", folder / "digits_test_lmdb")
    source = lmdb.open(str(digits / "digits_train_lmdb"), readonly=True, lock=False)
    made = lmdb.open(str(folder / "digits_train_lmdb"), map_size=1 << 28)
    with source, made, source.begin() as records, made.begin(write=True) as writing:
        for index, (key, record) in enumerate(records.cursor()):
            image, label = decode_datum(record)
            values = image.astype(np.float32).ravel()
            if index == BAD_RECORD:
                values[:] = np.nan
            sizes = dict(zip(("channels", "height", "width"), image.shape, strict=True))
            writing.put(key, message_class("Datum")(**sizes, label=label, float_data=values).SerializeToString())
    return folder
