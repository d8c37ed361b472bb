"""Conversion of CIFAR-10, on small batches of the same form with checksums of their own, and on the published ones."""

import errno
import hashlib
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.data.databases import WrittenDatabase
from samovar.data.datasets import LmdbDataset
from samovar.data.published import BATCHES, PublishedFile, WrittenMean, write_cifar10
from samovar.formats.caffe.blob import mean_image, read_mean, write_mean
from samovar.formats.lmdb_file import LmdbFile

GENERATOR = np.random.default_rng(0)
RECORDS = [GENERATOR.integers(0, 256, (count, 3073), np.uint8) for count in (4, 5, 3)]
for records in RECORDS:
    records[:, 0] %= 10
CONTENTS = {f"data_batch_{number}.bin": records.tobytes() for number, records in enumerate(RECORDS, start=1)}
SMALL = tuple(
    PublishedFile(name, len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())
    for name, content in CONTENTS.items()
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name, content in CONTENTS.items():
        (tmp_path / "in" / f"{name}.xz").write_bytes(lzma.compress(content))
    return tmp_path / "in"


def test_the_last_batch_is_held_out_and_the_mean_is_of_the_others(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    databases, mean = write_cifar10(source, out, SMALL)

    assert databases == [
        WrittenDatabase(out / "cifar10_train_lmdb", 9, False),
        WrittenDatabase(out / "cifar10_test_lmdb", 3, False),
    ]
    assert mean == WrittenMean(out / "mean.binaryproto", False)
    for name, records in (("train", np.concatenate(RECORDS[:2])), ("test", RECORDS[2])):
        with LmdbDataset(out / f"cifar10_{name}_lmdb") as dataset, LmdbFile(out / f"cifar10_{name}_lmdb") as file:
            images, labels = dataset.read(np.arange(len(dataset)))
            assert file.key(2) == b"00002"
        np.testing.assert_array_equal(images.reshape(-1, 3072), records[:, 1:])
        np.testing.assert_array_equal(labels, records[:, 0])
    wanted = np.concatenate(RECORDS[:2])[:, 1:].mean(axis=0).reshape(3, 32, 32).astype(np.float32)
    np.testing.assert_array_equal(read_mean(out / "mean.binaryproto"), wanted)


def test_a_second_run_finds_it_there(source: Path, tmp_path: Path) -> None:
    write_cifar10(source, tmp_path / "out", SMALL)
    databases, mean = write_cifar10(source, tmp_path / "out", SMALL)
    assert all(database.already_there for database in databases)
    assert mean.already_there


def test_a_damaged_or_missing_batch_writes_nothing(source: Path, tmp_path: Path) -> None:
    (source / "data_batch_2.bin").write_bytes(CONTENTS["data_batch_2.bin"][:-1] + b"\0")
    with pytest.raises(InputError, match=r"data_batch_2\.bin: its content has MD5"):
        write_cifar10(source, tmp_path / "out", SMALL)
    (source / "data_batch_3.bin.xz").unlink()
    with pytest.raises(InputError, match=r"data_batch_3\.bin \(or \.gz or \.xz of the same name\) not found"):
        write_cifar10(source, tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()


def test_another_mean_is_found_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    write_mean(tmp_path / "out/mean.binaryproto", np.zeros((3, 32, 32), np.float32))
    with pytest.raises(InputError, match=r"mean\.binaryproto: exists with other content"):
        write_cifar10(source, tmp_path / "out", SMALL)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mean.binaryproto"]


def test_what_a_killed_process_of_the_same_number_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f".mean.binaryproto.{os.getpid()}.partial").write_bytes(b"half")
    assert write_mean(tmp_path / "mean.binaryproto", np.ones((1, 2, 2), np.float32))
    assert [path.name for path in tmp_path.iterdir()] == ["mean.binaryproto"]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mean.binaryproto"

    def refuse(_source: Path, _target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def refuse_late(source: Path, target: Path) -> None:
        target.write_bytes(b"of another process")
        refuse(source, target)

    monkeypatch.setattr(os, "link", refuse)
    assert write_mean(path, np.ones((1, 2, 2), np.float32))
    assert read_mean(path).tolist() == [[[1, 1], [1, 1]]]
    path.unlink()
    monkeypatch.setattr(os, "link", refuse_late)
    with pytest.raises(InputError, match="cannot be written"):
        write_mean(path, np.ones((1, 2, 2), np.float32))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(path.name, b"of another process")]


def test_no_other_mean_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mean.binaryproto"
    image = mean_image(np.full((2, 1, 2, 2), 7, np.uint8))
    assert write_mean(path, image)
    assert not write_mean(path, image)
    with pytest.raises(InputError, match="exists with other content"):
        write_mean(path, image + 1)
    np.testing.assert_array_equal(read_mean(path), image)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mean.binaryproto"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_published_batches(data_folder: Path, tmp_path: Path) -> None:
    databases, _ = write_cifar10(data_folder / "cifar-10", tmp_path)
    assert [database.num_records for database in databases] == [40_000, 10_000]
    mean = read_mean(tmp_path / "mean.binaryproto")
    np.testing.assert_allclose(mean.mean(axis=(1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=2e-3)
    assert sum(file.size_bytes for file in BATCHES) == 50_000 * 3073


def test_a_mean_at_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written"):
        write_mean(tmp_path / "file" / "mean.binaryproto", np.zeros((3, 4, 4), np.float32))
