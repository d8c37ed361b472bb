"""Nets that read HDF5 files, image lists, several sources or none, trained and tested by the command line."""

from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from tests.multiproc.command import metrics_of, result_of, run, succeed

_BODY = """
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" {rule} }}
"""
_SOLVER = """net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 20
test_iter: 2 test_interval: 20 random_seed: 1 snapshot_prefix: "x"
"""
BAD_INPUT = 2
Train = Callable[..., dict[str, object]]


def refuse(*arguments: object, folder: Path) -> str:
    """The sentence about wrong input."""
    ended = run(*arguments, folder=folder)
    assert ended.return_code == BAD_INPUT, ended
    return ended.error


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """train(data_layers, workers) gives the run's result."""

    def run(layers: str, workers: int = 1, rule: str = "") -> dict[str, object]:
        (tmp_path / "net.prototxt").write_text(layers + _BODY.format(rule=rule))
        (tmp_path / "solver.prototxt").write_text(_SOLVER)
        flags = ("--workers", workers, "--threads-per-worker", 1, "--out", f"out{workers}")
        succeed("train", "--solver", "solver.prototxt", *flags, folder=tmp_path)
        return result_of(tmp_path / f"out{workers}")

    return run


@pytest.mark.slow
def test_hdf5_rows_train_and_come_out_again(tmp_path: Path, train: Train) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(30) % 3
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"] = generator.normal(size=(30, 2, 2)) + labels[:, None, None] * 4
        file["label"] = labels.astype(np.float32)
    (tmp_path / "list.txt").write_text("rows.h5\n")
    layer = """layer { name: "rows" type: "HDF5Data" top: "data" top: "label"
      hdf5_data_param { source: "list.txt" batch_size: 12 shuffle: true } }"""
    result = train(layer)
    assert isinstance(result["test_loss"], float)
    assert result["test_loss"] < 0.7

    write = """layer { name: "write" type: "HDF5Output" bottom: "ip" bottom: "label" include { phase: TEST }
      hdf5_output_param { file_name: "scores.h5" } }"""
    (tmp_path / "net.prototxt").write_text(layer.replace("shuffle: true", "") + _BODY.format(rule="") + write)
    [weights] = tmp_path.glob("out1/snapshots/*/*.caffemodel")
    flags = ("--model", "net.prototxt", "--weights", weights, "--out", "written", "--iterations", 1)
    error = refuse("test", *flags[:-1], 2, "--workers", 2, folder=tmp_path)
    assert error.endswith("layer 'write': HDF5Output writes one forward pass; test with --iterations 1")
    assert not list(tmp_path.glob("written/*"))
    ended = succeed("test", *flags, folder=tmp_path)
    assert "written/scores.h5: written" in ended.output + ended.errors
    with h5py.File(tmp_path / "written/scores.h5") as file:
        assert file["data"].shape == (12, 3, 1, 1)
        np.testing.assert_array_equal(file["label"][:, 0, 0, 0], labels[:12])


@pytest.mark.slow
def test_an_image_list_gives_the_same_on_two_workers(tmp_path: Path, train: Train) -> None:
    lines = []
    for index in range(12):
        image = np.full((10 + index, 14, 3), 255 * np.eye(3)[index % 3], np.uint8)
        cv2.imwrite(str(tmp_path / f"{index}.png"), image)
        lines.append(f"{index}.png {index % 3}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    layer = """layer { name: "images" type: "ImageData" top: "data" top: "label"
      transform_param { scale: 0.01 crop_size: 8 }
      image_data_param { source: "list.txt" batch_size: %d new_height: 9 new_width: 9 shuffle: true } }"""
    alone, shared = train(layer % 6), train(layer % 3, workers=2)
    assert isinstance(alone["test_loss"], float)
    assert alone["test_loss"] < 0.1
    assert alone["test_loss"] == pytest.approx(shared["test_loss"], rel=1e-4)


@pytest.mark.slow
def test_generated_data_need_no_source(tmp_path: Path, train: Train) -> None:
    layer = """layer { name: "made" type: "DummyData" top: "data" top: "label" dummy_data_param {
      shape { dim: 4 dim: 5 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { value: 2 } } }"""
    result = train(layer, workers=2)
    assert isinstance(result["test_loss"], float)
    assert result["test_loss"] < 0.2
    assert result["effective_batch"] == 8
    assert len(metrics_of(tmp_path / "out2", "train")) == 20


def test_memory_data_is_left_to_programs(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(
        """layer { name: "array" type: "MemoryData" top: "data" top: "label"
          memory_data_param { batch_size: 2 channels: 1 height: 2 width: 2 } }"""
        + _BODY.format(rule="")
    )
    (tmp_path / "solver.prototxt").write_text(_SOLVER)
    error = refuse("train", "--solver", "solver.prototxt", folder=tmp_path)
    assert "net.prototxt:1: layer 'array': a layer of type MemoryData is filled by a program" in error


@pytest.mark.parametrize("num_labels", [6, 5])
def test_layers_that_shuffling_does_not_pair_are_told(tmp_path: Path, num_labels: int) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((4, 4, 3), np.uint8))
    layers = ""
    for name, tops, count in (("images", ("data", "own"), 6), ("labels", ("other", "label"), num_labels)):
        (tmp_path / f"{name}.txt").write_text("a.png 1\n" * count)
        layers += f"""layer {{ name: "{name}" type: "ImageData" top: "{tops[0]}" top: "{tops[1]}"
          image_data_param {{ source: "{name}.txt" batch_size: 2 }} }}"""
    (tmp_path / "net.prototxt").write_text(layers + _BODY.format(rule=""))
    (tmp_path / "solver.prototxt").write_text(_SOLVER)
    flags = ("--iterations", 1, "--threads-per-worker", 1, "--shuffle")
    ended = succeed("train", "--solver", "solver.prototxt", *flags, folder=tmp_path)
    told = "data layers have 6 and 5 records, so --shuffle does not pair them"
    assert (told in ended.output + ended.errors) == (num_labels == 5)
