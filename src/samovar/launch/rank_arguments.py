"""The command line of a rank process, and the binding of its life to the launcher's."""

import argparse
import os
import signal
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import ClassVar, Self

from samovar import _native

# What a rank acts on between two steps.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SNAPSHOT_SIGNAL = signal.SIGHUP


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line of a rank's program, `module`: a flag for each field, after Python's own `options`."""

    module: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    def to_command(self, executable: str) -> list[str]:
        values = [f"--{field.name}={getattr(self, field.name)}" for field in fields(self)]
        # -P: a file of the user's working folder must never be taken for a module of ours.
        return [executable, "-P", *self.options, "-m", self.module, *values]

    @classmethod
    def parse(cls, arguments: list[str]) -> Self:
        parser = argparse.ArgumentParser(prog=cls.module, description="Started by samovar itself.")
        for field in fields(cls):
            default = {"required": True} if field.default is MISSING else {"default": field.default}
            parser.add_argument(f"--{field.name}", type=field.type, **default)
        return cls(**vars(parser.parse_args(arguments)))


@dataclass(frozen=True, slots=True)
class RankArguments(Arguments):
    """The command line of a rank: numbers of inherited descriptors, and the run's configuration.

    `board` and `center` are those of the run's own box, -1 if it has none. `key` and `listening` lead to ranks of other
    hosts, and `signals` has a row for each rank of all hosts; -1 if there are none. `life` counts the rank's restarts.
    """

    module = "samovar.training.rank"
    options = ("-X", "faulthandler")
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


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its launcher dies, also if that has happened already."""
    _native.die_with_parent()
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
