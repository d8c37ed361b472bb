"""Parts of a snapshot that other processes wrote."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from samovar.checkpoint.reading import read_snapshot, verify
from samovar.checkpoint.store import SnapshotStore, StagedPart
from samovar.core.errors import InputError

OTHER = """
import os, sys
import numpy as np
from pathlib import Path
from samovar.checkpoint.store import SnapshotStore
SnapshotStore(Path(sys.argv[1])).stage(7, "rank_1", {"weights": np.arange(5.0), "step": 7, "rate": float("inf")})
print(os.getpid())
"""


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "snapshots")


def staged_elsewhere(store: SnapshotStore) -> StagedPart:
    done = subprocess.run([sys.executable, "-c", OTHER, store.folder], check=True, capture_output=True, text=True)
    return StagedPart(7, "rank_1", int(done.stdout))


def names(store: SnapshotStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_parts_of_several_processes_become_one_snapshot(store: SnapshotStore) -> None:
    staged = [store.stage(7, "rank_0", {"weights": np.ones(3, np.float32)}), staged_elsewhere(store)]
    path = store.save(7, {"model": {"step": 7}}, {"net.caffemodel": b"net"}, {"workers": 2}, staged)
    assert names(store) == ["latest", "step_00000007"]
    assert set(verify(path).files) == {
        "model.safetensors",
        "net.caffemodel",
        "rank_0.safetensors",
        "rank_1.safetensors",
    }
    snapshot = read_snapshot(path)
    assert snapshot.parts["rank_1"]["step"] == 7
    assert snapshot.parts["rank_1"]["rate"] == float("inf")
    np.testing.assert_array_equal(snapshot.parts["rank_1"]["weights"], np.arange(5.0))
    np.testing.assert_array_equal(snapshot.parts["rank_0"]["weights"], np.ones(3, np.float32))


def test_only_wanted_parts_are_read_and_verified(store: SnapshotStore) -> None:
    path = store.save(7, {"model": {"step": 7}}, staged=[staged_elsewhere(store)])
    (path / "rank_1.safetensors").write_bytes(b"damaged")
    assert list(read_snapshot(path, lambda part: part == "model").parts) == ["model"]
    for read in (read_snapshot, verify):
        with pytest.raises(InputError, match=r"rank_1\.safetensors is damaged"):
            read(path)


def test_a_part_that_is_gone_or_damaged_leaves_no_snapshot(store: SnapshotStore) -> None:
    staged = staged_elsewhere(store)
    manifest = store.folder / staged.folder_name / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    for _ in range(2):  # damaged, then gone
        with pytest.raises(InputError, match="rank_1"):
            store.save(7, {"model": {"step": 7}}, staged=[staged])
        assert names(store) == []


def test_what_nobody_took_in_is_cleaned_away_once_its_process_is_gone(store: SnapshotStore) -> None:
    store.save(6, {"model": {"step": 6}})
    staged = staged_elsewhere(store)
    assert staged.folder_name in names(store)
    assert store.latest()[0].name == "step_00000006"
    store.clean()
    assert names(store) == ["latest", "step_00000006"]


def test_a_part_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="snapshot of step 7 not saved in "):
        SnapshotStore(tmp_path / "file").stage(7, "rank_0", {"step": 7})


def test_a_part_staged_twice_is_the_last_one(store: SnapshotStore) -> None:
    staged = [store.stage(7, "rank_0", {"turn": turn}) for turn in range(2)][-1]
    assert read_snapshot(store.save(7, {"model": {"step": 7}}, staged=[staged])).parts["rank_0"] == {"turn": 1}
