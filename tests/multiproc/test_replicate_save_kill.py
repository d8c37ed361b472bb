"""A kill at any moment leaves the checkpoint of one moment, whole."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from samovar.api.state import block_of
from samovar.checkpoint.one_file import CheckpointFile

PROGRAM = Path(__file__).with_name("replicate_save_program.py")
NUM_SLOW_TRIALS = 12


def killed(path: Path, world_size: int, rng: random.Random) -> int:
    """Run the program, and kill it at a random moment after its first file. The last step whose file was complete."""
    launcher = ("-m", "samovar.cli.entry", "run", "-n", str(world_size), "--oversubscribe")
    command = [sys.executable, *(launcher if world_size > 1 else ()), str(PROGRAM), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        told = [process.stdout.readline() for _ in range(rng.randrange(1, 12))]
        process.wait(timeout=rng.uniform(0.0, 0.03))
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read().splitlines(keepends=True)
        process.communicate()
    whole = [line for line in told if line.endswith("\n")]
    return int(whole[-1].split()[-1])


@pytest.mark.parametrize(
    ("world_size", "seed"),
    [(1, 0), *(pytest.param(2 - seed % 2, seed, marks=pytest.mark.slow) for seed in range(1, NUM_SLOW_TRIALS))],
)
def test_the_file_is_of_one_moment(tmp_path: Path, world_size: int, seed: int) -> None:
    path = tmp_path / "a.safetensors"
    last = killed(path, world_size, random.Random(seed))
    content, tensors = CheckpointFile.read(path), load_file(path)
    assert len(content.notes) == world_size
    for key, digest in (place for part in content.tensors for place in part.values()):
        content.require_intact(key, block_of(tensors[key]).digest(), digest)
    step = int(tensors["rank_0/replica/model/weight"][0])
    assert step in (last, last + 1)
    assert tensors["rank_0/replica/model/weight"].eq(step).all()
    assert all(["extra", step] in note["dict"] for note in content.notes)
