"""LeNet on the digits while another program keeps one core busy: 1 thread, one a core, and the run's own choice.

Each is `samovar train` with one worker; they take turns, with the busy program and without it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from figures import Figure, compare
from ranks import FOLDER
from trained import trained

from samovar.data.digits import write_digits

SOLVER = FOLDER.parent / "examples" / "lenet" / "digits_solver.prototxt"
STEPS, PAIRS = 150, 5
SHARE = 0.9  # of the better one
SETTINGS: dict[str, tuple[object, ...]] = {
    "1 thread": ("--threads-per-worker", 1),
    "a thread a core": ("--threads-per-worker", os.cpu_count() or 1),
    "by itself": (),
}


def run(short: bool = False) -> list[Figure]:
    """The figures; the bar is for the run's own choice with the busy program."""
    steps, pairs = (2, 2) if short else (STEPS, PAIRS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_digits(folder / "data")
        for file in SOLVER.parent.glob("digits_*"):
            (folder / file.name).write_text(file.read_text())
        with busy():
            crowded = rates(folder, steps, pairs)
        quiet = rates(folder, steps, pairs)
    best = [max(pair) for pair in zip(crowded["1 thread"], crowded["a thread a core"], strict=True)]
    return [
        _figure("with a busy program, own choice / the better of both", crowded["by itself"], best, SHARE),
        _figure("with a busy program, a thread a core / 1 thread", crowded["a thread a core"], crowded["1 thread"]),
        _figure("quiet, own choice / a thread a core", quiet["by itself"], quiet["a thread a core"]),
        _figure("quiet, a thread a core / 1 thread", quiet["a thread a core"], quiet["1 thread"]),
    ]


def _figure(name: str, ours: Sequence[float], theirs: Sequence[float], bar: float | None = None) -> Figure:
    return compare(f"LeNet digits, {name}", ours, theirs, "samples/s", bar)


def rates(folder: Path, steps: int, pairs: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(pairs):
        for name, flags in SETTINGS.items():
            result = trained(folder, "--solver", folder / SOLVER.name, "--iterations", steps, *flags)
            found[name].append(float(result["samples_per_second"]))
    return found


@contextmanager
def busy() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()
