"""A save that is killed costs nothing but itself, wherever it is."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from samovar.checkpoint.store import SnapshotStore

from .saver import digest, read_newest

SAVER = Path(__file__).with_name("saver.py")
NUM_TRIALS, NUM_SLOW_TRIALS = 8, 20


def saver(*arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, str(SAVER), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def killed_after(process: subprocess.Popen[str], lines: int, delay_s: float) -> list[list[str]]:
    """Let it print `lines`, go on for `delay_s`, kill it; returns the whole lines it had told."""
    assert process.stdout is not None
    try:
        told = [process.stdout.readline() for _ in range(lines)]
        process.wait(timeout=delay_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        # Through the same buffer that the lines came from: communicate() would read past it.
        rest = process.stdout.read()
        process.communicate()
    assert process.returncode == -9
    return [line.split() for line in [*told, *rest.splitlines(keepends=True)] if line.endswith("\n")]


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed < NUM_TRIALS else [pytest.mark.slow]) for seed in range(NUM_SLOW_TRIALS)],
)
def test_after_a_kill_at_a_random_moment_the_newest_whole_snapshot_loads(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    told = killed_after(saver("loop", tmp_path), rng.randrange(2, 30), rng.uniform(0, 0.02))
    begun = [(int(step), sha256) for word, step, sha256 in told if word == "begin"]
    ended = [(int(step), sha256) for word, step, sha256 in told if word == "end"]
    store = SnapshotStore(tmp_path)
    snapshot = read_newest(store)
    assert (snapshot.step, digest(snapshot.parts)) in {ended[-1], begun[-1]}
    assert store.latest()[1] == ()
    store.clean()
    assert read_newest(store).step == snapshot.step
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_kill_at_any_line_of_saving_leaves_the_old_or_the_new_snapshot(tmp_path: Path, stride: int) -> None:
    kills = [int(line) for line in output(saver("lines", tmp_path, stride)).split()]
    assert len(kills) == 2
    assert min(kills) > 100 / stride
