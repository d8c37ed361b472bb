"""Whole nets on one thread: forward, backward and update, against the same net in plain torch.

Plain torch is eager, NCHW, of stock modules (`torch_twin.py`). Every side has its own process, since malloc's keeping
of memory is part of the comparison. All are pinned to one core, and while one makes a block of steps the others wait.
Data is not read: every step gets the same random numbers. Rates are by CPU time.
"""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from figures import Figure, compare
from ranks import Net, Ranks, take_turns
from verified import relative_distance

TORCH, FP32, BF16 = "torch", "fp32", "bf16"
TOLERANCES = {FP32: (1e-5, 1e-3), BF16: (1e-2, 5e-2)}  # relative: of the first loss, of the first update
# The net, the least ratio to plain torch, and that of bf16 to fp32.
NETS = (
    (Net("lenet", "LeNet", 64, 1, 28, 20, 40), 1.5, None),
    (Net("cifar10_quick", "CIFAR-10 quick", 100, 3, 32, 4, 40), 1.5, None),
    (Net("cifar10_full", "CIFAR-10 full", 100, 3, 32, 4, 40), 1.6, None),
    (Net("alexnet", "AlexNet", 16, 3, 227, 1, 24), 1.6, 1.3),
    (Net("googlenet", "GoogLeNet", 8, 3, 224, 1, 24), 1.4, 1.3),
)


def run(short: bool = False) -> list[Figure]:
    nets = NETS[:1] if short else NETS
    return [figure for net, bar, bf16_bar in nets for figure in figures_of(net.shortened(short), bar, bf16_bar)]


def figures_of(net: Net, bar: float, bf16_bar: float | None) -> list[Figure]:
    with_bf16 = bf16_bar is not None and has_bf16()
    rates = measure(net, [TORCH, FP32, BF16] if with_bf16 else [TORCH, FP32])
    title = f"{net.title} b{net.batch}"
    figures = [compare(f"{title} / plain torch", rates[FP32], rates[TORCH], "samples/s", bar)]
    if with_bf16:
        figures.append(compare(f"{title}, bf16 / fp32", rates[BF16], rates[FP32], "samples/s", bf16_bar))
    return figures


def has_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 (AVX512-BF16)."""
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    return "avx512_bf16" in flags


def measure(net: Net, names: list[str]) -> dict[str, list[float]]:
    """Each side's samples per second, block by block; `names` begins with torch, whose first step others repeat."""
    cpu = max(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="samovar-bench-")))
        sides, losses = {}, {}
        for name in names:
            job = {**net.job, "side": name, "cpu": cpu, "moves": str(folder / f"{name}.npz")}
            sides[name] = stack.enter_context(Ranks("nets_rank.py", [job]))
            (losses[name],) = sides[name].answers()
            if name != TORCH:
                verify(name, losses[name], losses[TORCH], folder)
        rates = take_turns({name: side.turn(name, net) for name, side in sides.items()}, net.num_blocks)
    return {name: found.cpu for name, found in rates.items()}


def verify(name: str, loss: float, expected: float, folder: Path) -> None:
    """The first loss and the first update are torch's; SystemExit where they are not."""
    of_loss, of_update = TOLERANCES[name]
    distance = abs(loss - expected) / abs(expected)
    if not distance < of_loss:
        raise SystemExit(f"{name}: the first loss is {loss}, torch's {expected}: {distance:.2g} apart")
    with np.load(folder / f"{name}.npz") as ours, np.load(folder / f"{TORCH}.npz") as theirs:
        distance = relative_distance((ours[key], theirs[key]) for key in theirs.files)
    if not distance < of_update:
        raise SystemExit(f"{name}: the first update differs from torch's by {distance:.2g} of its size")
    (folder / f"{name}.npz").unlink()
