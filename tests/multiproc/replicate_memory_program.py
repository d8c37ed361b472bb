"""A user's script that replicates a model and closes it again, many times, and shows the memory that this leaves.

    replicate_memory_program.py WHAT COUNT STRATEGY...

Writes to the file grown-RANK the bytes by which resident memory, and the memory that ranks share, grew in the second
half.
"""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import cast

import torch
from torch import nn

import samovar
from samovar.strategies.ours import StrategyName

WIDTH = 1000  # 4 MB of weights
SMALL = 3


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))


def resident_bytes() -> int:
    """Of this process, and of the segment. The mapped part of the segment counts twice.

    Freed memory that malloc keeps for the next request is not in use: about one gradient of 4 MB more or less.
    """
    ctypes.CDLL(None).malloc_trim(0)
    page = os.sysconf("SC_PAGE_SIZE")
    own = int(Path("/proc/self/statm").read_text().split()[1]) * page
    return own + sum(blocks * 512 for blocks in map(segment_blocks, Path("/proc/self/fd").iterdir()))


def segment_blocks(descriptor: Path) -> int:
    with suppress(OSError):
        if "memfd:" in str(descriptor.readlink()):
            return descriptor.stat().st_blocks
    return 0


class Loop:
    """One model and its optimizer for all replicas."""

    def __init__(self, width: int) -> None:
        self.model = net(width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.x = torch.ones(2, width)

    def train(self, strategy: StrategyName, num_steps: int) -> None:
        with samovar.replicate(self.model, self.optimizer, strategy) as replica:
            for _ in range(num_steps):
                self.optimizer.zero_grad()
                replica.backward(self.model(self.x).sum())
                replica.step()

    def settled_bytes(self, strategy: StrategyName) -> int:
        """Resident memory when all ranks have closed what they had before."""
        with samovar.replicate(self.model, self.optimizer, strategy) as replica:
            replica.barrier()
            measured = resident_bytes()
            replica.barrier()
        return measured


def with_errors(loop: Loop, strategy: StrategyName) -> None:
    """A replica whose ranks differ, one whose loop fails, and one that is right."""
    rank = int(os.environ["RANK"])
    other = Loop(WIDTH + rank)
    with suppress(samovar.InputError):
        other.train(strategy, 0)
    with suppress(ZeroDivisionError), samovar.replicate(loop.model, loop.optimizer, strategy):
        raise ZeroDivisionError
    loop.train(strategy, 1)


def main() -> None:
    what, count, strategies = sys.argv[1], int(sys.argv[2]), cast(list[StrategyName], sys.argv[3:])
    torch.set_num_threads(1)
    loop, small = Loop(WIDTH), Loop(SMALL)
    half_bytes = 0
    for index in range(count):
        if index == count // 2:
            half_bytes = small.settled_bytes(strategies[0])
        strategy = strategies[index % len(strategies)]
        if what == "errors":
            with_errors(loop, strategy)
        else:
            loop.train(strategy, 1)
    grown = small.settled_bytes(strategies[0]) - half_bytes
    Path(f"grown-{os.environ['RANK']}").write_text(str(grown))


if __name__ == "__main__":
    main()
