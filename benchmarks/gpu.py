"""Torch loops on GPUs: `samovar.replicate` against DDP on NCCL, and against the same ranks without exchange.

The two ranks take a GPU each if there are two. Otherwise they share one, and NCCL connects them through sockets, as it
does between hosts. Sides take turns, block by block, in the same processes.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from figures import Figure, compare
from ranks import FOLDER
from trained import SAMOVAR

# Title, samples of a rank's step, steps of a block.
NETS = {
    "resnet20": ("ResNet-20 b64", 64, 20),
    "resnet18": ("ResNet-18 b64", 64, 5),
    "transformer": ("transformer 10 M, 32 x 64 tokens", 32, 10),
}
BLOCKS, SHORT_BLOCKS = 8, 4
AGAINST = {
    "sync": ("ddp", "off"),
    "sync, behind backward": ("ddp",),
    "local-sgd, 8": ("ddp",),
    "sync-easgd, 8": ("ddp",),
}


def run(short: bool = False) -> list[Figure]:
    require_gpu()
    figures = []
    for name in list(NETS)[: 1 if short else None]:
        title, batch, steps = NETS[name]
        rates = measured(name, batch, steps, SHORT_BLOCKS if short else BLOCKS)
        for ours, others in AGAINST.items():
            for theirs in others:
                figures.append(compare(f"{title}: {ours} / {theirs}", rates[ours], rates[theirs], "samples/s", None))
    return figures


def measured(net: str, batch: int, steps: int, blocks: int) -> dict[str, list[float]]:
    """Samples per second of both ranks, by side."""
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        out = Path(folder, "rates.json")
        job = {"net": net, "batch": batch, "steps": steps, "blocks": blocks, "out": str(out)}
        command = (SAMOVAR, "run", "--workers", 2, FOLDER / "gpu_rank.py", json.dumps(job))
        subprocess.run([str(word) for word in command], cwd=folder, check=True, stdout=sys.stderr)
        found: dict[str, list[float]] = json.loads(out.read_text())
        return found


def require_gpu() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
