"""Runs by a recipe: the bits of the same changes by hand, of no recipe as before, and what is told of them."""

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.multiproc.command import Ended, result_of, succeed
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.replicate_ranks import run_ranks, succeeded

STEPS = 12
TWO = ("--workers", 2, "--threads-per-worker", 1)


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    return write_solver(write_net(tmp_path_factory.mktemp("nets"), digits), STEPS)


def trained(solver: Path, folder: Path, *arguments: object) -> tuple[Ended, dict[str, Any]]:
    folder.mkdir()
    ended = succeed("train", "--solver", solver, *TWO, *arguments, "--out", "out", folder=folder)
    return ended, result_of(folder / "out")


def with_rate(solver: Path, factor: float) -> Path:
    text = re.sub(r"base_lr: (\S+)", lambda found: f"base_lr: {factor * float(found[1]):.9g}", solver.read_text())
    changed = solver.with_name("other_rate.prototxt")
    changed.write_text(text)
    return changed


def test_by_default_a_strategy_has_the_bits_of_its_changes_made_by_hand(solver: Path, tmp_path: Path) -> None:
    """Half the rate is exact in float32, which a solver's file is read in."""
    given = ("--strategy", "slowmo", "--outer-momentum", 0.5, "--outer-rate", 1)
    ended, result = trained(solver, tmp_path / "recipe", *given)
    by_hand = ("--batch-mode", "global", "--sync-period", 8)
    _, wanted = trained(with_rate(solver, 0.5), tmp_path / "by hand", *given, *by_hand)
    assert result["weights_sha256"] == wanted["weights_sha256"]
    assert (result["recipe"], wanted["recipe"], wanted["recipe_changes"]) == ("auto", "none", [])
    changes = ["a worker's batch 12 -> 6", "sync_period_steps 12 -> 8", "base_lr 0.01 -> 0.005"]
    assert result["recipe_changes"] == changes
    assert f"recipe of slowmo, for one worker's accuracy from the same samples: {', '.join(changes)}" in ended.output


def test_workers_that_look_ahead_share_the_momentum_and_the_rate_of_one(solver: Path, tmp_path: Path) -> None:
    """Momentum 0.9 and rate 0.01 become 0.9^(1/2), and (1 - 0.9^(1/2)) / (2 (1 - 0.9)) of the rate."""
    ended, result = trained(solver, tmp_path / "ahead", "--strategy", "async-msgd")
    assert result["recipe_changes"] == ["a worker's batch 12 -> 6", "look_ahead off -> on"]
    assert "workers look ahead by its momentum, momentum 0.948683 at the center" in ended.output
    assert "async-msgd: a worker's base_lr is 0.00256585 instead of 0.01" in ended.errors


def test_a_solver_that_divides_by_the_size_of_gradients_gets_more_of_the_rate(solver: Path, tmp_path: Path) -> None:
    """sqrt(2) for two workers."""
    adam = solver.with_name("adam.prototxt")
    adam.write_text(solver.read_text().replace("base_lr: 0.01", 'base_lr: 0.001\ntype: "Adam"'))
    _, result = trained(adam, tmp_path / "adam", "--strategy", "local-sgd")
    assert result["recipe_changes"][-1] == "base_lr 0.001 -> 0.001414"
    _, result = trained(adam, tmp_path / "outer", "--strategy", "diloco", "--iterations", 16)
    assert {"outer_momentum 0.9 -> 0.5", "base_lr 0.001 -> 0.001515"} < set(result["recipe_changes"])


_REPLICATED = """import samovar
import torch

model = torch.nn.Linear(3, 2)
for kind in (torch.optim.Adam, torch.optim.SGD):
    with samovar.replicate(model, kind(model.parameters(), lr=0.1), "diloco", recipe="auto", timeout_s=60):
        pass
"""


