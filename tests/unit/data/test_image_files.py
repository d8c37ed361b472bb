"""Images of one's own as a database: what LMDB's own library and OpenCV read back, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
from PIL import Image

from samovar.core.errors import InputError
from samovar.data.config import DataConfig, TransformConfig
from samovar.data.databases import (
    Conversion,
    ImageFile,
    class_folders,
    listed_images,
    shuffled,
    write_image_files,
)
from samovar.data.reader import BatchReader
from samovar.formats.caffe.blob import read_mean
from samovar.formats.caffe.schema import Message, message_class
from tests.unit.data.pictures import Bytes, encoded, picture

NAMES = ("cats/1.png", "cats/2.jpg", "cats/in/3.jpg", "dogs/1.png", "dogs/2.bmp")
LABELS = (0, 0, 0, 1, 1)
KINDS = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP"}
SIZE = (12, 14)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images of different sizes in folders for two classes, and files that are none."""
    for index, name in enumerate(NAMES):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(20 + index, 30 - index, seed=index), KINDS[name[-3:]]))
    for name in ("notes.txt", ".DS_Store", "cats/.hidden.png", "cats/readme.md"):
        (tmp_path / "pictures" / name).write_bytes(b"none")
    return tmp_path / "pictures"


def records_of(database: Path) -> Iterator[tuple[bytes, Message]]:
    """As Caffe reads them: through LMDB's library."""
    with lmdb.open(str(database), readonly=True, lock=False) as environment, environment.begin() as transaction:
        for key, value in transaction.cursor():
            yield bytes(key), message_class("Datum").FromString(bytes(value))


def by_opencv(path: Path, is_gray: bool = False, size: tuple[int, int] | None = None) -> Bytes:
    """(C, H, W), as convert_imageset has it."""
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE if is_gray else cv2.IMREAD_COLOR)
    if size is not None:
        image = cv2.resize(image, size[::-1])
    return np.moveaxis(np.atleast_3d(image), 2, 0)


def decoded(datum: Message) -> Bytes:
    """A compressed record, by OpenCV."""
    assert datum.encoded
    pixels: Any = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_COLOR)
    return np.moveaxis(pixels, 2, 0)


def jpeg(pixels_CHW: Bytes) -> bytes:
    """As convert_imageset has OpenCV write it."""
    return cv2.imencode(".jpg", np.moveaxis(pixels_CHW, 0, 2))[1].tobytes()


def test_folders_are_classes_in_the_order_of_their_names(folder: Path) -> None:
    images, classes = class_folders(folder)
    assert classes == ("cats", "dogs")
    assert [(image.name, image.label) for image in images] == list(zip(NAMES, LABELS, strict=True))


@pytest.mark.parametrize("is_gray", [False, True])
@pytest.mark.parametrize("size", [None, SIZE])
def test_raw_records_are_opencvs_pixels(
    tmp_path: Path, folder: Path, size: tuple[int, int] | None, is_gray: bool
) -> None:
    images, _ = class_folders(folder)
    written = write_image_files(tmp_path / "db", images, Conversion(size, is_gray))
    assert written.shape == ((1 if is_gray else 3, *SIZE) if size else None)
    found = list(records_of(tmp_path / "db"))
    assert [key.decode() for key, _ in found] == [f"{index:08d}_{name}" for index, name in enumerate(NAMES)]
    assert [datum.label for _, datum in found] == list(LABELS)
    for (_, datum), name in zip(found, NAMES, strict=True):
        wanted = by_opencv(folder / name, is_gray, size)
        assert (datum.channels, datum.height, datum.width) == wanted.shape
        assert datum.data == wanted.tobytes()


