"""Conversion of MNIST, on small IDX files of the same form with checksums of their own."""

import gzip
import hashlib
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from samovar.core.errors import InputError
from samovar.data.databases import WrittenDatabase
from samovar.data.datasets import LmdbDataset
from samovar.data.published import FASHION_MNIST, MNIST, MnistSplit, PublishedFile, write_mnist
from samovar.formats.lmdb_file import LmdbFile

GENERATOR = np.random.default_rng(0)
IMAGES = {name: GENERATOR.integers(0, 256, (count, 28, 28), np.uint8) for name, count in (("a", 30), ("b", 7))}
LABELS = {name: GENERATOR.integers(0, 10, len(images), np.uint8) for name, images in IMAGES.items()}


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def published(name: str, content: bytes) -> PublishedFile:
    return PublishedFile(name, len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())


CONTENTS = {f"{name}-images": idx(IMAGES[name]) for name in "ab"}
CONTENTS |= {f"{name}-labels": idx(LABELS[name]) for name in "ab"}
SMALL = tuple(
    MnistSplit(
        f"{name}_lmdb",
        *(published(f"{name}-{kind}", CONTENTS[f"{name}-{kind}"]) for kind in ("images", "labels")),
    )
    for name in "ab"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name, content in CONTENTS.items():
        (tmp_path / "in" / name).write_bytes(content)
    return tmp_path / "in"


def pack(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


@pytest.mark.parametrize("packed", [False, True])
def test_writes_records_in_file_order(source: Path, tmp_path: Path, packed: bool) -> None:
    if packed:
        for path in list(source.iterdir()):
            pack(path)
    out = tmp_path / "new" / "out"
    assert write_mnist(source, out, SMALL) == [
        WrittenDatabase(out / "a_lmdb", 30, False),
        WrittenDatabase(out / "b_lmdb", 7, False),
    ]
    for name in "ab":
        with LmdbDataset(out / f"{name}_lmdb") as dataset, LmdbFile(out / f"{name}_lmdb") as file:
            images, labels = dataset.read(np.arange(len(dataset)))
            keys = [file.key(index) for index in range(len(file))]
        np.testing.assert_array_equal(images[:, 0], IMAGES[name])
        np.testing.assert_array_equal(labels, LABELS[name])
        assert keys == [b"%08d" % index for index in range(len(keys))]


def test_a_second_run_finds_it_there(source: Path, tmp_path: Path) -> None:
    write_mnist(source, tmp_path, SMALL)
    assert [written.already_there for written in write_mnist(source, tmp_path, SMALL)] == [True, True]


def test_every_missing_file_is_named(source: Path, tmp_path: Path) -> None:
    for name in ("a-labels", "b-images"):
        (source / name).unlink()
    with pytest.raises(InputError, match=r"a-labels, b-images .* not found"):
        write_mnist(source, tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()


def test_a_missing_folder_names_the_files_too(tmp_path: Path) -> None:
    names = ".*".join(file.name for split in MNIST for file in (split.images, split.labels))
    with pytest.raises(InputError, match=f"nowhere: No such file or directory.*{names}"):
        write_mnist(tmp_path / "nowhere", tmp_path)


def flip_a_bit(content: bytearray) -> None:
    content[-1] ^= 1


def cut(content: bytearray) -> None:
    del content[-1:]


@pytest.mark.parametrize("damage", [flip_a_bit, cut])
def test_a_wrong_checksum_is_refused_and_nothing_written(
    source: Path, tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    content = bytearray(CONTENTS["b-images"])
    damage(content)
    (source / "b-images").write_bytes(content)
    with pytest.raises(InputError, match=r"b-images: its content has MD5 .* the published file"):
        write_mnist(source, tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()


def test_a_pipe_in_place_of_a_file_is_refused(source: Path, tmp_path: Path) -> None:
    """To open it would wait for ever."""
    (source / "b-images").unlink()
    os.mkfifo(source / "b-images")
    with pytest.raises(InputError, match="b-images: is not a regular file"):
        write_mnist(source, tmp_path / "out", SMALL)


def test_images_and_labels_of_different_number_are_refused(source: Path, tmp_path: Path) -> None:
    mixed = replace(SMALL[0], labels=SMALL[1].labels)
    with pytest.raises(InputError, match="a-images holds 30 images, b-labels 7 labels"):
        write_mnist(source, tmp_path, (mixed,))


@pytest.mark.parametrize("data_set", [MNIST, FASHION_MNIST])
def test_the_published_sizes_are_those_of_60000_and_10000_images(data_set: tuple[MnistSplit, ...]) -> None:
    sizes = [(split.images.size_bytes, split.labels.size_bytes) for split in data_set]
    assert sizes == [(16 + prod((count, 28, 28)), 8 + count) for count in (60_000, 10_000)]
