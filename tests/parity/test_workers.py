"""Several workers learn what one worker with the whole batch learns, to rounding; and the same bits every time.

Most tests train the smooth net. In LeNet a maximum of two nearly equal numbers can fall to the other one by
a rounding, which moves a gradient from one place to another; about one seed in five goes apart that way.
"""

import mmap
import signal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from samovar.collectives.cost import cost
from samovar.collectives.plans import all_reduce, ring_all_gather
from samovar.collectives.tree import tree_all_reduce
from samovar.core.layout import Layout, ParameterSpec
from samovar.strategies.config import parse_bucket
from tests.multiproc.command import Command
from tests.multiproc.nets import write_net, write_solver
from tests.parity.trained import NUM_STEPS, PARAMETERS, Trained, Trainer, relative_difference

TOLERANCE = 1e-5  # of nets with maxima, see above
SMOOTH_TOLERANCE = 1e-6
BATCH = 12
OFTEN = [(2, "direct", "model"), (2, "ring", "4096")]
SELDOM = [
    (3, "tree", "layer"),
    (4, "ring", "4096"),
    (2, "tree", "layer"),
    (3, "direct", "layer"),
    (3, "ring", "model"),
    (3, "kary-tree", "4096"),
    (4, "tree", "model"),
    (4, "halving-doubling", "4096"),
    (4, "server", "layer"),
    (4, "two-level", "model"),
]
COMBINATIONS = [*OFTEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in SELDOM)]
# Test passes of a run, their batches, and the numbers of a batch (accuracy, loss, weighted sum of losses).
NUM_TESTS, NUM_TEST_BATCHES, NUM_OUTPUTS = 2, 6, 3
RECORD_BYTES = 6 * 8  # what every rank tells every other after a step: six numbers


def assert_equal_to_rounding(one: Trained, other: Trained) -> None:
    assert one.result["steps"] == other.result["steps"] == NUM_STEPS
    difference = relative_difference(one, other)
    print(f"relative difference {difference:.2e}")
    assert difference <= SMOOTH_TOLERANCE
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-5)


@pytest.mark.parametrize(("workers", "collective", "bucket"), COMBINATIONS)
def test_workers_learn_as_one_with_the_whole_batch(train: Trainer, workers: int, collective: str, bucket: str) -> None:
    together = train(workers, BATCH, "--collective", collective, "--bucket", bucket)
    alone = train(1, workers * BATCH)
    assert_equal_to_rounding(together, alone)
    assert together.result["effective_batch"] == alone.result["effective_batch"] == workers * BATCH
    assert together.result["samples"] == alone.result["samples"] == workers * BATCH * NUM_STEPS


def test_the_tolerance_is_far_below_what_training_changes(train: Trainer) -> None:
    """So that the tests above say something: other batches lead elsewhere, and 50 steps lead somewhere."""
    two, three = train(1, 2 * BATCH), train(1, 3 * BATCH)
    assert relative_difference(two, three) > 100 * TOLERANCE
    assert two.losses[-1] < 0.7 * two.losses[0]


@pytest.mark.slow
def test_uneven_shares_of_a_global_batch(train: Trainer) -> None:
    """64 samples on 3 workers are 22, 21 and 21."""
    together = train(3, 64, "--batch-mode", "global", "--bucket", "layer")
    assert_equal_to_rounding(together, train(1, 64))
    assert together.result["effective_batch"] == 64
    assert together.result["samples"] == 64 * NUM_STEPS


