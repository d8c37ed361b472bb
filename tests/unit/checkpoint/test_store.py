"""Saving, loading, replacing, pruning and cleaning of snapshots."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from samovar.checkpoint.reading import read_snapshot
from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError
from samovar.core.stateful import State

from .saver import read_newest

DEAD_PROCESS = 2**22 + 1  # no process has this number


def state(step: int) -> State:
    return {"weights": np.arange(50, dtype=np.float32) * step, "step": step}


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "run" / "snapshots")


def names(store: SnapshotStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def damage(folder: Path, name: str = "model.safetensors") -> None:
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)


ARRAYS = {
    "float32": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "float64": np.array([np.nan, np.inf, -0.0]),
    "float16": np.array([1.5, -2], np.float16),
    "int64": np.array([-(2**63), 2**63 - 1]),
    "uint64": np.array([2**64 - 1], np.uint64),
    "uint8": np.arange(7, dtype=np.uint8),
    "bool": np.array([True, False, True]),
    "scalar": np.array(7, np.int32),
    "empty": np.zeros((0, 3), np.float32),
    "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-3],
    "channels_last": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    "big_endian": np.arange(5, dtype=">f4"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_with_its_dtype_shape_and_bits(store: SnapshotStore, name: str) -> None:
    store.save(1, {"model": {"value": ARRAYS[name]}})
    loaded = read_newest(store).parts["model"]["value"]
    assert isinstance(loaded, np.ndarray)
    assert loaded.dtype.name == ARRAYS[name].dtype.name
    np.testing.assert_array_equal(loaded, ARRAYS[name], strict=name != "big_endian")
    assert loaded.flags.writeable


def test_numbers_and_strings_come_back_in_order_with_their_types(store: SnapshotStore) -> None:
    values: State = {
        "z": 1,
        "rate": 0.1,
        "whole": 2.0,
        "negative_zero": -0.0,
        "generator": 2**128 + 1,
        "policy": "inv \ud800 ü\n",
        "flag": True,
        "infinite": -np.inf,
        "numpy": np.float64(0.25),
    }
    store.save(5, {"solver": values, "empty": {}})
    loaded = read_newest(store).parts
    assert list(loaded["solver"].items()) == list(values.items())
    assert [type(value) for value in loaded["solver"].values()][:4] == [int, float, float, float]
    assert str(loaded["solver"]["negative_zero"]) == "-0.0"
    assert loaded["empty"] == {}


def test_nan_comes_back(store: SnapshotStore) -> None:
    store.save(5, {"solver": {"loss": float("nan")}})
    assert np.isnan(read_newest(store).parts["solver"]["loss"])


def test_extra_files_and_config_come_back(store: SnapshotStore) -> None:
    config = {"strategy": "sync", "workers": 2, "rates": [0.1, 0.2]}
    folder = store.save(600, {}, {"lenet_iter_600.caffemodel": b"weights", "empty": b""}, config)
    snapshot = read_snapshot(folder)
    assert (snapshot.step, snapshot.config, snapshot.path) == (600, config, folder)
    assert snapshot.files == ("lenet_iter_600.caffemodel", "empty")
    assert (folder / "lenet_iter_600.caffemodel").read_bytes() == b"weights"


def test_parts_are_safetensors_files(store: SnapshotStore) -> None:
    folder = store.save(1, {"model": dict(ARRAYS)})
    for name, array in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_latest_is_the_last_saved_also_after_resuming_from_an_earlier_step(store: SnapshotStore) -> None:
    for step in (400, 600, 800, 500):
        store.save(step, {"model": state(step)})
    assert read_newest(store).step == 500
    assert (store.folder / "latest").read_text() == "step_00000500\n"


def test_latest_falls_back_and_says_what_was_wrong(store: SnapshotStore) -> None:
    folders = [store.save(step, {"model": state(step)}) for step in (1, 2, 3, 4)]
    damage(folders[3])
    (folders[2] / "manifest.json").unlink()
    snapshot = read_newest(store)
    assert snapshot.step == 2
    np.testing.assert_array_equal(snapshot.parts["model"]["weights"], state(2)["weights"])
    faults = store.latest()[1]
    skipped = "\n".join(faults)
    assert len(faults) == 2
    assert all(fault.endswith("; step_00000002 is taken") for fault in faults)
    assert "step_00000004/model.safetensors is damaged: its sha256 is" in skipped
    assert "step_00000003 is not a complete snapshot: manifest.json is missing" in skipped


def test_nothing_to_load(store: SnapshotStore) -> None:
    with pytest.raises(InputError, match="holds no snapshot; train with snapshots first"):
        read_newest(store)
    damage(store.save(1, {"model": state(1)}))
    with pytest.raises(
        InputError,
        match=r"no snapshot that is whole: .*step_00000001/model.safetensors .*\.\.\.; give another --out, and a "
        r"snapshot of another run or none$",
    ):
        read_newest(store)


def test_a_damaged_snapshot_given_by_path_is_refused(store: SnapshotStore) -> None:
    store.save(1, {"model": state(1)})
    folder = store.save(2, {"model": state(2)}, {"net.caffemodel": b"12345"})
    (folder / "net.caffemodel").write_bytes(b"1234")
    with pytest.raises(InputError, match=r"net.caffemodel is damaged: 4 bytes, the manifest says 5"):
        read_snapshot(folder)
    (folder / "net.caffemodel").unlink()
    with pytest.raises(InputError, match=r"net.caffemodel cannot be read: it is missing"):
        read_snapshot(folder)


@pytest.mark.parametrize("wrong", ["nothing", "file"])
def test_a_path_that_is_no_snapshot(store: SnapshotStore, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(InputError, match=f"{wrong} is not a folder; give one such as"):
        read_snapshot(tmp_path / wrong)


def test_saving_a_step_again_replaces_it(store: SnapshotStore) -> None:
    store.save(1, {"model": state(1)}, {"old": b"old"})
    folder = store.save(1, {"model": state(9)})
    assert names(store) == ["latest", "step_00000001"]
    assert not (folder / "old").exists()
    np.testing.assert_array_equal(read_newest(store).parts["model"]["weights"], state(9)["weights"])


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("mine")
    with pytest.raises(InputError, match=r"step 3 not saved .*File exists .*there is no earlier snapshot"):
        SnapshotStore(tmp_path / "snapshots").save(3, {})


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "model.safetensors", "manifest.json"])
def test_names_that_cannot_stand_side_by_side_are_our_bug(store: SnapshotStore, name: str) -> None:
    with pytest.raises(AssertionError):
        store.save(1, {"model": {}}, {name: b""})
    assert not store.folder.exists()


def test_a_state_that_cannot_be_kept_is_our_bug_and_leaves_nothing(store: SnapshotStore) -> None:
    with pytest.raises(AssertionError, match="state 'x': tuple cannot be saved"):
        store.save(1, {"model": {"x": (1, 2)}})  # type: ignore[dict-item]
    assert names(store) == []


def test_clean_removes_what_dead_processes_and_this_one_left(store: SnapshotStore) -> None:
    store.save(1, {"model": state(1)})
    for process_id in (DEAD_PROCESS, os.getpid()):
        (store.folder / f".tmp-step_00000002-{process_id}").mkdir()
        (store.folder / f".tmp-step_00000002-{process_id}" / "model.safetensors").write_bytes(b"half")
        (store.folder / f".tmp-latest-{process_id}").write_bytes(b"ste")
    (store.folder / ".tmp-step_00000002-1").mkdir()  # process 1 lives
    assert store.latest()[1] == ()
    assert len(store.clean()) == 4
    assert names(store) == [".tmp-step_00000002-1", "latest", "step_00000001"]


def test_a_snapshot_moved_aside_by_a_killed_save_is_found_and_gets_its_name_back(
    store: SnapshotStore,
) -> None:
    folder = store.save(1, {"model": state(1)})
    folder.rename(store.folder / f".old-step_00000001-{DEAD_PROCESS}")
    assert read_newest(store).step == 1
    assert store.clean() == ()
    assert names(store) == ["latest", "step_00000001"]
    assert read_snapshot(folder).step == 1
