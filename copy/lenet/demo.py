"""The demo: LeNet on real handwritten digits, two workers against one, through the command line.

Needs nothing from outside: the images are scikit-learn's bundled digits.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SAMOVAR = Path(sys.executable).with_name("samovar")
LONE_STEPS = 150


def main() -> None:
    run("data", "digits", "--out", "data")
    lone = train("runs/demo-1-worker", "--workers", "1", "--iterations", str(LONE_STEPS), quiet=True)
    both = train("runs/demo-2-workers", "--workers", "2")
    one, two = lone["samples_per_second"], both["samples_per_second"]
    print(f"1 worker {one:,.0f} samples/s -> 2 workers {two:,.0f} samples/s: {two / one:.2f}x")


def train(out: str, *arguments: str, quiet: bool = False) -> dict[str, float]:
    """Train the digits solver, anew each time; the run's result.json."""
    shutil.rmtree(out, ignore_errors=True)
    solver = str(FOLDER / "digits_solver.prototxt")
    run("train", "--solver", solver, "--threads-per-worker", "1", "--out", out, *arguments, quiet=quiet)
    return json.loads((Path(out) / "result.json").read_text())


def run(*arguments: str, quiet: bool = False) -> None:
    output = subprocess.DEVNULL if quiet else None
    if not quiet:
        print(f"$ samovar {' '.join(arguments)}", flush=True)
    completed = subprocess.run([SAMOVAR, *arguments], stdout=output, check=False)
    if completed.returncode != 0:
        raise SystemExit(completed.returncode)


if __name__ == "__main__":
    main()
