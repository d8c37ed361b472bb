"""Dropout in whole runs: the same masks for any number of workers, and after a resume."""

from pathlib import Path

import numpy as np
import pytest

from tests.multiproc.command import succeed
from tests.multiproc.nets import write_net, write_solver
from tests.parity.trained import Trained, relative_difference

NUM_STEPS, BATCH = 20, 24
DROPOUT = 'layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" dropout_param { dropout_ratio: 0.3 } }\n'


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    net = write_net(tmp_path_factory.mktemp("dropout"), digits, BATCH, smooth=True)
    before = 'layer {\n  name: "ip2"'
    net.write_text(net.read_text().replace(before, DROPOUT + before))
    return write_solver(net, NUM_STEPS)


@pytest.fixture(scope="module")
def alone(solver: Path) -> Trained:
    return train(solver, solver.parent / "alone")


def train(solver: Path, out: Path, *flags: object) -> Trained:
    succeed("train", "--solver", solver, "--threads-per-worker", 1, "--out", out, *flags, folder=solver.parent)
    return Trained.of(out)


def test_two_workers_drop_what_one_drops(solver: Path, alone: Trained) -> None:
    together = train(solver, solver.parent / "together", "--workers", 2, "--batch-mode", "global")

    assert relative_difference(together, alone) <= 1e-6
    np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-5)


@pytest.mark.slow
def test_a_resumed_run_drops_what_an_unbroken_one_drops(solver: Path, alone: Trained) -> None:
    out = solver.parent / "resumed"
    train(solver, out, "--iterations", NUM_STEPS // 2)
    resumed = train(solver, out, "--snapshot", "latest")

    assert resumed.sha256 == alone.sha256
