"""Lists of image files, and compressed records of an LMDB: read as Caffe reads them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.data.config import DataConfig, ImageDataConfig, TransformConfig
from samovar.data.order import below, sample_draws
from samovar.data.reader import BatchReader
from samovar.formats.caffe.schema import message_class
from samovar.formats.lmdb_file import write_lmdb
from tests.unit.data.pictures import Bytes, encoded, picture

SIZES = [(40, 60), (33, 21), (64, 64), (25, 90), (48, 30)]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageDataConfig:
    """Five images of different sizes, two in a folder of their own, and their list; another folder is current."""
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    (tmp_path / "list").mkdir()
    (tmp_path / "images" / "some dogs").mkdir(parents=True)
    names = ["a.png", "some dogs/b.jpg", "some dogs/c.png", "d.bmp", "e.jpg"]
    kinds = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP"}
    for index, (name, size) in enumerate(zip(names, SIZES, strict=True)):
        content = encoded(picture(*size, seed=index), kinds[name[-3:]])
        (tmp_path / "images" / name).write_bytes(content)
    lines = [f"{name} {7 - 3 * index}\n" for index, name in enumerate(names)]
    (tmp_path / "list/train.txt").write_text("\n".join(lines))
    return ImageDataConfig(
        tmp_path / "list/train.txt", 3, ("data", "label"), TransformConfig(), False, tmp_path / "images", (32, 24)
    )


def images_of(config: ImageDataConfig) -> list[Bytes]:
    """The images as OpenCV reads them, in the list's order: (C, H, W)."""
    assert config.root is not None
    lines = [line for line in config.source.read_text().splitlines() if line]
    read = [cv2.imread(str(config.root / line.rpartition(" ")[0]), int(config.is_color)) for line in lines]
    return [np.moveaxis(np.atleast_3d(image), 2, 0) for image in read]


@pytest.mark.parametrize("is_color", [True, False])
def test_reads_and_resizes_as_caffe(config: ImageDataConfig, is_color: bool) -> None:
    config = replace(config, is_color=is_color)
    with BatchReader([config], False) as reader:
        assert reader.top_shapes == {"data": (3, 3 if is_color else 1, 32, 24), "label": (3,)}
        assert len(reader) == 5
        batch = reader.read(3, 4)
    wanted = [np.atleast_3d(cv2.resize(np.moveaxis(image, 0, 2), (24, 32))) for image in images_of(config)]
    for place, index in enumerate([3, 4, 0, 1]):
        np.testing.assert_array_equal(batch["data"][place].numpy(), np.moveaxis(wanted[index], 2, 0))
    assert batch["label"].tolist() == [-2, -5, 7, 4]


def test_crops_images_of_different_sizes(config: ImageDataConfig) -> None:
    """The draws of sample n are the same in whatever batch it comes."""
    transform = TransformConfig(crop_size=20, mirror=True, mean_values=(10.0, 20.0, 30.0), scale=0.5)
    config = replace(config, new_size=None, transform=transform, training=True)
    with BatchReader([config], True, seed=3) as reader:
        found = reader.read(10, 5)["data"]
        alone = torch.cat([reader.read(n, 1)["data"] for n in range(10, 15)])
    assert torch.equal(found, alone)
    draws = sample_draws(3, 10, 5)
    for place, image in enumerate(images_of(config)):
        top, left = (int(below(draws[place, k : k + 1], image.shape[k] - 19)[0]) for k in (1, 2))
        wanted = (image[:, top : top + 20, left : left + 20] - np.array([10, 20, 30], np.float32)[:, None, None]) * 0.5
        flipped = below(draws[place, :1], 2)[0] == 1
        np.testing.assert_array_equal(found[place].numpy(), wanted[..., ::-1] if flipped else wanted)


def test_crops_in_the_centre_when_testing(config: ImageDataConfig) -> None:
    config = replace(config, new_size=None, transform=TransformConfig(crop_size=20))
    with BatchReader([config], False) as reader:
        found = reader.read(0, 5)["data"].numpy()
    for crop, image in zip(found, images_of(config), strict=True):
        top, left = (image.shape[1] - 20) // 2, (image.shape[2] - 20) // 2
        np.testing.assert_array_equal(crop, image[:, top : top + 20, left : left + 20])


def test_the_layers_own_shuffle_is_another_order_every_epoch(config: ImageDataConfig) -> None:
    with BatchReader([replace(config, shuffled=True)], False, seed=1) as reader:
        labels = [reader.read(5 * epoch, 5)["label"].tolist() for epoch in range(8)]
        assert reader.read(12, 3)["label"].tolist() == labels[2][2:]
    assert all(sorted(found) == [-5, -2, 1, 4, 7] for found in labels)
    assert len({tuple(found) for found in labels}) > 1


