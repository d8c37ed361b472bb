"""Run as a program: saves snapshots until it is killed, or under a fault that the test injects.

saver.py loop FOLDER            save steps 1, 2, 3, ... (each third twice), telling each on stdout
saver.py lines FOLDER STRIDE    fork a save for every STRIDE-th line of code, kill it there; print how many
saver.py once FOLDER BYTES      save step 2 with BYTES of weights; print the error, if any
saver.py limited FOLDER BYTES   the same, where no file may grow over 64 KiB
"""

import hashlib
import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from samovar.checkpoint.reading import Snapshot, read_snapshot
from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError
from samovar.core.stateful import State


def parts_of(step: int, version: int) -> dict[str, State]:
    weights = np.random.default_rng([step, version]).random(3000, np.float32)
    return {"model": {"weights": weights}, "solver": {"step": step, "version": version}}


def digest(parts: dict[str, State]) -> str:
    weights, solver = parts["model"]["weights"], parts["solver"]
    return hashlib.sha256(weights.tobytes() + repr(sorted(solver.items())).encode()).hexdigest()


def read_newest(store: SnapshotStore) -> Snapshot:
    return read_snapshot(store.latest()[0])


def loop(folder: Path) -> None:
    store = SnapshotStore(folder)
    moments = ((step, version) for step in range(1, 10**6) for version in range(1 + (step % 3 == 0)))
    for step, version in moments:
        parts = parts_of(step, version)
        print("begin", step, digest(parts), flush=True)
        store.save(step, parts, {"net.caffemodel": bytes(5000)})
        print("end", step, digest(parts), flush=True)


def lines(folder: Path, stride: int) -> None:
    """A save killed at line n, for n = 1, 1 + stride, ...: what loads after it is the old or the new one."""
    template = SnapshotStore(folder / "template")
    for step in (1, 2):
        template.save(step, parts_of(step, 0))
    for step in (3, 2):  # a new step; the newest step once more
        kills = 0
        while not survives(template, folder / "store", step, 1 + kills * stride):
            kills += 1
        print(kills, flush=True)


def survives(template: SnapshotStore, folder: Path, step: int, line: int) -> bool:
    """One save to a copy of the template, killed at `line`; True where the save has fewer lines."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template.folder, folder)
    store = SnapshotStore(folder)
    before, parts = read_newest(store), parts_of(step, 1)
    survived = save_until_line(store, step, parts, line)
    check(store, before, parts, survived)
    return survived


def save_until_line(store: SnapshotStore, step: int, parts: dict[str, State], line: int) -> bool:
    """Save in a forked process that kills itself at its `line`-th line; True if it did not get there."""
    process_id = os.fork()
    if process_id == 0:
        kill_at_line(line)
        store.save(step, parts)
        os._exit(0)
    status = os.waitpid(process_id, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0, status
    return status == 0


def kill_at_line(line: int) -> None:
    left = line

    def local(frame: FrameType, event: str, _: object):
        nonlocal left
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return local

    def glob(frame: FrameType, event: str, _: object):
        return local if Path(frame.f_code.co_filename).name in ("store.py", "files.py", "shutil.py") else None

    sys.settrace(glob)


def check(store: SnapshotStore, before: Snapshot, parts: dict[str, State], survived: bool) -> None:
    latest = read_newest(store)
    allowed = {digest(parts)} if survived else {digest(parts), digest(before.parts)}
    assert digest(latest.parts) in allowed, latest.path
    assert store.latest()[1] == ()
    store.clean()
    assert digest(read_newest(store).parts) == digest(latest.parts)
    hidden = [path.name for path in store.folder.iterdir() if path.name.startswith(".")]
    assert not hidden, hidden


def once(folder: Path, size_bytes: int) -> None:
    try:
        SnapshotStore(folder).save(2, {"model": {"weights": np.ones(size_bytes, np.uint8)}})
    except InputError as error:
        print(error)


def limited(folder: Path, size_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    once(folder, size_bytes)


if __name__ == "__main__":
    modes: dict[str, Any] = {"loop": loop, "lines": lines, "once": once, "limited": limited}
    modes[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))
