"""Which snapshot a run resumes from, and which folder takes a run."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError
from samovar.launcher.plan import _require_not_ended, find_snapshot


def test_auto_takes_the_latest_snapshot_if_there_is_one(tmp_path: Path) -> None:
    assert find_snapshot("net", "auto", tmp_path) == (None, ())
    store = SnapshotStore(tmp_path / "snapshots")
    newest = [store.save(step, {"model": {"weights": np.ones(step)}}) for step in (1, 2)][-1]
    assert find_snapshot("net", "auto", tmp_path) == (newest, ())


def test_auto_never_begins_anew_beside_a_damaged_snapshot(tmp_path: Path) -> None:
    saved = SnapshotStore(tmp_path / "snapshots").save(1, {"model": {"weights": np.ones(3)}})
    (saved / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="holds no snapshot that is whole"):
        find_snapshot("net", "auto", tmp_path)


def test_auto_needs_the_run_folder() -> None:
    with pytest.raises(InputError, match="--snapshot auto: looks for snapshots in the folder of the run; give --out"):
        find_snapshot("net", "auto", None)


def test_latest_is_of_this_net_and_of_none_whose_name_contains_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = ("1400-lenet-sync", "1401-lenet-async-easgd-2", "1402-lenet-big-sync", "1403-my-lenet-sync")
    stores = [SnapshotStore(Path("runs", f"20261126-{name}", "snapshots")) for name in folders]
    saved = [store.save(1, {"model": {"weights": np.ones(1)}}) for store in stores]
    for store in stores:
        (store.folder.parent / "config.json").touch()
    assert find_snapshot("LeNet", "latest", None) == (saved[1], ())
    assert find_snapshot("LeNet big", "latest", None) == (saved[2], ())
    assert find_snapshot("LeNet", str(saved[0].parent / "latest"), None) == (saved[0], ())


def test_latest_takes_no_earlier_run_if_the_last_one_saved_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither run has the settings of the other. A run that goes on in its folder is the last one again."""
    monkeypatch.chdir(tmp_path)
    earlier, last = (Path("runs", f"20261126-{name}") for name in ("1401-lenet-sync-2", "1401-lenet-sync-10"))
    saved = SnapshotStore(earlier / "snapshots").save(1, {"model": {"weights": np.ones(1)}})
    last.mkdir()
    for began_s, folder in enumerate((earlier, last)):
        (folder / "config.json").touch()
        os.utime(folder / "config.json", (began_s, began_s))
    with pytest.raises(InputError, match=f"last run, {last}, saved none; begin .* with --out {earlier}$"):
        find_snapshot("LeNet", "latest", None)
    os.utime(earlier / "config.json", (2, 2))
    assert find_snapshot("LeNet", "latest", None) == (saved, ())


def test_a_run_that_was_killed_is_not_mixed_with_another(tmp_path: Path) -> None:
    own, other = (
        SnapshotStore(tmp_path / name / "snapshots").save(9, {"model": {"weights": np.ones(3)}}) for name in "ab"
    )
    _require_not_ended(tmp_path / "a", own)
    for snapshot in (None, other):
        with pytest.raises(InputError, match="has a run that did not end; give another folder"):
            _require_not_ended(tmp_path / "a", snapshot)


def test_a_run_that_was_killed_before_it_saved_begins_again(tmp_path: Path) -> None:
    start, other = (tmp_path / name / "snapshots" / "step_00000009" for name in "ab")
    (folder := tmp_path / "out").mkdir()
    (folder / "metrics.jsonl").touch()
    (folder / "config.json").write_text(json.dumps({"snapshot": str(start)}))
    _require_not_ended(folder, start)
    with pytest.raises(InputError, match=r"has a run that did not end; give another folder$"):
        _require_not_ended(folder, other)


def test_the_figures_of_a_loop_are_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InputError, match=r"has the figures of a loop \(metrics.jsonl\); give another folder$"):
        _require_not_ended(tmp_path, None)
