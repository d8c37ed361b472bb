"""Whole nets on one thread: forward, backward and update, against the same net in plain torch.

Plain torch is eager, NCHW, of stock modules (`torch_twin.py`). Every side is a process of its own, since how malloc
keeps memory is part of the comparison; all are pinned to one core, and while one makes a block of steps the others
wait. Data is not read: every step gets the same random numbers.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figures import Figure, compare

FOLDER = Path(__file__).parent
ZOO = FOLDER.parent / "examples" / "zoo"
TORCH, FP32, BF16 = "torch", "fp32", "bf16"
WARM_UP_BLOCKS = 2
TIMEOUT_S = 60.0
TOLERANCES = {FP32: (1e-5, 1e-3), BF16: (1e-2, 5e-2)}  # relative: of the first loss, of the first update


@dataclass(frozen=True)
class Net:
    """A net of the zoo, its published batch (or less), and how many steps and blocks give a steady ratio."""

    name: str
    title: str
    batch: int
    channels: int
    size: int
    bar: float
    steps_per_block: int
    num_blocks: int
    bf16_bar: float | None = None

    @property
    def arguments(self) -> list[str]:
        return [str(value) for value in (self.batch, self.channels, self.size)]


NETS = (
    Net("lenet", "LeNet", 64, 1, 28, 1.5, 20, 40),
    Net("cifar10_quick", "CIFAR-10 quick", 100, 3, 32, 1.5, 4, 40),
    Net("cifar10_full", "CIFAR-10 full", 100, 3, 32, 1.6, 4, 40),
    Net("alexnet", "AlexNet", 16, 3, 227, 1.6, 1, 24, 1.3),
    Net("googlenet", "GoogLeNet", 8, 3, 224, 1.4, 1, 24, 1.3),
)


def run() -> list[Figure]:
    return [figure for net in NETS for figure in figures_of(net)]


def figures_of(net: Net) -> list[Figure]:
    with_bf16 = net.bf16_bar is not None and has_bf16()
    rates = measure(net, [TORCH, FP32, BF16] if with_bf16 else [TORCH, FP32])
    title = f"{net.title} b{net.batch}"
    figures = [compare(f"{title} / plain torch", rates[FP32], rates[TORCH], "samples/s", net.bar)]
    if with_bf16:
        figures.append(compare(f"{title}, bf16 / fp32", rates[BF16], rates[FP32], "samples/s", net.bf16_bar))
    return figures


def has_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 (AVX512-BF16)."""
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    return "avx512_bf16" in flags


def measure(net: Net, names: list[str]) -> dict[str, list[float]]:
    """Each side's samples per second, block by block."""
    cpu = max(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="samovar-bench-")))
        sides = {name: stack.enter_context(opened(net, name, cpu, folder)) for name in names}
        for block in range(WARM_UP_BLOCKS + net.num_blocks):
            # What a side leaves in the caches meets the next one, so no side may always follow the same.
            for name in random.Random(block).sample(names, len(names)):
                rates[name].append(net.batch * net.steps_per_block / sides[name].seconds(net.steps_per_block))
    return {name: values[WARM_UP_BLOCKS:] for name, values in rates.items()}


class Side:
    """A process of `nets_rank.py`."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name
        self.first_loss = self._read()

    def seconds(self, num_steps: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num_steps}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"side {self._name} of the benchmark failed; its error stands above")
        return float(line)


@contextmanager
def opened(net: Net, name: str, cpu: int, folder: Path) -> Iterator[Side]:
    """The side, after its first step, which was found to be torch's."""
    moves = folder / f"{name}.npz"
    program = [sys.executable, str(FOLDER / "nets_rank.py"), str(ZOO / net.name), name, str(cpu), *net.arguments]
    process = subprocess.Popen([*program, str(moves)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        side = Side(process, name)
        if name == TORCH:
            (folder / "loss").write_text(repr(side.first_loss))
        else:
            expected = float((folder / "loss").read_text())
            verify(name, side.first_loss, expected, moves, folder / f"{TORCH}.npz")
            moves.unlink()
        yield side
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def verify(name: str, loss: float, expected: float, moves: Path, expected_moves: Path) -> None:
    """The first loss and the first update are torch's; SystemExit where they are not."""
    of_loss, of_update = TOLERANCES[name]
    distance = abs(loss - expected) / abs(expected)
    if not distance < of_loss:
        raise SystemExit(f"{name}: the first loss is {loss}, torch's {expected}: {distance:.2g} apart")
    difference = size = 0.0
    with np.load(moves) as ours, np.load(expected_moves) as theirs:
        for key in theirs.files:
            difference += float(np.square(ours[key] - theirs[key], dtype=np.float64).sum())
            size += float(np.square(theirs[key], dtype=np.float64).sum())
    distance = (difference / size) ** 0.5
    if not distance < of_update:
        raise SystemExit(f"{name}: the first update differs from torch's by {distance:.2g} of its size")
