"""`--exact 8` on published nets and data: bitwise the same weights for any number of workers."""

from pathlib import Path

import pytest

from tests.multiproc.command import Command, result_of

NUM_STEPS = 200
RUN_TIMEOUT_S = 300.0
SOLVER = 'max_iter: 200 display: 100 base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.004 random_seed: 1'


def run(folder: Path, *arguments: object) -> None:
    with Command(*arguments, folder=folder) as command:
        ended = command.wait(RUN_TIMEOUT_S)
    assert ended.return_code == 0, ended.errors


@pytest.mark.slow
@pytest.mark.timeout(6 * RUN_TIMEOUT_S)
@pytest.mark.parametrize(
    ("net", "data", "out"),
    [("lenet", "mnist", "data"), *((f"cifar10_{size}", "cifar10", "data/cifar10") for size in ("quick", "full"))],
)
def test_any_number_of_workers_ends_with_the_same_bits(
    repository_root: Path, data_folder: Path, tmp_path: Path, net: str, data: str, out: str
) -> None:
    source = data_folder / {"cifar10": "cifar-10"}.get(data, data)
    run(tmp_path, "data", data, "--source", source, "--out", out)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{repository_root}/examples/zoo/{net}/train_val.prototxt" {SOLVER}')
    hashes = {}
    for workers in (1, 2, 3, 4, 8):
        shape = ("--workers", workers, "--threads-per-worker", 1, "--exact", 8)
        run(tmp_path, "train", "--solver", solver, *shape, "--out", f"run{workers}")
        result = result_of(tmp_path / f"run{workers}")
        assert result["steps"] == NUM_STEPS
        hashes[workers] = result["weights_sha256"]
    assert len(set(hashes.values())) == 1, hashes
