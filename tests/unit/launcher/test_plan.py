"""Which snapshot a run resumes from."""

from pathlib import Path

import numpy as np
import pytest

from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError
from samovar.launcher.plan import find_snapshot


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
