"""`--collective auto`: the plan that it names is the plan that ran, and the record behind it is kept."""

import json
from pathlib import Path

from samovar.collectives.choose import choose_all_reduce
from samovar.config import RunConfig
from samovar.core.calibration import NOMINAL
from tests.parity.trained import Trainer

WORKERS = 3  # with two, every plan gives the same bits
BATCH = 8


def test_auto_is_the_chosen_plan_bit_for_bit(train: Trainer) -> None:
    auto = train(WORKERS, BATCH)
    config = RunConfig.load(auto.out / "config.json")
    assert config.strategy.collective == "auto"
    assert config.calibration == NOMINAL
    num_bytes = 4 * sum(array.size for array in auto.weights.values())
    chosen = choose_all_reduce(NOMINAL, WORKERS, num_bytes, True, config.oversubscribed)
    assert auto.result["collective"] == f"{chosen} (auto)"
    named = train(WORKERS, BATCH, "--collective", chosen)
    assert named.result["collective"] == chosen
    assert named.sha256 == auto.sha256


def test_a_calibration_that_is_given_is_what_auto_stands_on_and_is_kept(train: Trainer, tmp_path: Path) -> None:
    slow = NOMINAL.to_json()
    # Bytes cost nothing, sending a message or changing the process does: a tree has the fewest.
    slow["transports"]["shm"] |= {"spinning_latency_s": 1.0, "shared_core_latency_s": 1.0, "bandwidth": [[1, 1e18]]}
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(slow))
    trained = train(WORKERS, BATCH, "--calibration", str(path))
    assert trained.result["collective"] == "kary-tree (auto)"
    kept = RunConfig.load(trained.out / "config.json").calibration
    assert kept.transports["shm"].spinning_latency_s == 1.0
