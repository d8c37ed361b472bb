"""Records as arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from samovar.core.errors import InputError
from samovar.data.datasets import ImageRecords, LmdbDataset
from samovar.formats.caffe.datum import encode_datum
from samovar.formats.caffe.schema import message_class
from samovar.formats.lmdb_file import write_lmdb

GREY = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)


def float_record(values: list[float], label: int) -> bytes:
    record: bytes = message_class("Datum")(
        channels=1, height=2, width=3, float_data=values, label=label
    ).SerializeToString()
    return record


def written(folder: Path, *values: bytes) -> Path:
    write_lmdb(folder / "some_lmdb", [(b"%03d" % i, value) for i, value in enumerate(values)])
    return folder / "some_lmdb"


def test_reads_images_and_labels_in_the_order_asked_for(tmp_path: Path) -> None:
    images = [GREY + 10 * i for i in range(5)]
    source = written(tmp_path, *(encode_datum(image, 7 - i) for i, image in enumerate(images)))
    with LmdbDataset(source) as dataset:
        assert dataset.sample_shape == (1, 2, 3)
        assert len(dataset) == 5
        found, labels = dataset.read(np.array([4, 0, 0]))
        nothing, no_labels = dataset.read(np.empty(0, np.int64))
    np.testing.assert_array_equal(found, [images[4], images[0], images[0]])
    np.testing.assert_array_equal(labels, [3, 7, 7])
    assert found.dtype == np.uint8
    assert labels.dtype == np.int64
    assert (nothing.shape, no_labels.shape) == ((0, 1, 2, 3), (0,))


def test_reads_floats_and_a_mixture(tmp_path: Path) -> None:
    values = [0.5, -1.0, 2.0, 3.0, 4.0, 1e6]
    source = written(tmp_path, float_record(values, 3), encode_datum(GREY, 4))
    with LmdbDataset(source) as dataset:
        found, labels = dataset.read(np.arange(2))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [np.reshape(values, (1, 2, 3)), GREY])
    np.testing.assert_array_equal(labels, [3, 4])


def test_another_shape_is_named_by_its_key(tmp_path: Path) -> None:
    source = written(tmp_path, encode_datum(GREY, 0), encode_datum(GREY.reshape(1, 3, 2), 0))
    with (
        LmdbDataset(source) as dataset,
        pytest.raises(InputError, match=r"some_lmdb: record '001' has shape \(1, 3, 2\).*\(1, 2, 3\)"),
    ):
        dataset.read(np.arange(2))


def test_a_damaged_record_is_named_by_its_key(tmp_path: Path) -> None:
    source = written(tmp_path, encode_datum(GREY, 0), encode_datum(GREY, 0)[:-4])
    with (
        LmdbDataset(source) as dataset,
        pytest.raises(InputError, match=r"some_lmdb: record '001': "),
    ):
        dataset.read(np.arange(2))


def test_a_first_record_that_is_no_datum(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"some_lmdb: record '000': "):
        LmdbDataset(written(tmp_path, b"\xff\xff\xff"))


def test_a_database_without_records(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"some_lmdb: holds no records"):
        LmdbDataset(written(tmp_path))


class OfManySizes:
    """The first image is small."""

    share = None

    def __len__(self) -> int:
        return 1000

    def read_each(self, indices: npt.NDArray[np.int64]) -> tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]:
        return [np.zeros((3, 40, 50) if index else (3, 4, 4), np.uint8) for index in indices], indices


def test_memory_for_images_of_many_sizes_is_not_that_of_the_first() -> None:
    dataset: Any = OfManySizes()
    assert ImageRecords(dataset, True).record_bytes == pytest.approx(6000, rel=0.05)