def test_the_optimizer_of_a_loop_decides_about_the_settings_of_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_REPLICATED)
    ended = succeed("run", "-n", 2, "--oversubscribe", tmp_path / "loop.py", folder=tmp_path)
    told = [line for line in (ended.output + ended.errors).splitlines() if "samovar: diloco" in line]
    assert ["outer momentum 0.5" in line and "times 1.51523" in line for line in told] == [True, False]
    assert ["outer momentum 0.9" in line and "times 0.142857" in line for line in told] == [False, True]


@pytest.mark.slow
def test_without_a_recipe_workers_have_the_nets_batch_each(solver: Path, tmp_path: Path) -> None:
    _, none = trained(solver, tmp_path / "none", "--strategy", "local-sgd", "--recipe", "none")
    _, each = trained(solver, tmp_path / "each", "--strategy", "local-sgd", "--batch-mode", "per-worker")
    assert none["weights_sha256"] == each["weights_sha256"]
    assert none["effective_batch"] == 24


def test_sync_keeps_the_batch_of_caffe_and_says_which_that_is(solver: Path, tmp_path: Path) -> None:
    ended, plain = trained(solver, tmp_path / "plain")
    assert "2 workers x batch 12 make a step of 24 samples at rate 0.01" in ended.output
    assert "--recipe auto shares a batch of 12" in ended.output
    ended, shared = trained(solver, tmp_path / "shared", "--recipe", "auto")
    assert (plain["effective_batch"], shared["effective_batch"]) == (24, 12)
    assert (plain["recipe"], shared["recipe"]) == ("none", "auto")
    assert "make a step of" not in ended.output


def test_replicate_divides_batches_and_scales_rates() -> None:
    ranks = run_ranks("tests.multiproc.replicate_recipe_rank", 2)
    for result in succeeded(ranks, "averaging"):
        assert result == {"sizes": [3, 3, 3], "rate": pytest.approx(0.1 / 7), "samples": 9}
    for result in succeeded(ranks, "with_scheduler"):
        assert "make the scheduler, and load that state, after replicate" in result
    for result in succeeded(ranks, "loaded_rates"):
        assert result["rates"] == pytest.approx([0.1 / 7, 0.1])
        (text,) = result["texts"][result["quiet"] :]
        assert result["quiet"] == 0
        assert "SGD.load_state_dict() after replicate()" in text
        assert "multiplied by 0.142857" in text
    for result in succeeded(ranks, "odd_batch"):
        assert "one of 7 samples has no equal parts for 2 ranks; give a multiple of 2" in result
    for result in succeeded(ranks, "only_one_has_it"):
        assert "differ from rank 0 in their settings" in result
    for result in succeeded(ranks, "with_momentum_ahead"):
        assert "make the optimizer with nesterov=True" in result["plain"]
        assert result["rate"] == pytest.approx(0.1 / 2)
    for result in succeeded(ranks, "without_recipe"):
        assert result == [1.0, 0.1, 0.5, 0.05], "of workers without momentum, and of those that keep it"
    for result in succeeded(ranks, "adaptive"):
        assert result == pytest.approx([0.1 * 2**0.5, 0.1 * 2**0.5, 0.1, 0.1])


def test_layers_that_mix_samples_are_named_if_workers_share_a_batch(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = np.ones((16, 4), np.float32)
    (tmp_path / "list.txt").write_text("rows.h5\n")
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "rows" type: "HDF5Data" top: "x" '
        f'hdf5_data_param {{ source: "{tmp_path}/list.txt" batch_size: 8 }} }}\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 3 } }\n'
        'layer { name: "pair" type: "Slice" bottom: "ip" top: "a" top: "b" slice_param { axis: 0 } }\n'
        'layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "loss" }\n'
    )
    ended, _ = trained(write_solver(net, 2), tmp_path / "cut", "--strategy", "local-sgd")
    assert "pair (Slice): what comes out for a sample depends on others of its batch" in ended.errors
