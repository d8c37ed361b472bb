"""`samovar run` of small scripts, and the processes that come of it."""

import sys
from pathlib import Path

import psutil

from tests.multiproc.command import Command, Ended, run

PRELUDE = '''
import os, signal, subprocess, sys, time
from pathlib import Path

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Told over files, which no launcher touches.
def tell(name, text=""):
    Path(f".{name}-{rank}").write_text(str(text))
    os.rename(f".{name}-{rank}", f"{name}-{rank}")

def await_all(name, ranks=range(world_size)):
    while not all(Path(f"{name}-{one}").exists() for one in ranks):
        time.sleep(0.005)

def await_end(of_rank):
    """Until the launcher has taken note of the end."""
    while Path(f"/proc/{Path(f'rank-{of_rank}').read_text()}").exists():
        time.sleep(0.005)

'''


def write_script(folder: Path, text: str) -> Path:
    """A script with what all of them need before its own text."""
    path = folder / "script.py"
    path.write_text(PRELUDE + text)
    return path


def run_script(
    folder: Path,
    text: str,
    num_ranks: int,
    *flags: object,
    arguments: tuple[object, ...] = (),
    forks_scripts: bool = False,
) -> Ended:
    """Run a script to its end."""
    words = ("run", "-n", num_ranks, *flags, write_script(folder, text), *arguments)
    return run(*words, folder=folder, forks_scripts=forks_scripts)


def start_script(folder: Path, text: str, num_ranks: int, *flags: object) -> Command:
    """Start a script, to be sent signals."""
    return Command("run", "-n", num_ranks, *flags, write_script(folder, text), folder=folder)


def run_impatiently(folder: Path, *words: object) -> Ended:
    """`samovar run` to its end, which ends a rank that is stopped for half a second."""
    program = "from samovar.cli import entry, run\nrun._STOPPED_S = 0.5\nentry.main()"
    with Command("-c", program, "run", *words, folder=folder, program=Path(sys.executable)) as command:
        return command.wait()


def await_told(command: Command, folder: Path, name: str, num_ranks: int) -> list[psutil.Process]:
    """The processes by the ids that the ranks have told under `name`."""
    files = [folder / f"{name}-{rank}" for rank in range(num_ranks)]
    command.until(lambda: all(file.exists() for file in files), f"all ranks tell {name!r}")
    return [psutil.Process(int(file.read_text())) for file in files]
