"""However an exchange is spread over the step, workers learn what one worker with the whole batch learns."""

from typing import Any

import pytest
import safetensors.numpy

from tests.parity.trained import Trained, Trainer, relative_difference

BATCH = 12
TOLERANCE = 1e-6  # of the smooth net; see test_workers
SLOW = pytest.mark.slow
COMBINATIONS = [
    pytest.param(2, "backward", "ring", "layer", marks=SLOW),
    (3, "full", "auto", "layer"),
    *(
        pytest.param(workers, overlap, plan, bucket, marks=SLOW)
        for workers in (2, 3, 4)
        for overlap, plan in (("none", "direct"), ("backward", "tree"), ("backward", "direct"), ("full", "auto"))
        for bucket in ("layer", "4096", "100000")
    ),
    *(
        pytest.param(workers, "backward", plan, "layer", marks=SLOW)
        for workers in (2, 3)
        for plan in ("halving-doubling", "kary-tree", "server", "ring")
        if (workers, plan) != (2, "ring")  # above
    ),
]


def flags_of(overlap: str, plan: str, bucket: str) -> tuple[str, ...]:
    return ("--overlap", overlap, "--collective", plan, "--bucket", bucket)


@pytest.mark.parametrize(("workers", "overlap", "plan", "bucket"), COMBINATIONS)
def test_workers_learn_as_one_with_the_whole_batch(
    train: Trainer, workers: int, overlap: str, plan: str, bucket: str
) -> None:
    flags = flags_of(overlap, plan, bucket)
    together = train(workers, BATCH, *flags)
    assert relative_difference(together, train(1, workers * BATCH)) <= TOLERANCE
    assert together.result["replicas_equal"] is True
    assert together.result["weights_sha256"] == together.sha256


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=SLOW)])
@pytest.mark.parametrize("plan", ["direct", pytest.param("ring", marks=SLOW)])
def test_updates_in_parts_give_the_bits_of_updates_on_every_rank(train: Trainer, workers: int, plan: str) -> None:
    """With a ring sums in parts are made in an order of their own, which two ranks cannot tell."""
    flags = flags_of("none", plan, "4096")
    parts, whole = (train(workers, BATCH, *flags, "--owner", owner) for owner in ("parts", "all"))
    if plan == "direct" or workers == 2:
        assert parts.result["weights_sha256"] == whole.result["weights_sha256"] == parts.sha256
    assert relative_difference(parts, whole) <= TOLERANCE
    found, expected = momentum_of(parts), momentum_of(whole)
    assert found.keys() == expected.keys()
    assert all(abs(found[name] - expected[name]).max() <= TOLERANCE * abs(expected[name]).max() for name in found)


@pytest.mark.parametrize("owner", ["spread", pytest.param("root", marks=SLOW)])
def test_the_same_settings_give_the_same_bits_and_the_solvers_whole_state(train: Trainer, owner: str) -> None:
    """Each rank keeps histories of its own buckets; a snapshot holds those of all ranks."""
    flags = flags_of("full", "auto", "layer")
    if owner != "spread":  # as it is without the flag, in the run of the test above
        flags = (*flags, "--owner", owner)
    first, second = (train(3, BATCH, *flags, turn=turn) for turn in (1, 2))
    assert first.result["weights_sha256"] == second.result["weights_sha256"]
    whole = momentum_of(train(1, 3 * BATCH))
    found = momentum_of(first)
    assert found.keys() == whole.keys()
    for name, values in found.items():
        assert abs(values - whole[name]).max() <= 1e-4 * abs(whole[name]).max(), name


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["tree", "ring"])
def test_sums_made_during_backward_give_the_same_bits_every_time(train: Trainer, plan: str) -> None:
    flags = flags_of("backward", plan, "layer")
    first, second = (train(3, BATCH, *flags, turn=turn) for turn in (1, 2))
    assert first.out != second.out
    assert first.result["weights_sha256"] == second.result["weights_sha256"] == second.sha256
    assert first.losses == second.losses


def momentum_of(trained: Trained) -> dict[str, Any]:
    newest = trained.out / "snapshots" / (trained.out / "snapshots" / "latest").read_text().strip()
    return safetensors.numpy.load_file(newest / "momentum.safetensors")