def write_list(config: ImageDataConfig, text: str) -> None:
    config.source.write_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.txt: lists no image"),
        ("a.png 1\nb.png\n", r"train.txt:2: is not 'path label': 'b.png'"),
        ("a.png one\n", r"train.txt:1: is not 'path label': 'a.png one'"),
        ("a.png 4294967296\n", "below 2,147,483,648"),
        (" 3\n", "train.txt:1: is not 'path label'"),
        ("\n\nmissing.png 1\n", r"train.txt:3: 'missing.png' not found in .*images; check the list, or give"),
        ("../list/train.txt 1\n", r"train.txt:1: '../list/train.txt' leads to .*list/train.txt, outside of .*images"),
        ("link.png 1\n", "'link.png' leads to .*secret.png, outside of"),
        ("folder_link/secret.png 1\n", "leads to .*secret.png, outside of"),
        (". 1\n", "is not a regular file"),
        ("a\0b.png 1\n", "not found"),
        ("short.jpg 1\n", r"train.txt:1: .*short.jpg: no whole image"),
    ],
)
def test_lists_that_cannot_be_used(config: ImageDataConfig, tmp_path: Path, text: str, message: str) -> None:
    secret = tmp_path / "elsewhere/secret.png"
    secret.parent.mkdir()
    secret.write_bytes((tmp_path / "images/a.png").read_bytes())
    (tmp_path / "images/link.png").symlink_to(secret)
    (tmp_path / "images/folder_link").symlink_to(secret.parent)
    (tmp_path / "images/short.jpg").write_bytes((tmp_path / "images/e.jpg").read_bytes()[:100])
    write_list(config, text)
    with pytest.raises(InputError, match=message):
        BatchReader([config], False)


def test_without_a_root_paths_start_at_the_working_folder_or_the_list(config: ImageDataConfig, tmp_path: Path) -> None:
    content = (tmp_path / "images/a.png").read_bytes()
    (tmp_path / "list/beside.png").write_bytes(content)
    (tmp_path / "current/here.png").write_bytes(content)
    write_list(config, f"beside.png 1\nhere.png 2\n{tmp_path}/current/here.png 3\n")
    with BatchReader([replace(config, root=None)], False) as reader:
        assert reader.read(0, 3)["label"].tolist() == [1, 2, 3]
    write_list(config, f"{tmp_path}/images/a.png 1\n")
    with pytest.raises(InputError, match=r"outside of .*current and .*list; .* root_folder \(\"/\" for any\)"):
        BatchReader([replace(config, root=None)], False)
    with BatchReader([replace(config, root=Path("/"))], False) as reader:
        assert reader.read(0, 1)["label"].tolist() == [1]


def test_a_later_image_that_does_not_fit(config: ImageDataConfig) -> None:
    with (
        BatchReader([replace(config, new_size=None)], False) as reader,
        pytest.raises(InputError, match=r"train.txt:3: the image has shape \(3, 33, 21\), the first one \(3, 40, 60\)"),
    ):
        reader.read(0, 2)
    with (
        BatchReader([replace(config, new_size=None, transform=TransformConfig(crop_size=22))], False) as reader,
        pytest.raises(InputError, match="crop_size is 22, but an image is 33 x 21 at the smallest"),
    ):
        reader.read(0, 2)


@pytest.fixture
def compressed(tmp_path: Path) -> Callable[..., DataConfig]:
    """make(files) writes them as compressed records; record i has label i."""

    def make(files: list[bytes], **transform: Any) -> DataConfig:
        datum = message_class("Datum")
        records = [datum(data=file, label=i, encoded=True).SerializeToString() for i, file in enumerate(files)]
        write_lmdb(tmp_path / "images_lmdb", ((b"%08d" % i, record) for i, record in enumerate(records)))
        return DataConfig(tmp_path / "images_lmdb", 2, ("data", "label"), TransformConfig(**transform), training=False)

    return make


@pytest.mark.parametrize(("force", "flags"), [("", -1), ("force_color", 1), ("force_gray", 0)])
def test_compressed_records(compressed: Callable[..., DataConfig], force: str, flags: int) -> None:
    mode = "L" if force != "force_gray" else "RGB"
    files = [encoded(picture(12, 10), "PNG", mode), encoded(picture(12, 10, seed=1), "JPEG", mode)]
    with BatchReader([compressed(files, **({force: True} if force else {}))], False) as reader:
        found = reader.read(0, 2)
    for image, file in zip(found["data"].numpy(), files, strict=True):
        wanted = np.atleast_3d(cv2.imdecode(np.frombuffer(file, np.uint8), flags))
        np.testing.assert_array_equal(image, np.moveaxis(wanted, 2, 0))
    assert found["label"].tolist() == [0, 1]


def test_compressed_records_that_do_not_fit(compressed: Callable[..., DataConfig]) -> None:
    first = encoded(picture(12, 10), "PNG")
    config = compressed([first, encoded(picture(12, 10), "PNG", "L"), first[:80], encoded(picture(30, 20), "PNG")])
    with BatchReader([config], False) as reader:
        with pytest.raises(InputError, match=r"record '00000001' has shape \(1, 12, 10\).*force_color: true"):
            reader.read(1, 1)
        with pytest.raises(InputError, match="record '00000002': no whole image"):
            reader.read(2, 1)
        with pytest.raises(InputError, match=r"record '00000003' has shape \(3, 30, 20\).*crop_size"):
            reader.read(3, 1)
    with BatchReader([replace(config, transform=TransformConfig(crop_size=8, force_color=True))], False) as reader:
        assert reader.read(3, 2)["data"].shape == (2, 3, 8, 8)
