"""Workers that wait for nobody come to what one worker comes to, and records of them to the same bits."""

from pathlib import Path
from statistics import fmean

import pytest

from tests.multiproc.command import Command, result_of
from tests.parity.trained import Trainer

TOTAL_BATCH, WORKERS = 64, 4
ACCURACY_TOLERANCE = 0.005  # of the mean over SEEDS
SEEDS = (1, 2, 3)  # one held-out digit is 0.0028
# Twice the published steps: the center of two groups makes two thirds of what one worker makes.
BEHIND = ("--overlap", "period")
AHEAD = ("--read-first",)
LONG = ("--iterations", 1200)
SLOW_TIMEOUT_S = 600.0
LONGEST_PERIOD = 8  # of the defaults
STRATEGIES = (
    "shm-easgd",
    "async-easgd",
    "async-easgd --overlap period",
    "async-measgd",
    "hogwild-easgd",
    "hybrid-easgd",
    "round-robin-easgd",
    "async-sgd",
    "hogwild-sgd",
    "async-msgd",
)


@pytest.mark.slow
def test_a_narrow_net_learns_at_a_center(train: Trainer) -> None:
    """Two workers with half the batch each, an exchange every second step, come near one with the whole."""
    flags = ("--strategy", "async-measgd", "--sync-period", "2", "--recipe", "none")
    alone, together = train(1, 24), train(2, 12, *flags)
    print(f"alone {alone.result['test_accuracy']:.4f}, together {together.result['test_accuracy']:.4f}")
    assert together.result["test_accuracy"] >= alone.result["test_accuracy"] - 0.1
    assert together.sha256 == together.result["weights_sha256"]


def train_lenet(root: Path, folder: Path, out: str, *flags: object, seed: int = 1) -> Path:
    """LeNet on the digits; `folder` holds them in data/."""
    arguments = ("--solver", root / "examples/lenet/digits_solver.prototxt", "--threads-per-worker", 1, "--seed", seed)
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
    """The mean accuracy of one worker with the whole batch."""
    outs = [train_lenet(repository_root, folder, f"alone {seed}", *LONG, seed=seed) for seed in SEEDS]
    return fmean(result_of(out)["test_accuracy"] for out in outs)


@pytest.mark.slow
@pytest.mark.timeout(2 * len(SEEDS) * SLOW_TIMEOUT_S)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lenet_learns_as_well_with_four_workers(
    repository_root: Path, folder: Path, alone: float, strategy: str
) -> None:
    flags = ("--workers", WORKERS, "--batch-mode", "global", "--strategy", *strategy.split(), *LONG)
    outs = [train_lenet(repository_root, folder, f"{strategy} {seed}", *flags, seed=seed) for seed in SEEDS]
    results = [result_of(out) for out in outs]
    together = fmean(result["test_accuracy"] for result in results)
    print(f"{strategy}: {together:.4f}, one worker {alone:.4f}")
    for result in results:
        assert result["effective_batch"] == TOTAL_BATCH
        assert result["bytes_sent_per_step"] >= 0.9 * 4 * result["net_parameters"] / LONGEST_PERIOD
    assert together >= alone - ACCURACY_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("async-sgd", ()),
        ("async-easgd", ()),
        ("async-easgd", BEHIND),
        ("shm-easgd", ()),
        ("shm-easgd", AHEAD),
    ],
)
def test_a_record_of_lenet_gives_the_same_bits(
    repository_root: Path, folder: Path, strategy: str, more: tuple[str, ...]
) -> None:
    name = f"{strategy}{''.join(more)}"
    flags = ("--workers", 3, "--batch-mode", "global", "--strategy", strategy, "--sync-period", 2, "--iterations", 100)
    recorded = train_lenet(repository_root, folder, f"{name} recorded", *flags, *more, "--record")
    replayed = train_lenet(repository_root, folder, f"{name} replayed", *flags, *more, "--replay", recorded)
    first, again = result_of(recorded), result_of(replayed)
    for field in ("weights_sha256", "test_loss", "samples"):
        assert first[field] == again[field], field