@pytest.mark.parametrize("form", ["files", "png", "jpg"])
def test_compressed_records(tmp_path: Path, folder: Path, form: str) -> None:
    images, _ = class_folders(folder)
    size = None if form == "files" else SIZE
    write_image_files(tmp_path / "db", images, Conversion(size, form=form))
    for (_, datum), image in zip(records_of(tmp_path / "db"), images, strict=True):
        found, wanted = decoded(datum), by_opencv(image.path, size=size)
        if form == "jpg":
            wanted = decoded(message_class("Datum")(encoded=True, data=jpeg(wanted)))
        assert datum.label == image.label
        if form == "files":
            assert datum.data == image.path.read_bytes()
        assert datum.data[:4] == {"png": b"\x89PNG", "jpg": b"\xff\xd8\xff\xe0"}.get(form, datum.data[:4])
        np.testing.assert_allclose(found, wanted, atol=1 if form == "jpg" else 0)


@pytest.mark.parametrize("form", ["raw", "png", "jpg"])
def test_the_mean_is_that_of_what_is_stored(tmp_path: Path, folder: Path, form: str) -> None:
    images, _ = class_folders(folder)
    written = write_image_files(tmp_path / "db", images, Conversion(SIZE, form=form), tmp_path / "mean.binaryproto")
    assert (written.database.already_there, written.mean_already_there) == (False, False)
    pixels = [
        np.frombuffer(datum.data, np.uint8).reshape(3, *SIZE) if form == "raw" else decoded(datum)
        for _, datum in records_of(tmp_path / "db")
    ]
    wanted = np.sum(pixels, axis=0).astype(np.float32) / np.float32(len(pixels))
    np.testing.assert_array_equal(read_mean(tmp_path / "mean.binaryproto"), wanted)
    again = write_image_files(tmp_path / "db", images, Conversion(SIZE, form=form), tmp_path / "mean.binaryproto")
    assert (again.database.already_there, again.mean_already_there) == (True, True)


def test_a_net_reads_what_was_written(tmp_path: Path, folder: Path) -> None:
    images = shuffled(class_folders(folder)[0], seed=3)
    write_image_files(tmp_path / "db", images, Conversion(SIZE))
    layer = DataConfig(tmp_path / "db", 5, ("data", "label"), TransformConfig(), training=True)
    with BatchReader([layer], True) as reader:
        batch = reader.read(0, 5)
    assert batch["label"].tolist() == [image.label for image in images]
    for found, image in zip(batch["data"].numpy(), images, strict=True):
        np.testing.assert_array_equal(found, by_opencv(image.path, size=SIZE))


def test_the_order_of_a_seed_is_fixed() -> None:
    images = [ImageFile(Path(str(index)), str(index), index) for index in range(10)]
    assert [image.label for image in shuffled(images, 1)] == [4, 0, 5, 6, 2, 7, 8, 3, 9, 1]
    assert shuffled(images, 1) != shuffled(images, 2)


def test_a_list_is_taken_as_caffe_takes_it(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "list.txt").write_text("cats/1.png 7\n\n/dogs/2.bmp -1\n")
    images = listed_images(tmp_path / "list.txt", folder)
    assert [(image.path, image.label) for image in images] == [(folder / "cats/1.png", 7), (folder / "dogs/2.bmp", -1)]
    write_image_files(tmp_path / "db", images, Conversion())
    assert [key for key, _ in records_of(tmp_path / "db")] == [b"00000000_cats/1.png", b"00000001_/dogs/2.bmp"]


def test_every_missing_file_of_a_list_is_counted_and_some_are_named(tmp_path: Path, folder: Path) -> None:
    lines = ["cats/1.png 0", *(f"none{index}.png 0" for index in range(9))]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    with pytest.raises(
        InputError, match=r"list.txt: 9 of 10 images cannot be found; nothing was written: 'none0.*none3.*; and 5 more$"
    ):
        listed_images(tmp_path / "list.txt", folder)


def test_broken_images_are_named_together_and_nothing_is_left(tmp_path: Path, folder: Path) -> None:
    for name in ("cats/2.jpg", "dogs/1.png"):
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
    before = sorted(tmp_path.iterdir())
    images, _ = class_folders(folder)
    message = (
        r"^2 of 5 images cannot be used; nothing was written: \S*/cats/2.jpg: no whole .*; \S*/dogs/1.png: no whole"
    )
    with pytest.raises(InputError, match=message):
        write_image_files(tmp_path / "db", images, Conversion(), tmp_path / "mean")
    assert sorted(tmp_path.iterdir()) == before


