"""Workers that wait for nobody come to what one worker comes to, and records of them to the same bits."""

from pathlib import Path

import pytest

from tests.multiproc.command import Command, result_of
from tests.parity.trained import Trainer

TOTAL_BATCH, WORKERS = 64, 4
ACCURACY_TOLERANCE = 2 / 360  # 0.005, in whole digits
SLOW_TIMEOUT_S = 600.0
LONGEST_PERIOD = 8  # of the defaults
STRATEGIES: dict[str, tuple[object, ...]] = {
    "shm-easgd": (),
    "async-easgd": (),
    "async-measgd": (),
    "hogwild-easgd": (),
    "hybrid-easgd": (),
    "round-robin-easgd": (),
    "async-sgd": (),
    "hogwild-sgd": (),
    "async-msgd": ("--center-momentum", 0.6),  # 1 - P (1 - 0.9): the rate of all workers together is one worker's
}


@pytest.mark.slow
def test_a_narrow_net_learns_at_a_center(train: Trainer) -> None:
    """Two workers with half the batch each, an exchange every second step, come near one with the whole."""
    alone, together = train(1, 24), train(2, 12, "--strategy", "async-measgd", "--sync-period", "2")
    print(f"alone {alone.result['test_accuracy']:.4f}, together {together.result['test_accuracy']:.4f}")
    assert together.result["test_accuracy"] >= alone.result["test_accuracy"] - 0.1
    assert together.sha256 == together.result["weights_sha256"]


def train_lenet(root: Path, folder: Path, out: str, *flags: object) -> Path:
    """LeNet on the digits for the published 600 steps; `folder` holds the digits in data/."""
    arguments = ("--solver", root / "examples/lenet/digits_solver.prototxt", "--threads-per-worker", 1, "--seed", 1)
    with Command("train", *arguments, *flags, "--out", out, folder=folder) as command:
        ended = command.wait(SLOW_TIMEOUT_S)
    assert ended.return_code == 0, ended.errors
    return folder / out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    made = tmp_path_factory.mktemp("lenet")
    (made / "data").symlink_to(digits)
    return made


@pytest.fixture(scope="module")
def alone(repository_root: Path, folder: Path) -> float:
    """The accuracy of one worker with the whole batch."""
    return float(result_of(train_lenet(repository_root, folder, "alone"))["test_accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lenet_learns_as_well_with_four_workers(
    repository_root: Path, folder: Path, alone: float, strategy: str
) -> None:
    """Of 360 held-out digits two may differ."""
    flags = ("--workers", WORKERS, "--batch-mode", "global", "--strategy", strategy, *STRATEGIES[strategy])
    result = result_of(train_lenet(repository_root, folder, strategy, *flags))
    print(f"{strategy}: {result['test_accuracy']:.4f}, one worker {alone:.4f}")
    assert result["effective_batch"] == TOTAL_BATCH
    assert result["bytes_sent_per_step"] >= 0.9 * 4 * result["net_parameters"] / LONGEST_PERIOD
    assert result["test_accuracy"] >= alone - ACCURACY_TOLERANCE - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["async-sgd", "async-easgd", "shm-easgd"])
def test_a_record_of_lenet_gives_the_same_bits(repository_root: Path, folder: Path, strategy: str) -> None:
    flags = ("--workers", 3, "--batch-mode", "global", "--strategy", strategy, "--sync-period", 2, "--iterations", 100)
    recorded = train_lenet(repository_root, folder, f"{strategy} recorded", *flags, "--record")
    replayed = train_lenet(repository_root, folder, f"{strategy} replayed", *flags, "--replay", recorded)
    first, again = result_of(recorded), result_of(replayed)
    for field in ("weights_sha256", "test_loss", "samples"):
        assert first[field] == again[field], field
