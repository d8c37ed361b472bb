"""Training in bfloat16, through the whole program: float32 weights, equal on all ranks, and as good in the end."""

from pathlib import Path

import numpy as np
import pytest

from tests.multiproc.command import succeed
from tests.multiproc.nets import write_net, write_solver
from tests.parity.trained import Trained, Trainer, relative_difference

BATCH = 12
BF16 = ("--precision", "bf16")


@pytest.fixture(scope="module")
def half(train: Trainer) -> Trained:
    return train(2, BATCH, *BF16)


def test_ranks_agree_bit_by_bit_and_repeat(train: Trainer, half: Trained) -> None:
    assert half.result["precision"] == "bf16"
    assert half.result["replicas_equal"] is True
    assert half.sha256 == half.result["weights_sha256"]
    assert train(2, BATCH, *BF16, turn=2).sha256 == half.sha256


def test_it_stays_near_float32(train: Trainer, half: Trained) -> None:
    full = train(2, BATCH)
    assert full.result["precision"] == "fp32"
    difference = relative_difference(half, full)
    print(f"relative difference of weights {difference:.2e}")
    assert 1e-6 < difference < 1e-2
    np.testing.assert_allclose(half.losses, full.losses, rtol=1e-2)


def test_snapshots_hold_the_float32_weights(half: Trained) -> None:
    for name, weights in half.weights.items():
        assert weights.dtype == np.float32
        assert (weights.view(np.uint32) & 0xFFFF).any(), f"{name} was rounded to bfloat16"


@pytest.mark.slow
def test_one_worker_and_two_differ_by_rounding(train: Trainer, half: Trained) -> None:
    assert relative_difference(half, train(1, 2 * BATCH, *BF16)) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_net_with_maxima_learns_as_well(tmp_path: Path, digits: Path, seed: int) -> None:
    net = write_net(tmp_path, digits, 32)
    trainer = Trainer(tmp_path, digits)
    solver = write_solver(net, 300)
    half, full = (trainer.train(solver, 1, "--seed", str(seed), *flags) for flags in (BF16, ()))
    accuracies = half.result["test_accuracy"], full.result["test_accuracy"]
    print(f"accuracies {accuracies}")
    assert min(accuracies) > 0.9
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.02)


@pytest.mark.slow
def test_testing_in_bfloat16(half: Trained, digits: Path, tmp_path: Path) -> None:
    net = write_net(tmp_path, digits, BATCH, smooth=True)
    weights = next(half.out.glob("snapshots/*/*.caffemodel"))
    outputs = [
        succeed("test", "--model", net, "--weights", weights, "--iterations", 6, *flags, folder=digits.parent).output
        for flags in ((), BF16)
    ]
    assert outputs[0] != outputs[1], "the loss is another by rounding"