@pytest.mark.parametrize(
    ("workers", "flags"),
    [
        (2, ()),
        pytest.param(1, (), marks=pytest.mark.slow),
        pytest.param(2, ("--overlap", "backward", "--bucket", "layer"), marks=pytest.mark.slow),
        pytest.param(2, ("--overlap", "full", "--bucket", "layer"), marks=pytest.mark.slow),
    ],
)
def test_iter_size_two_is_twice_the_batch(train: Trainer, workers: int, flags: tuple[str, ...]) -> None:
    parts = train(workers, 2 * BATCH // workers, *flags, iter_size=2)
    whole = train(1, 4 * BATCH)
    assert_equal_to_rounding(parts, whole)
    assert parts.result["effective_batch"] == 4 * BATCH
    assert parts.result["samples"] == 4 * BATCH * NUM_STEPS


@pytest.mark.parametrize(
    ("workers", "num_seeds"), [pytest.param(workers, 2, marks=pytest.mark.slow) for workers in (2, 3, 4)]
)
def test_the_example_as_it_is_published(train: Trainer, repository_root: Path, workers: int, num_seeds: int) -> None:
    """LeNet with 431,080 parameters and maxima, batch 64 in all: `num_seeds` of three within the tolerance."""
    solver = repository_root / "examples" / "lenet" / "digits_solver.prototxt"
    differences: list[float] = []
    while sum(difference <= TOLERANCE for difference in differences) < num_seeds:
        assert len(differences) < 3, differences
        flags = ("--seed", str(len(differences) + 1), "--batch-mode", "global", "--iterations", str(NUM_STEPS))
        together, alone = (train.train(solver, count, *flags) for count in (workers, 1))
        assert together.result["effective_batch"] == alone.result["effective_batch"] == 64
        differences.append(relative_difference(together, alone))
    print(f"relative differences {differences}")


@pytest.mark.parametrize(("workers", "collective", "bucket"), COMBINATIONS)
def test_all_ranks_end_with_the_weights_that_are_saved(
    train: Trainer, workers: int, collective: str, bucket: str
) -> None:
    trained = train(workers, BATCH, "--collective", collective, "--bucket", bucket)
    assert trained.result["replicas_equal"] is True
    assert trained.result["weights_sha256"] == trained.sha256


def test_a_rank_whose_weights_differ_is_named(digits: Path, tmp_path: Path) -> None:
    """One number of rank 1's weights is changed from outside, in a run whose rate is 0.

    With updates in parts the next step would write rank 0's weights over it.
    """
    net = write_net(tmp_path, digits)
    solver = write_solver(net, 100_000, snapshot=10)
    solver.write_text(solver.read_text().replace("base_lr: 0.01", "base_lr: 0"))
    out = tmp_path / "out"
    flags = ("--workers", 2, "--owner", "all", "--out", out)
    with Command("train", "--solver", solver, *flags, folder=tmp_path) as command:
        saved = out / "snapshots" / "step_00000010" / "weights.safetensors"
        command.until(saved.exists, "the first snapshot")
        wanted = safetensors.numpy.load_file(saved)["ip1/0"].tobytes()
        change_one_number(command.wait_for_rank(1).pid, wanted, 1)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.return_code == 3
    assert "weights that ranks [1] evaluate differ from those of rank 0" in ended.error


def change_one_number(process_id: int, wanted: bytes, rank: int) -> None:
    """Add 1 to the first of the numbers `wanted` where shared memory holds them for the `rank`-th time."""
    folder = Path("/proc") / str(process_id) / "fd"
    (memory,) = [entry for entry in folder.iterdir() if "memfd:samovar" in str(entry.readlink())]
    with memory.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = -1
        for _ in range(rank + 1):
            place = content.find(wanted, place + 1)
            assert place >= 0, "shared memory does not hold these weights"
        number = np.frombuffer(content[place : place + 4], np.float32) + np.float32(1)
        content[place : place + 4] = number.tobytes()


def test_the_same_seed_gives_the_same_bits(train: Trainer) -> None:
    flags = ("--collective", "tree", "--bucket", "layer")
    first, second = train(3, BATCH, *flags), train(3, BATCH, *flags, turn=2)
    assert first.result["weights_sha256"] == second.result["weights_sha256"]
    assert first.losses == second.losses


def test_two_gradients_have_one_sum(train: Trainer) -> None:
    """a + b = b + a: with two workers neither collective nor bucket changes a bit."""
    runs = [
        train(workers, BATCH, "--collective", collective, "--bucket", bucket)
        for workers, collective, bucket in OFTEN
        if workers == 2
    ]
    assert len(runs) == 2
    assert len({run.sha256 for run in runs}) == 1


@pytest.mark.parametrize(("workers", "collective", "bucket"), COMBINATIONS)
def test_bytes_sent_are_those_of_the_plans(train: Trainer, workers: int, collective: str, bucket: str) -> None:
    """The gradient's exchange, the ranks' records and the test results: not a byte more.

    In one bucket, `direct` divides updates: then the snapshot at the end gathers the momentum too.
    """
    trained = train(workers, BATCH, "--collective", collective, "--bucket", bucket)
    layout = Layout.pack(ParameterSpec(name, trained.weights[name].shape) for name in reversed(PARAMETERS))
    plans = [all_reduce(collective, host_size=workers)(rank, workers) for rank in range(workers)]
    sizes = [part.size for part in layout.buckets(parse_bucket(bucket))]
    gradient = sum(sum(cost(plans, size).bytes_sent) for size in sizes) * NUM_STEPS
    records = workers * (workers - 1) * RECORD_BYTES * NUM_STEPS
    trees = [tree_all_reduce(rank, workers) for rank in range(workers)]
    tests = sum(cost(trees, NUM_TEST_BATCHES * NUM_OUTPUTS, element_bytes=8).bytes_sent) * NUM_TESTS
    is_divided = (collective, bucket) == ("direct", "model")
    halves = [ring_all_gather(rank, workers) for rank in range(workers)] if is_divided else []
    momentum = sum(sum(cost(halves, size).bytes_sent) for size in sizes) if halves else 0
    total = Fraction(gradient + momentum + records + tests, workers * NUM_STEPS)
    assert trained.result["bytes_sent_per_step"] == pytest.approx(float(total), rel=1e-12)