def test_an_image_that_no_jpeg_can_hold_is_named(tmp_path: Path, folder: Path) -> None:
    Image.new("RGB", (70_000, 2)).save(folder / "cats" / "wide.png")
    message = r"1 of 6 images cannot be used; .*cats/wide.png: has 70,000 x 2 pixels; a JPEG has at most 65,500 a side"
    with pytest.raises(InputError, match=message):
        write_image_files(tmp_path / "db", class_folders(folder)[0], Conversion(form="jpg"))
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        ("db", "is the place of the database"),
        ("new", "new: is the place of the database"),
        (".", "is not a regular file"),
        ("file/more/mean", "file is not a folder"),
    ],
)
def test_a_mean_that_has_no_place_is_refused_first(tmp_path: Path, folder: Path, mean: str, message: str) -> None:
    (tmp_path / "file").touch()
    database = tmp_path / ("new/db" if mean == "new" else "db")

    def told(_done: int, _total: int) -> None:
        pytest.fail("images were read")

    with pytest.raises(InputError, match=message):
        write_image_files(database, class_folders(folder)[0], Conversion(SIZE), tmp_path / mean, told)
    assert not database.exists()


def test_a_mean_of_several_shapes_is_refused_and_nothing_is_left(tmp_path: Path, folder: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"--mean: images have 5 shapes, such as \(3, 20, 30\) and \(3, 21, 29\)"):
        write_image_files(tmp_path / "db", class_folders(folder)[0], Conversion(), tmp_path / "mean")
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_there_is_not_replaced(tmp_path: Path, folder: Path) -> None:
    images, _ = class_folders(folder)
    write_image_files(tmp_path / "db", images, Conversion(SIZE))
    before = (tmp_path / "db/data.mdb").read_bytes()
    with pytest.raises(InputError, match="exists with other records, so it is not replaced"):
        write_image_files(tmp_path / "db", images[::-1], Conversion(SIZE))
    assert (tmp_path / "db/data.mdb").read_bytes() == before


def test_long_names_are_cut_in_keys(tmp_path: Path, folder: Path) -> None:
    image = replace(class_folders(folder)[0][0], name="x" * 600)
    write_image_files(tmp_path / "db", [image], Conversion())
    [(key, _)] = records_of(tmp_path / "db")
    assert key == b"00000000_" + b"x" * 502


def test_no_image_is_left_out_without_a_word(tmp_path: Path, folder: Path) -> None:
    """A link that leads nowhere is named, and so is a link to a folder."""
    (folder / "cats/lost.jpg").symlink_to("missing.jpg")
    with pytest.raises(InputError, match=r"1 of \d+ images cannot be used; .*/cats/lost.jpg: no such image file"):
        write_image_files(tmp_path / "db", class_folders(folder)[0], Conversion())
    (folder / "cats/lost.jpg").unlink()
    (folder / "cats/more").symlink_to(folder / "dogs")
    with pytest.raises(InputError, match="/cats/more: is a link to a folder"):
        class_folders(folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: class_folders(folder / "cats/in"), "has no folders in it; it needs one for each class"),
        (lambda folder: class_folders(folder / "none"), "No such file or directory"),
        (lambda folder: ((folder / "empty").mkdir(), class_folders(folder)), r"/empty: has no image \(.jpg,"),
        (lambda _: Conversion(form="tiff"), "--store: got 'tiff'; choose one of: raw, files, png, jpg"),
        (lambda _: Conversion((50_000, 50_000)), "--resize: an image may have 67,108,864 pixels, got 2,500,000,000"),
        (lambda _: Conversion(SIZE, form="files"), "--store files: keeps the files as they are"),
    ],
)
def test_what_cannot_be_meant_is_refused(folder: Path, make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(folder)
