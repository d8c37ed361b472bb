"""`samovar data split`: the shares together are the database, and what does not fit is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.data.databases import split_database
from samovar.data.datasets import LmdbDataset
from samovar.data.shares import SHARE_FILE, Share, read_share
from samovar.formats.lmdb_file import LmdbFile


def records_of(folder: Path) -> list[tuple[bytes, bytes]]:
    with LmdbFile(folder) as file:
        return list(file.records(np.arange(len(file))))


@pytest.mark.parametrize(("num_records", "num_shares"), [(1, 1), (2, 2), (7, 3), (150, 2), (200, 3), (641, 5)])
def test_shares_are_the_database(
    make_database: Callable[..., Path], tmp_path: Path, num_records: int, num_shares: int
) -> None:
    whole = make_database(num_records)
    written = split_database(whole, tmp_path / "shares", num_shares)
    assert [each.folder for each in written] == [
        tmp_path / "shares" / f"host{number}" / whole.name for number in range(num_shares)
    ]
    together = [record for each in written for record in records_of(each.folder)]
    assert sorted(together) == records_of(whole)
    sizes = [each.num_records for each in written]
    assert max(sizes) - min(sizes) <= 64
    with LmdbDataset(whole) as dataset:
        images, labels = dataset.read(np.arange(num_records))
    for each in written:
        with LmdbDataset(each.folder) as dataset:
            assert dataset.share is not None
            own = dataset.share.records()
            assert (len(dataset), len(own), dataset.share.num_own_records) == (num_records, *[each.num_records] * 2)
            found, found_labels = dataset.read(own)
            assert np.array_equal(found, images[own])
            assert np.array_equal(found_labels, labels[own])


def test_a_second_split_leaves_the_first_as_it_is(make_database: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_database(30)
    assert [each.already_there for each in split_database(whole, tmp_path / "shares", 2)] == [False, False]
    assert [each.already_there for each in split_database(whole, tmp_path / "shares", 2)] == [True, True]
    (tmp_path / "shares/host1" / whole.name / SHARE_FILE).write_text("{}")
    with pytest.raises(InputError, match=r"host1/images_lmdb: exists with another share\.json"):
        split_database(whole, tmp_path / "shares", 2)


def test_what_cannot_be_split(make_database: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_database(3)
    with pytest.raises(InputError, match="3 records cannot make 4 shares; give fewer hosts"):
        split_database(whole, tmp_path / "shares", 4)
    share = split_database(whole, tmp_path / "shares", 2)[0].folder
    with pytest.raises(InputError, match="is a share of a database already"):
        split_database(share, tmp_path / "again", 2)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "[" * 5000,
        '{"number": 0}',
        *(
            json.dumps({"number": 0, "num_shares": 2, "num_records": 30, "run_records": 15, "sha256": ""} | wrong)
            for wrong in (
                {"number": 2},
                {"number": -1},
                {"number": True},
                {"num_shares": 1 << 60},
                {"num_shares": "2"},
                {"num_records": 29 * 1000},
                {"num_records": -1},
                {"number": 1, "num_records": -1, "run_records": 16},  # which has 15 in its last run
                {"run_records": 0},
                {"run_records": 10**30},
                {"run_records": 1.5},
                {"more": 1},
            )
        ),
    ],
)
def test_a_damaged_file_is_refused(make_database: Callable[..., Path], tmp_path: Path, content: str) -> None:
    share = split_database(make_database(30), tmp_path / "shares", 2)[0].folder
    (share / SHARE_FILE).write_text(content)
    with pytest.raises(InputError, match=r"share\.json: .*samovar data split|at most 4096"):
        LmdbDataset(share)


def test_records_of_other_shares_are_refused(make_database: Callable[..., Path], tmp_path: Path) -> None:
    first, second = (each.folder for each in split_database(make_database(30), tmp_path / "shares", 2))
    with LmdbDataset(first) as dataset, pytest.raises(InputError, match="only share 0 of 2 of the records is here"):
        dataset.read(np.arange(16))
    shutil.copy(first / SHARE_FILE, second / SHARE_FILE)
    assert read_share(second, 15) == Share(0, 2, 30, 15, read_share(first, 15).sha256)
