"""`samovar train --factors`: gradients of inner products that travel as factors, against whole gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samovar.checkpoint.reading import read_snapshot
from tests.multihost.train_run import started
from tests.multiproc.command import result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS, SAVED_STEP = 12, 5
TOLERANCE = 1e-5  # rounding, in another order; as in test_replicate_factors
PRODUCTS = ["ip2/0", "ip1/0", "conv2/0", "conv1/0"]  # in the order of backward


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    """Of a smooth net, whose ip1 has 1.5 MB. Nothing in it can tip over by a rounding."""
    return write_solver(write_net(tmp_path, digits, hidden=2048, smooth=True), NUM_STEPS, snapshot=SAVED_STEP)


def trained(solver: Path, folder: Path, out: str, *flags: object, workers: int = 2) -> dict[str, Any]:
    given = ("--solver", solver, "--workers", workers, "--threads-per-worker", 1, "--out", out, *flags)
    succeed("train", *given, folder=folder)
    return result_of(folder / out)


def weights(out: Path) -> Any:
    parts = read_snapshot(out / "snapshots" / f"step_{NUM_STEPS:08}", lambda part: part == "weights").parts
    return np.concatenate([np.ravel(values) for _, values in sorted(parts["weights"].items())])


def test_weights_are_those_of_whole_gradients(solver: Path, tmp_path: Path) -> None:
    whole = trained(solver, tmp_path, "whole", "--factors", "none")
    result = trained(solver, tmp_path, "factors", "--factors", "always")
    assert (result["factors"], whole["factors"], result["replicas_equal"]) == (PRODUCTS, [], True)
    assert result["bytes_sent_per_step"] < whole["bytes_sent_per_step"]
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "factors")
    assert 0.0 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--compress", "bf16", "--compress-always"), ("--bucket", "layer")])
def test_a_resumed_run_has_the_same_bits(solver: Path, tmp_path: Path, flags: tuple[object, ...]) -> None:
    """The step after the snapshot is not a first one, in which gradients travel whole."""
    expected = trained(solver, tmp_path, "whole", "--factors", "always", *flags)
    saved = tmp_path / "whole/snapshots" / f"step_{SAVED_STEP:08}"
    result = trained(solver, tmp_path, "rest", "--factors", "always", *flags, "--snapshot", saved)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["factors"] == PRODUCTS
    plain = trained(solver, tmp_path, "plain", *flags, "--snapshot", saved)  # on one host they travel whole
    assert plain["factors"] == []
    assert plain["weights_sha256"] != expected["weights_sha256"]


@pytest.mark.slow
def test_hosts_take_them_by_themselves_where_they_are_less(solver: Path, tmp_path: Path, digits: Path) -> None:
    with started(tmp_path, (1, 1), "--solver", solver) as run_:
        assert run_.succeed()["factors"] == ["ip1/0"]  # ip2 is small
        assert "1 of 1 large gradients travel as factors" in run_.commands[0].output
    many_rows = write_solver(write_net(tmp_path, digits, batch=600, hidden=2048), 2)
    for number, flags in enumerate(
        (
            ("--solver", many_rows),
            ("--solver", solver, "--factors", "none"),
            ("--solver", solver, "--collective", "ring"),
            ("--solver", solver, "--exact", 2),
        )
    ):
        with started(tmp_path, (1, 1), *flags, out=f"whole{number}") as run_:
            assert run_.succeed()["factors"] == [], flags


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(2, 2), (1, 2, 1)])
def test_any_hosts_have_the_bits_of_one(solver: Path, tmp_path: Path, workers: tuple[int, ...]) -> None:
    """Each rank multiplies the rows of all ranks in their order."""
    flags = ("--factors", "always", "--collective", "ring")
    expected = trained(solver, tmp_path, "alone", *flags, workers=4)["weights_sha256"]
    with started(tmp_path, workers, "--solver", solver, *flags) as run_:
        result = run_.succeed()
    assert (result["weights_sha256"], result["factors"]) == (expected, PRODUCTS)


@pytest.mark.slow
def test_values_that_debug_info_shows_are_whole_gradients(tmp_path: Path, digits: Path) -> None:
    """As soon as they are computed. So there are no factors, and those who asked for them hear why."""
    solver = write_solver(write_net(tmp_path, digits), 2, debug_info="true", display=1)
    ended = run("train", "--solver", solver, "--workers", 2, "--factors", "always", folder=tmp_path)
    assert ended.return_code == 2
    assert "no gradient of the model is a product of two factors" in ended.error


@pytest.mark.parametrize(
    ("flags", "fields", "sentence"),
    [
        (("--exact", 2), {}, "--factors always: --exact 2 sums slices in a tree of its own; leave one of them out"),
        ((), {"iter_size": 2}, "--factors always: iter_size 2 adds up gradients before they travel"),
        (("--strategy", "hybrid-easgd"), {}, "--factors always: workers with hybrid-easgd send gradients whole"),
        (("--strategy", "sync-easgd"), {}, "--factors is not a setting of --strategy sync-easgd"),
        (("--overlap", "full"), {}, "--factors always: with --overlap full or --owner parts a gradient goes to one"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, digits: Path, flags: tuple[object, ...], fields: dict[str, object], sentence: str
) -> None:
    solver = write_solver(write_net(tmp_path, digits), 2, **fields)
    ended = run("train", "--solver", solver, "--workers", 2, "--factors", "always", *flags, folder=tmp_path)
    assert ended.return_code == 2
    assert sentence in ended.error, ended.error
