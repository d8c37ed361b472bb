"""`samovar train --nodes`: hosts that differ are refused, or have from host 0 what differs."""

import re
from pathlib import Path

import pytest

from samovar.transports.keys import make_key
from tests.multihost.train_run import both, started
from tests.multiproc.command import Command, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    return write_solver(write_net(tmp_path, digits), 12)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (("--seed", 2), "has --seed 2, and host 0 None; give all hosts the same"),
        pytest.param(("--collective", "tree"), "has --collective tree, and host 0 auto", marks=pytest.mark.slow),
    ],
)
def test_other_settings_are_refused_on_both(
    solver: Path, tmp_path: Path, own: tuple[object, ...], sentence: str
) -> None:
    refused = both(tmp_path, ("--solver", solver), ("--solver", solver, *own))
    for code, error in refused:
        assert code == 2, error
        assert re.search(sentence, error), error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_another_net_and_a_missing_key_are_refused(solver: Path, tmp_path: Path, digits: Path) -> None:
    wider = write_solver(write_net(tmp_path, digits, hidden=33), 12)
    for code, error in both(tmp_path, ("--solver", solver), ("--solver", wider)):
        assert (code, "has another solver, net or strategy than host 0" in error) == (2, True), error
    make_key(tmp_path / "one.pem")
    make_key(tmp_path / "two.pem")
    keys = [("--solver", solver, "--timeout", 10, "--key-file", tmp_path / f"{name}.pem") for name in ("one", "two")]
    (_, first), (code, second) = both(tmp_path, *keys)
    assert re.search(r"host 1 did not come to .*; 127\.0\.0\.1 came without the same key; give all hosts", first)
    assert (code, "does not hold the same key" in second) == (2, True), second


@pytest.mark.slow
def test_doctor_warns_of_another_key_while_it_waits(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_key(tmp_path / f"{name}.pem")
    with reserved_port() as port:
        place = ("doctor", "--nodes", 2, "--master-addr", "127.0.0.1", "--master-port", port)
        with Command(*place, "--node-rank", 0, "--key-file", tmp_path / "one.pem", folder=tmp_path) as first:
            ended = run(*place, "--node-rank", 1, "--key-file", tmp_path / "two.pem", folder=tmp_path)
            assert (ended.return_code, "does not hold the same key" in ended.error) == (2, True), ended
            first.until(lambda: "127.0.0.1 came without the same key; give all" in first.errors, "the warning")


def test_the_weights_that_a_solver_names_are_those_of_host_0(solver: Path, tmp_path: Path) -> None:
    """Each host has a file of that name, with other weights."""
    own = []
    for number in range(2):
        (home := tmp_path / f"host{number}").mkdir()
        words = ("train", "--solver", solver, "--seed", 1 + number, "--iterations", 1, "--out", home / "run")
        succeed(*words, folder=tmp_path)
        (weights,) = (home / "run").glob("snapshots/*/*.caffemodel")
        weights.rename(home / "first.caffemodel")
        own.append(("--solver", home / "solver.prototxt"))
        own[number][1].write_text(solver.read_text() + 'weights: "first.caffemodel"\n')
    flags = ("--workers", 2, "--threads-per-worker", 1, "--collective", "ring", "--out", "alone")
    succeed("train", *own[0], *flags, folder=tmp_path)
    with started(tmp_path, (1, 1), "--collective", "ring", own=own) as run_:
        assert run_.succeed()["weights_sha256"] == result_of(tmp_path / "alone")["weights_sha256"]
    for code, error in both(tmp_path, ("--solver", solver), own[1]):
        assert (code, "has --weights 1 file, and host 0 0 files" in error) == (2, True), error


@pytest.mark.slow
def test_another_strategy_of_the_same_name_is_refused(solver: Path, tmp_path: Path, repository_root: Path) -> None:
    text = (repository_root / "examples/strategy/growing.py").read_text()
    for number in range(2):
        (home := tmp_path / f"out-host{number}").mkdir()
        (home / "growing.py").write_text(f"{text}\nNUMBER = {number}\n")
    words = ("--solver", solver, "--strategy", "growing:GrowingSgd")
    for code, error in both(tmp_path, words, words):
        assert (code, "has another solver, net or strategy than host 0" in error) == (2, True), error


@pytest.mark.parametrize(
    ("phase", "found"),
    [("train", "360 records, and host 0 1,437"), pytest.param("test", "1,437 records", marks=pytest.mark.slow)],
)
def test_other_data_is_refused(solver: Path, tmp_path: Path, digits: Path, phase: str, found: str) -> None:
    """The net may name another path on each host, but the records there must be the same."""
    text = next(tmp_path.glob("*.prototxt")).read_text()
    other = {"train": "test", "test": "train"}[phase]
    net = tmp_path / "other.prototxt"
    net.write_text(text.replace(f"{digits}/digits_{phase}_lmdb", f"{digits}/digits_{other}_lmdb"))
    for code, error in both(tmp_path, ("--solver", solver), ("--solver", write_solver(net, 12))):
        assert code == 2, error
        assert re.search(rf"rank 1 on .* has {found}.*; copy the data of host 0 there", error), error
