"""`--collective auto` and `--bucket auto`: what they name is what ran, and the record behind them is kept."""

import json
from pathlib import Path

import pytest

from samovar.collectives.cost import choose_all_reduce
from samovar.config import RunConfig
from samovar.core.machine import NOMINAL
from samovar.core.plain import to_plain
from tests.parity.trained import Trainer, relative_difference

WORKERS = 3  # with two, every plan gives the same bits
BATCH = 8


@pytest.mark.slow
def test_auto_is_the_chosen_plan_bit_for_bit(train: Trainer) -> None:
    auto = train(WORKERS, BATCH)
    config = RunConfig.load(auto.out / "config.json")
    assert config.strategy.collective == "auto"
    assert config.calibration == NOMINAL
    num_bytes = 4 * sum(array.size for array in auto.weights.values())
    chosen = choose_all_reduce(NOMINAL, WORKERS, num_bytes, True, config.oversubscribed)
    assert auto.result["collective"] == f"{chosen} (auto)"
    assert len(auto.result["peak_memory_bytes"]) == WORKERS
    assert min(auto.result["peak_memory_bytes"]) > num_bytes
    named = train(WORKERS, BATCH, "--collective", chosen)
    assert named.result["collective"] == chosen
    assert named.sha256 == auto.sha256


@pytest.mark.slow
def test_a_calibration_that_is_given_is_what_auto_stands_on_and_is_kept(train: Trainer, tmp_path: Path) -> None:
    slow = to_plain(NOMINAL)
    # Bytes cost nothing, sending a message or changing the process does: a tree has the fewest.
    slow["transports"]["shm"] |= {"spinning_latency_s": 1.0, "shared_core_latency_s": 1.0, "bandwidth": [[1, 1e18]]}
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(slow))
    trained = train(WORKERS, BATCH, "--calibration", str(path))
    assert trained.result["collective"] == "kary-tree (auto)"
    kept = RunConfig.load(trained.out / "config.json").calibration
    assert kept.transports["shm"].spinning_latency_s == 1.0


@pytest.mark.slow
def test_where_no_worker_has_a_core_to_spare_the_model_is_exchanged_whole(train: Trainer) -> None:
    auto, whole = train(WORKERS, BATCH), train(WORKERS, BATCH, "--bucket", "model")
    assert (auto.result["buckets"], whole.result["buckets"]) == ("1 bucket (auto)", "1 bucket")
    assert auto.result["bucket_sizes_bytes"] == whole.result["bucket_sizes_bytes"]
    assert auto.sha256 == whole.sha256
    assert RunConfig.load(auto.out / "config.json").strategy.automatic_buckets


@pytest.mark.slow
def test_an_overlap_needs_no_size_of_buckets(train: Trainer) -> None:
    overlapping = train(WORKERS, BATCH, "--overlap", "full", "--collective", "tree")
    assert overlapping.result["buckets"].endswith("(auto)")
    assert overlapping.result["replicas_equal"] is True
    assert relative_difference(overlapping, train(WORKERS, BATCH)) <= 1e-6
