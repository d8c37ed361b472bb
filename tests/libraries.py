"""Ranks of the transports over a library, started as its users start them: mpiexec for MPI; for GASPI, processes with
torchrun's variables, which no launcher ends.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.multiproc.ports import reserved_port

ROOT = Path(__file__).parents[1]
MPIEXEC = shutil.which(Path(sys.executable).with_name("mpiexec")) or shutil.which("mpiexec")
TIMEOUT_S = 150.0
# How long others may take to end when one rank has failed.
_GRACE_S = 10.0
# `apart`: MPICH takes every rank for a host of its own, and uses its network.
WAYS = ("mpi", "mpi-apart", "gaspi")


@dataclass(frozen=True)
class Ended:
    """The exit codes of ranks, or of mpiexec, and what all have written to stderr. -9: it had to be killed."""

    exit_codes: list[int]
    stderr: str


@dataclass(frozen=True)
class Library:
    """A way to start ranks; `folder` has GPI-2's library."""

    way: str
    folder: Path | None

    @property
    def transport(self) -> str:
        return self.way.removesuffix("-apart")

    @property
    def variables(self) -> dict[str, str]:
        """With them, ranks find the library, or take this way."""
        if self.way == "gaspi":
            return {"LD_LIBRARY_PATH": str(self.folder)}
        return {"MPIR_CVAR_NOLOCAL": "1"} if self.way == "mpi-apart" else {}

    def run(self, words: Sequence[object], world_size: int) -> Ended:
        """Python's words, on so many ranks."""
        command = [sys.executable, *map(str, words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | self.variables
        if self.transport == "mpi":
            return _ended([_started([str(MPIEXEC), "-n", str(world_size), *command], environment)])
        with reserved_port() as port:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            ranks = []
            for rank in range(world_size):
                numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
                own = environment | {name: str(number) for name, number in numbers.items()}
                ranks.append(_started(command, own))
            return _ended(ranks)


def library(way: str, config: pytest.Config) -> Library:
    """Skips a test whose library is not here."""
    if way != "gaspi":
        if MPIEXEC is None or find_spec("mpi4py") is None:
            pytest.skip("needs MPI: pip install 'samovar[mpi]'")
        return Library(way, None)
    prefix = config.getoption("--gaspi")
    if prefix is None:
        pytest.skip("needs GPI-2: give the folder in which it is installed as --gaspi DIR")
    folders = [folder for folder in (Path(prefix, "lib64"), Path(prefix, "lib")) if (folder / "libGPI2.so").exists()]
    if not folders:
        raise pytest.UsageError(f"--gaspi {prefix}: no lib64/libGPI2.so in it")
    return Library(way, folders[0])


def _started(command: Sequence[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _ended(processes: "list[subprocess.Popen[str]]") -> Ended:
    texts, has_failed = [], False
    try:
        for process in processes:
            try:
                texts.append(process.communicate(timeout=_GRACE_S if has_failed else TIMEOUT_S)[1])
            except subprocess.TimeoutExpired:
                assert has_failed, "no rank ended"
                process.kill()
                texts.append(process.communicate()[1])
            has_failed = has_failed or process.returncode != 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Ended([process.returncode for process in processes], "".join(texts))
