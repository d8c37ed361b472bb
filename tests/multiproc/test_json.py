"""--json: one document on stdout and nothing else; --quiet: no progress anywhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.multiproc.command import Ended, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

SOLVER = "solver.prototxt"
ALONE = ("--threads-per-worker", 1)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    net = write_net(tmp_path_factory.mktemp("net"), digits)
    write_solver(net, 4).rename(net.with_name(SOLVER))
    return net


def document(ended: Ended) -> Any:
    """What stands on stdout; it must be nothing but that."""
    return json.loads(ended.output)


@pytest.fixture(scope="module")
def trained(net: Path) -> Ended:
    return succeed("train", "--solver", SOLVER, *ALONE, "--out", "out", "--json", folder=net.parent)


def test_a_run_prints_its_result_and_shows_progress_elsewhere(net: Path, trained: Ended) -> None:
    result = document(trained)
    assert result.pop("run_folder") == "out"
    assert result == result_of(net.parent / "out")
    assert "step 4/4" in trained.errors


def test_a_quiet_run_shows_nothing_but_its_result(net: Path) -> None:
    ended = succeed("train", "--solver", SOLVER, *ALONE, "--out", "quiet", "--quiet", folder=net.parent)
    assert (ended.output, ended.errors) == ("", "")
    assert "step 4/4" in (net.parent / "quiet/samovar.log").read_text()
    both = ("--out", "both", "--quiet", "--json")
    ended = succeed("train", "--solver", SOLVER, *ALONE, *both, folder=net.parent)
    assert (document(ended)["steps"], ended.errors) == (4, "")


def test_a_run_that_fails_prints_no_document(net: Path) -> None:
    flags = ("--strategy", "local-sgd", "--owner", "root", "--json", "--quiet")
    ended = run("train", "--solver", SOLVER, *flags, folder=net.parent)
    assert (ended.return_code, ended.output) == (2, "")
    assert ended.error.startswith("--owner is not a setting of --strategy local-sgd")


def test_what_a_net_measures_and_how_long_it_takes(net: Path, trained: Ended) -> None:
    assert trained.return_code == 0
    (model,) = (net.parent / "out").glob("snapshots/*/*.caffemodel")
    words = ("--model", net, "--weights", model, "--iterations", 6, *ALONE, "--json")
    tested = document(succeed("test", *words, folder=net.parent))
    assert tested["outputs"]["accuracy"] == result_of(net.parent / "out")["test_accuracy"]
    timed = document(succeed("time", "--model", net, "--iterations", 1, *ALONE, "--json", folder=net.parent))
    assert [layer["name"] for layer in timed["layers"]][1:3] == ["conv1", "pool1"]
    assert timed["forward_ms"] > 0


def test_databases_are_told_with_the_same_fields_whatever_made_them(tmp_path: Path) -> None:
    told = document(succeed("data", "digits", "--out", "data", "--json", folder=tmp_path))
    assert told["mean"] is None
    assert told["databases"] == [
        {"folder": "data/digits_train_lmdb", "num_records": 1437, "already_there": False},
        {"folder": "data/digits_test_lmdb", "num_records": 360, "already_there": False},
    ]
    again = document(succeed("data", "digits", "--out", "data", "--json", folder=tmp_path))
    assert [database["already_there"] for database in again["databases"]] == [True, True]
