"""The command line of a rank process, and the binding of its life to the launcher's."""

import argparse
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from samovar import _native

MODULE = "samovar.training.rank"
# What a rank acts on between two steps.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SNAPSHOT_SIGNAL = signal.SIGHUP


@dataclass(frozen=True, slots=True)
class RankArguments:
    """The command line of a rank: numbers of inherited descriptors, and the run's configuration.

    `board` and `center` are those of the run's own box, -1 if it has none. `key` and `listening` lead to ranks of other
    hosts, and `signals` has a row for each rank of all hosts; -1 if there are none. `life` counts the rank's restarts.
    """

    rank: int
    segment: int
    pipe: int
    parent: int
    config: Path
    board: int = -1
    center: int = -1
    key: int = -1
    listening: int = -1
    signals: int = -1
    life: int = 0

    def to_command(self, executable: str) -> list[str]:
        values = [f"--{name}={getattr(self, name)}" for name in self.__slots__]
        # -P: a file of the user's working folder must never be taken for a module of ours.
        return [executable, "-P", "-X", "faulthandler", "-m", MODULE, *values]

    @classmethod
    def parse(cls, arguments: list[str]) -> "RankArguments":
        parser = argparse.ArgumentParser(prog=MODULE, description="Started by samovar itself.")
        for name in ("rank", "segment", "pipe", "parent"):
            parser.add_argument(f"--{name}", type=int, required=True)
        for name in ("board", "center", "key", "listening", "signals"):
            parser.add_argument(f"--{name}", type=int, default=-1)
        parser.add_argument("--life", type=int, default=0)
        parser.add_argument("--config", type=Path, required=True)
        return cls(**vars(parser.parse_args(arguments)))


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its launcher dies, also if that has happened already."""
    _native.die_with_parent()
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
