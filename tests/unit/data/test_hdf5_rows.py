"""Rows of HDF5 files by a list: as one long table, in any order, and what is refused."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from samovar.core.errors import InputError
from samovar.data import reader as readers
from samovar.data.config import Hdf5DataConfig
from samovar.data.order import permutation
from samovar.data.reader import BatchReader

ROWS = np.arange(9 * 6, dtype=np.float64).reshape(9, 2, 3) / 7
LABELS = np.arange(9)


@pytest.fixture
def config(tmp_path: Path) -> Hdf5DataConfig:
    """Nine rows in files of 4, 0 and 5: doubles packed in chunks, and whole numbers."""
    for name, part in (("a.h5", slice(0, 4)), ("b.h5", slice(4, 4)), ("c.h5", slice(4, 9))):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("data", data=ROWS[part], compression="gzip" if name == "a.h5" else None)
            file["label"] = LABELS[part]
    (tmp_path / "list.txt").write_text("a.h5\nb.h5 c.h5\n\n")
    return Hdf5DataConfig(tmp_path / "list.txt", 4, ("data", "label"))


def test_rows_come_file_by_file_and_from_the_first_again(config: Hdf5DataConfig) -> None:
    with BatchReader([config], False) as reader:
        assert (len(reader), reader.top_shapes) == (9, {"data": (4, 2, 3), "label": (4,)})
        found = reader.read(2, 20)
    rows = np.arange(2, 22) % 9
    assert found["data"].dtype == torch.float32
    np.testing.assert_array_equal(found["data"].numpy(), ROWS[rows].astype(np.float32))
    assert found["label"].tolist() == LABELS[rows].tolist()


@pytest.mark.parametrize("by_layer", [False, True])
def test_shuffled_rows_are_a_permutation_of_all_files(config: Hdf5DataConfig, by_layer: bool) -> None:
    layer = Hdf5DataConfig(config.source, 4, config.tops, shuffled=by_layer)
    with BatchReader([layer], True, seed=6, shuffled=not by_layer) as reader:
        found = reader.read(9, 9)
        later = reader.read(13, 3)
    order = permutation(9, 6, 1)
    np.testing.assert_array_equal(found["label"].numpy(), order)
    np.testing.assert_array_equal(found["data"].numpy(), ROWS[order].astype(np.float32))
    assert later["label"].tolist() == order[4:7].tolist()


def test_few_files_are_open_at_a_time(config: Hdf5DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_OPEN_FILES", 1)
    with BatchReader([config], False) as reader:
        assert [reader.read(n, 1)["label"].item() for n in (0, 8, 1, 5)] == [0, 8, 1, 5]


def test_two_layers_stay_in_step_when_shuffled(config: Hdf5DataConfig) -> None:
    (config.source.parent / "labels.txt").write_text("a.h5\nc.h5\n")
    other = Hdf5DataConfig(config.source.parent / "labels.txt", 4, ("label",))
    with BatchReader([Hdf5DataConfig(config.source, 4, ("data",)), other], True, seed=2, shuffled=True) as reader:
        batch = reader.read(0, 9)
    np.testing.assert_array_equal(batch["data"].numpy(), ROWS[batch["label"].long().numpy()].astype(np.float32))


def remake(config: Hdf5DataConfig, **arrays: object) -> None:
    with h5py.File(config.source.parent / "c.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": ROWS}, r"c.h5: has no dataset 'label', which the layer's top asks for; it has data"),
        ({"data": ROWS, "label": LABELS[:3]}, "differ in their number of rows: data has 9, label has 3"),
        ({"data": ROWS[..., 0], "label": LABELS}, r"rows of 'data' have shape \(2,\), in .*a.h5 \(2, 3\)"),
        ({"data": ROWS, "label": "three"}, "must be numbers with rows"),
        ({"data": ROWS, "label": 3.0}, "must be numbers with rows"),
        ({"data": ROWS, "label": h5py.SoftLink("/data")}, "'label' is a link to elsewhere"),
        ({"data": ROWS, "label": h5py.ExternalLink("a.h5", "label")}, "'label' is a link to elsewhere"),
        ({"label": LABELS, "data/inner": ROWS}, "has no dataset 'data'"),
    ],
)
def test_files_that_do_not_fit(config: Hdf5DataConfig, arrays: dict[str, object], message: str) -> None:
    remake(config, **arrays)
    with pytest.raises(InputError, match=message):
        BatchReader([config], False)


def test_arrays_that_declare_more_than_they_hold(config: Hdf5DataConfig, tmp_path: Path) -> None:
    for shape, chunks, message in (
        ((9, 2, 3), None, "is 216 bytes, but holds 0; the file is damaged"),
        ((9, 1 << 40), (1, 4), "rows of shape"),
        ((9, 1 << 26), (1, 1 << 26), "chunks of 268,435,456 bytes|but holds 0"),
    ):
        with h5py.File(tmp_path / "c.h5", "w") as file:
            file.create_dataset("data", shape, np.float32, chunks=chunks)
            file["label"] = LABELS
        with pytest.raises(InputError, match=message):
            BatchReader([config], False)


def test_arrays_of_other_files_are_refused(config: Hdf5DataConfig, tmp_path: Path) -> None:
    np.arange(54, dtype=np.float64).tofile(tmp_path / "secret")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("data", (9, 2, 3), np.float64, external=[(str(tmp_path / "secret"), 0, 432)])
        file["label"] = LABELS
    with pytest.raises(InputError, match="dataset 'data' is in another file"):
        BatchReader([config], False)


def test_lists_that_cannot_be_used(config: Hdf5DataConfig, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = tmp_path / "in/list.txt"
    (tmp_path / "in/link.h5").symlink_to(tmp_path / "a.h5")
    (tmp_path / "in/text.h5").write_text("no HDF5")
    (tmp_path / "in/short.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:1000])
    for text, message in (
        ("\n", "lists no HDF5 file"),
        ("none.h5", r"'none.h5' not found in"),
        ("../a.h5", r"'../a.h5' leads to .*a.h5, outside of .*in; put the list into the folder of its files"),
        ("link.h5", "outside of"),
        ("text.h5", "text.h5: is not a sound HDF5 file"),
        ("short.h5", "short.h5: is not a sound HDF5 file"),
        (".", "is not a regular file"),
    ):
        source.write_text(text)
        with pytest.raises(InputError, match=message):
            BatchReader([Hdf5DataConfig(source, 4, config.tops)], False)
    with pytest.raises(InputError, match=r"a\.h5: is an HDF5 file; give a text file with the path of one a line"):
        BatchReader([Hdf5DataConfig(tmp_path / "a.h5", 4, config.tops)], False)


def test_a_file_cut_while_it_is_read(config: Hdf5DataConfig) -> None:
    path = config.source.parent / "long.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.ones((1000, 1000))
    config.source.write_text("long.h5")
    with BatchReader([Hdf5DataConfig(config.source, 4, ("data",))], False) as reader:
        os.truncate(path, 1 << 20)
        with pytest.raises(InputError, match=r"long\.h5: was cut short while it was read"):
            reader.read(996, 4)
