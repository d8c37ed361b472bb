"""`sync` against DistributedDataParallel on gloo, in the same two processes: the same weights after 50 steps."""

from pathlib import Path

import pytest

from tests.multiproc.replicate_ranks import run_ranks

TOLERANCE = 1e-5
USUAL = ("resnet-sgd", "adversaries-adam", "transformer-buckets")
OTHERS = (
    "resnet-adam", "resnet-adamw", "transformer-sgd", "transformer-adam", "transformer-adamw",
    "lstm-sgd", "lstm-adam", "lstm-adamw",
    "adversaries-sgd", "adversaries-adamw",
)  # fmt: skip


def compare(folder: Path, *names: str) -> None:
    results = run_ranks("tests.parity.ddp_rank", 2, str(folder), *names)
    assert set(results) == set(names)
    for name, ranks in results.items():
        for result in ranks:
            assert "error" not in result, result["error"]
            assert result["moved"] > 1e-3, f"{name} did not train"
            assert result["distance"] <= TOLERANCE, name


def test_sync_is_what_ddp_computes(tmp_path: Path) -> None:
    compare(tmp_path, *USUAL)


@pytest.mark.slow
def test_sync_is_what_ddp_computes_with_every_optimizer(tmp_path: Path) -> None:
    compare(tmp_path, *OTHERS)
