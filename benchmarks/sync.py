"""Synchronous training of two ranks, a core and a thread each: against the same two without exchange, and against DDP.

Every side is a pair of processes; they make blocks of steps in turn while the others wait, in an order drawn anew for
each block. All read random numbers of a fixed batch. DDP gets the bucket size that serves it best.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from figures import Figure, compare
from nets import ZOO

from samovar.transports.shm import create_segment

RANK_PROGRAM = Path(__file__).with_name("sync_rank.py")
WORLD_SIZE = 2
WARM_UP_BLOCKS = 2
TIMEOUT_S = 120.0
ALONE, OFF = "alone", "off"
DDP = ("ddp:1", "ddp:25", "ddp:100")


@dataclass(frozen=True)
class Net:
    """A net of the zoo at its published batch, in all; `exposed` and `speedup` are the bars, None for none."""

    name: str
    title: str
    batch: int
    channels: int
    size: int
    steps_per_block: int
    num_blocks: int
    overlaps: tuple[str, ...]
    exposed: float
    speedup: float | None


NETS = (
    Net("lenet", "LeNet", 64, 1, 28, 24, 24, ("none", "full:400000"), 0.97, 1.6),
    Net("cifar10_full", "CIFAR-10 full", 100, 3, 32, 6, 24, ("none", "backward:60000", "full:60000"), 0.97, 1.8),
    Net("alexnet", "AlexNet", 16, 3, 227, 1, 20, ("none", "backward:16000000", "full:16000000"), 0.94, None),
)


def run(names: Sequence[str] = ()) -> list[Figure]:
    return [figure for net in NETS if not names or net.name in names for figure in figures_of(net)]


def figures_of(net: Net) -> list[Figure]:
    """Each rank at the published batch; then both together at it (strong scaling)."""
    rates = measure(net, (OFF, *net.overlaps, *DDP))
    best, ddp = _best(rates, net.overlaps), _best(rates, DDP)
    title = f"{net.title}, {net.batch} each"
    figures = [
        compare(f"{title}, {best} / exchange off", rates[best], rates[OFF], "samples/s", net.exposed),
        compare(f"{title}, {best} / DDP {ddp}", rates[best], rates[ddp], "samples/s", 1.5),
    ]
    others = [name for name in net.overlaps if name != best]
    figures += [compare(f"{title}, {n} / exchange off", rates[n], rates[OFF], "samples/s", None) for n in others]
    if net.speedup is not None:
        rates = measure(replace(net, batch=net.batch // WORLD_SIZE), (ALONE, OFF, *net.overlaps))
        best = _best(rates, net.overlaps)
        title = f"{net.title}, {net.batch} in all"
        figures += [
            compare(f"{title}, {best} / exchange off", rates[best], rates[OFF], "samples/s", 0.95),
            compare(f"{title}, {best} / one worker", rates[best], rates[ALONE], "samples/s", net.speedup),
        ]
    return figures


def _best(rates: dict[str, list[float]], names: Sequence[str]) -> str:
    return max(names, key=lambda name: median(rates[name]))


def measure(net: Net, names: Sequence[str]) -> dict[str, list[float]]:
    """Samples per second of all ranks of each side, block by block."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        sides = {name: stack.enter_context(Side(net, name)) for name in names}
        for block in range(WARM_UP_BLOCKS + net.num_blocks):
            for name in random.Random(block).sample(names, len(names)):
                num_samples = net.batch * WORLD_SIZE * net.steps_per_block
                rates[name].append(num_samples / sides[name].seconds(net.steps_per_block))
        for name, side in sides.items():
            side.verify(name)
    return {name: values[WARM_UP_BLOCKS:] for name, values in rates.items()}


class Side:
    """The processes of one side; `alone` is one rank with the batch of all."""

    def __init__(self, net: Net, name: str) -> None:
        self._name = name
        self._world_size = 1 if name == ALONE else WORLD_SIZE
        self._folder = tempfile.TemporaryDirectory(prefix="samovar-bench-")
        segment = create_segment(self._world_size)
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < WORLD_SIZE:
            raise SystemExit(f"this benchmark needs {WORLD_SIZE} cores; there are {len(cpus)}")
        batch = net.batch * WORLD_SIZE // self._world_size
        side = OFF if name == ALONE else name
        place = self._folder.name if name.startswith("ddp") else str(segment)
        shape = (batch, net.channels, net.size)
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, str(RANK_PROGRAM), str(ZOO / net.name), side),
                    *map(str, (rank, self._world_size, cpus[rank], *shape)),
                    place,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[segment],
            )
            for rank in range(self._world_size)
        ]
        os.close(segment)

    def __enter__(self) -> "Side":
        for process in self._processes:
            self._read(process)
        return self

    def seconds(self, num_steps: int) -> float:
        """Until the last rank has ended."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{num_steps}\n")
            process.stdin.flush()
        return max(self._read(process) for process in self._processes)

    def verify(self, name: str) -> None:
        """Ranks that exchange end with equal weights."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        totals = {self._read(process) for process in self._processes}
        if name not in (OFF, ALONE) and len(totals) != 1:
            raise SystemExit(f"side {name}: the ranks ended with different weights, whose sums are {sorted(totals)}")

    def __exit__(self, *_error: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _read(self, process: "subprocess.Popen[str]") -> float:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"side {self._name} of the benchmark failed; its error stands above")
        return float(line)
