"""A disk that refuses costs the one snapshot being saved; the last good one and the message stay right."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError

from .saver import read_newest
from .test_kill import output, saver

PAGE_BYTES = 4096
NUM_PAGES = 64


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    size = f"size={NUM_PAGES * PAGE_BYTES}"
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs: {mount.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def weights(size_bytes: int) -> dict[str, Any]:
    return {"model": {"weights": np.ones(size_bytes, np.uint8)}}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_full_disk_is_one_sentence_with_the_figures(small_disk: Path) -> None:
    store = SnapshotStore(small_disk / "snapshots")
    store.save(500, weights(1000))
    with pytest.raises(InputError) as caught:
        store.save(600, weights(1_000_000))
    message = str(caught.value)
    assert re.fullmatch(
        rf"snapshot of step 600 not saved in {store.folder}: No space left on device "
        r"\(1,000,000 bytes needed, 2\d\d,\d{3} free\); the last good snapshot, step 500, is intact\. "
        r"Make room there, or give another folder with --out",
        message,
    )
    assert hidden(store.folder) == []
    assert read_newest(store).step == 500
    store.save(700, weights(2000))
    assert read_newest(store).step == 700


@pytest.mark.parametrize("again", [False, True])
def test_wherever_the_disk_gets_full_the_last_good_snapshot_loads(small_disk: Path, again: bool) -> None:
    """From no page free to enough, saving the next step or the same one again."""
    store = SnapshotStore(small_disk / "snapshots")
    store.save(0, weights(10))
    filler = small_disk / "filler"
    outcomes = []
    for free_pages in range(20):
        filler.unlink(missing_ok=True)
        for folder in store.folder.glob("step_*"):
            if folder != read_newest(store).path:
                shutil.rmtree(folder)
        room = shutil.disk_usage(small_disk).free - free_pages * PAGE_BYTES
        filler.write_bytes(bytes(room))
        last = read_newest(store).step
        outcomes.append(saved(store, last if again else last + 1))
        assert read_newest(store).step == (last if again else last + outcomes[-1])
        assert store.latest()[1] == ()
        assert hidden(store.folder) == []
    assert not outcomes[0]
    assert outcomes[-1]


def saved(store: SnapshotStore, step: int) -> bool:
    try:
        store.save(step, weights(5 * PAGE_BYTES))
    except InputError as error:
        refusal = str(error)
    else:
        return True
    assert "No space left on device" in refusal
    assert "is intact" in refusal
    return False


def test_a_file_size_limit_is_reported_like_a_full_disk(tmp_path: Path) -> None:
    SnapshotStore(tmp_path).save(1, weights(10))
    message = output(saver("limited", tmp_path, 100_000))
    assert "step 2 not saved" in message
    assert "File too large" in message
    assert "step 1, is intact" in message
    assert hidden(tmp_path) == []
    assert output(saver("limited", tmp_path, 50_000)) == ""
    assert read_newest(SnapshotStore(tmp_path)).step == 2


def strace(*options: str) -> tuple[str, ...]:
    """The strace command, where the machine has it and lets it trace."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, to make system calls fail or to list them")
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("strace may not trace here")
    return ("strace", "-f", *options)


FAULTS = [("fsync", "EIO", n) for n in range(1, 7)] + [
    ("mkdir", "EACCES", 2),  # the first one finds the store's folder
    ("mkdir", "EDQUOT", 2),
    ("rename", "EIO", 1),
    ("rename", "EIO", 2),
    ("rename", "EIO", 4),  # the third one is of what was replaced, and may fail
]


@pytest.mark.parametrize(("call", "fault", "when"), FAULTS)
def test_a_system_call_that_fails_loses_no_good_snapshot(tmp_path: Path, call: str, fault: str, when: int) -> None:
    """Step 2 is there and is saved again; the `when`-th `call` of that save fails."""
    store = SnapshotStore(tmp_path / "snapshots")
    store.save(1, weights(10))
    store.save(2, weights(20))
    inject = f"inject={call}:error={fault}:when={when}"
    message = output(saver("once", store.folder, 30, prefix=strace("-o", "/dev/null", "-e", inject)))
    assert "snapshot of step 2 not saved" in message
    assert "the last good snapshot, step 2, is intact" in message
    assert not [name for name in hidden(store.folder) if name.startswith(".tmp")]
    assert read_newest(store).step == 2
    assert store.latest()[1] == ()
    store.clean()
    assert hidden(store.folder) == []
    assert read_newest(store).step == 2


def test_every_file_is_on_the_disk_before_the_rename_and_the_rename_before_the_return(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    options = strace("-y", "-o", str(trace), "-e", "trace=write,fsync,rename,renameat,renameat2")
    assert output(saver("once", tmp_path / "snapshots", 30, prefix=options)) == ""
    calls = [line for line in trace.read_text().splitlines() if f"{tmp_path}/snapshots" in line]
    events = [(re.search(r"(\w+)\(", line)[1], re.findall(r"[<\"](/[^>\"]+)[>\"]", line)) for line in calls]
    publish = next(i for i, (call, _) in enumerate(events) if call.startswith("rename"))
    folder, place = events[publish][1]
    assert Path(place).name == "step_00000002"
    written = [path for call, (path, *_) in events[:publish] if call == "write"]
    synced = [path for call, (path, *_) in events[:publish] if call == "fsync"]
    files = {str(Path(folder) / name) for name in ("model.safetensors", "manifest.json")}
    assert files <= set(written)
    assert {*files, folder} <= set(synced)
    assert synced.index(f"{folder}/model.safetensors") < written.index(f"{folder}/manifest.json") + 1
    assert synced.index(f"{folder}/manifest.json") < synced.index(folder)
    assert events[publish + 1] == ("fsync", [str(Path(place).parent)])
    assert events[-1] == ("fsync", [str(Path(place).parent)])
