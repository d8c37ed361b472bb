"""Rank programs as processes that answer in lines of JSON, and the turns that sides of a comparison take."""

import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ZOO = FOLDER.parent / "examples" / "zoo"
WARM_UP_BLOCKS = 2
TIMEOUT_S = 300.0

Spent = tuple[float, float]  # seconds, and seconds that processes computed


@dataclass(frozen=True)
class Net:
    """A net of the zoo, its published batch (or less), and the steps and blocks that give a steady ratio."""

    name: str
    title: str
    batch: int
    channels: int
    size: int
    steps_per_block: int
    num_blocks: int

    @property
    def job(self) -> dict[str, Any]:
        shape = {"batch": self.batch, "channels": self.channels, "size": self.size}
        return {"folder": str(ZOO / self.name), **shape}

    def shortened(self, short: bool) -> "Net":
        """Only to see that everything runs."""
        return replace(self, steps_per_block=1, num_blocks=2) if short else self


@dataclass(frozen=True)
class Rates:
    """Samples per second, block by block: by the clock, and by what the processes computed."""

    wall: list[float]
    cpu: list[float]


@dataclass(frozen=True)
class Turn:
    """A block of one side's steps, of `num_samples` in all."""

    run: Callable[[], Spent]
    num_samples: int


class Ranks:
    """A process of the rank program for each job; in a `with` block, after which all have ended.

    `prefixes` are the words, if any, of a command that runs each process.
    """

    def __init__(
        self,
        program: str,
        jobs: Sequence[Mapping[str, Any]],
        descriptors: Sequence[int] = (),
        prefixes: Sequence[Sequence[str]] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._processes = [
            subprocess.Popen(
                [*prefix, sys.executable, str(FOLDER / program), json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=descriptors,
            )
            for job, prefix in zip(jobs, prefixes or [()] * len(jobs), strict=True)
        ]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, error: object, *_rest: object) -> None:
        self._close_input()
        for process in self._processes:
            try:
                process.wait(0 if error else self._timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()

    def answers(self, count: int | None = None) -> list[Any]:
        """The next line of each, or of the first `count`."""
        return [self._answer(process) for process in self._processes[:count]]

    def ask(self, line: str, count: int | None = None) -> list[Any]:
        """The answers of all, or of the first `count`, to a line."""
        self.tell(line, count)
        return self.answers(count)

    def tell(self, line: str, count: int | None = None) -> None:
        for process in self._processes[:count]:
            with suppress(BrokenPipeError):  # its answer will be missing
                process.stdin.write(f"{line}\n")
                process.stdin.flush()

    def last_answers(self) -> list[Any]:
        """End the input. Returns the last answer of each."""
        self._close_input()
        return self.answers()

    def turn(self, side: str, net: Net, count: int | None = None) -> Turn:
        """A block of `side`, of `net.batch` samples a step, by all or the first `count` processes."""
        return Turn(partial(self._block, side, net.steps_per_block, count), net.batch * net.steps_per_block)

    def _block(self, side: str, num_steps: int, count: int | None) -> Spent:
        """Wait until the last process has ended. Returns the CPU seconds of all."""
        spent = self.ask(f"{side} {num_steps}", count)
        return max(wall_s for wall_s, _ in spent), sum(cpu_s for _, cpu_s in spent)

    def _close_input(self) -> None:
        for process in self._processes:
            with suppress(BrokenPipeError):
                process.stdin.close()

    def _answer(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline() if select.select([process.stdout], [], [], self._timeout_s)[0] else ""
        if not line:
            raise SystemExit(f"a process of {self._program} failed; see its error above, if it had time for one")
        return json.loads(line)


def own_cpus(world_size: int) -> list[int]:
    """A core for each rank."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < world_size:
        raise SystemExit(f"this benchmark needs {world_size} cores; there are {len(cpus)}")
    return cpus[:world_size]


def take_turns(turns: Mapping[str, Turn], num_blocks: int) -> dict[str, Rates]:
    """Each side's rates, block by block.

    A side finds the caches as the side before left them, and a rested machine if that side waited much. So no side may
    always follow the same one.
    """
    rates = {name: Rates([], []) for name in turns}
    for block in range(WARM_UP_BLOCKS + num_blocks):
        for name in random.Random(block).sample(list(turns), len(turns)):
            wall_s, cpu_s = turns[name].run()
            if block >= WARM_UP_BLOCKS:
                rates[name].wall.append(turns[name].num_samples / wall_s)
                rates[name].cpu.append(turns[name].num_samples / cpu_s)
    return rates
