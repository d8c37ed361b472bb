"""--hold-data by the command line: the same weights, what it says, and what it refuses."""

from pathlib import Path

import cv2
import pytest

from tests.multiproc.command import Ended, result_of, run
from tests.unit.data.pictures import picture

BAD_INPUT = 2
NUM_IMAGES = 150
_NET = """
layer { name: "images" type: "ImageData" top: "data" top: "label"
  transform_param { scale: 0.01 crop_size: 8 mirror: true }
  image_data_param { source: "list.txt" batch_size: 12 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
_SOLVER = 'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 30 random_seed: 1 snapshot_prefix: "x"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes, and a net that crops them."""
    folder = tmp_path_factory.mktemp("images")
    for index in range(NUM_IMAGES):
        cv2.imwrite(str(folder / f"{index}.png"), picture(9 + index % 5, 8 + index % 7, seed=index))
    (folder / "list.txt").write_text("".join(f"{index}.png {index % 3}\n" for index in range(NUM_IMAGES)))
    (folder / "net.prototxt").write_text(_NET)
    (folder / "solver.prototxt").write_text(_SOLVER)
    return folder


def train(folder: Path, workers: int, *flags: object) -> Ended:
    own = ("--workers", workers, "--threads-per-worker", 1, "--exact", 2, "--shuffle", *flags)
    return run("train", "--solver", "solver.prototxt", *own, folder=folder)


@pytest.mark.slow
def test_weights_are_the_same_bits_and_every_file_is_read_once(folder: Path) -> None:
    assert train(folder, 1, "--out", "files").return_code == 0
    held = train(folder, 2, "--out", "held", "--hold-data")
    assert held.return_code == 0, held
    wanted, found = result_of(folder / "files"), result_of(folder / "held")
    assert found["weights_sha256"] == wanted["weights_sha256"]
    assert found["data_bytes_fetched_per_step"] > 0 == wanted["data_bytes_fetched_per_step"]
    assert "--hold-data: 150 records, decoded about 0.0 MB, 0.0 MB on each of 2 workers" in held.output
    assert "--hold-data: all records are in memory after" in held.output


@pytest.mark.slow
def test_a_damaged_image_is_named_before_the_first_step(folder: Path) -> None:
    lines = (folder / "list.txt").read_text()
    (folder / "damaged.png").write_bytes(b"no image")
    (folder / "list.txt").write_text(lines + "damaged.png 0\n")
    try:
        ended = train(folder, 2, "--out", "damaged", "--hold-data")
    finally:
        (folder / "list.txt").write_text(lines)
    assert ended.return_code == BAD_INPUT, ended
    assert "list.txt:151: " in ended.error
    assert not (folder / "damaged").exists()
