"""scikit-learn's digits as databases."""

import sys
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.data.datasets import LmdbDataset
from samovar.data.digits import enlarge, split, write_digits
from samovar.formats.lmdb_file import LmdbFile

NAMES = ("digits_train_lmdb", "digits_test_lmdb")


def bilinear(small: np.ndarray, row: float, column: float) -> float:
    """The value between the four nearest pixels, edges repeated."""
    top, left = int(np.floor(row)), int(np.floor(column))
    total = 0.0
    for r, c in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        weight = (1 - abs(row - r)) * (1 - abs(column - c))
        total += weight * small[min(max(r, 0), 7), min(max(c, 0), 7)]
    return total


def test_enlarging_is_bilinear_and_centred() -> None:
    small = np.random.default_rng(0).integers(0, 17, (3, 8, 8))
    large = enlarge(small)
    assert large.shape == (3, 28, 28)
    assert large.dtype == np.uint8
    for n, h, w in np.ndindex(3, 24, 24):
        exact = 255 / 16 * bilinear(small[n], (h - 1) / 3, (w - 1) / 3)
        assert abs(large[n, h + 2, w + 2] - exact) <= 0.5 + 1e-9
    large[:, 2:26, 2:26] = 0
    assert not large.any()


def test_enlarging_uses_the_whole_range() -> None:
    assert set(np.unique(enlarge(np.full((1, 8, 8), 16)))) == {0, 255}


def test_split_is_stratified_and_complete() -> None:
    labels = np.repeat(np.arange(10), 170 + 2 * np.arange(10))
    train, test = split(labels)
    assert len(test) == 360
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    share = np.bincount(labels) * 360 / len(labels)
    assert np.all(abs(np.bincount(labels[test]) - share) < 1)


def test_writes_all_1797_digits_the_same_at_every_run(tmp_path: Path) -> None:
    written = write_digits(tmp_path / "one")
    assert [(database.folder.name, database.num_records) for database in written] == [
        ("digits_train_lmdb", 1437),
        ("digits_test_lmdb", 360),
    ]
    write_digits(tmp_path / "two")
    for name in NAMES:
        with LmdbFile(tmp_path / "one" / name) as one, LmdbFile(tmp_path / "two" / name) as two:
            indices = np.arange(len(one))
            assert one.values(indices) == two.values(indices)
            assert [one.key(i) for i in range(3)] == [b"00000000", b"00000001", b"00000002"]
    assert [database.already_there for database in write_digits(tmp_path / "one")] == [True, True]


def test_labels_are_mixed_and_true(tmp_path: Path) -> None:
    write_digits(tmp_path)
    datasets = [LmdbDataset(tmp_path / name) for name in NAMES]
    (train, train_labels), (test, test_labels) = (dataset.read(np.arange(len(dataset))) for dataset in datasets)
    for dataset in datasets:
        dataset.close()
    assert len(np.unique(train_labels[:100])) == 10
    means = np.array([train[train_labels == digit].mean(axis=0).ravel() for digit in range(10)])
    distances = np.linalg.norm(test.reshape(360, 1, -1) - means, axis=2)
    assert np.mean(distances.argmin(axis=1) == test_labels) > 0.85  # by the nearest mean image


def test_without_scikit_learn_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r"pip install 'samovar\[digits\]'"):
        write_digits(tmp_path)
