"""A torch loop in two processes on one host: `sync` against DDP on gloo, and against the same two without exchange."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from figures import Figure, compare

from samovar.transports.shm import create_segment

RANK_PROGRAM = Path(__file__).parent / "torch_sync_rank.py"
TIMEOUT_S = 900.0
WORLD_SIZE = 2
NETS = {"resnet20": "ResNet-20 b64", "transformer": "transformer 10 M, 8 x 64 tokens", "alexnet": "AlexNet b16"}


def run() -> list[Figure]:
    against_ddp, against_off = [], []
    for name, title in NETS.items():
        rates = measure(name)
        against_ddp.append(compare(f"{title}, sync / DDP", rates["ours"], rates["ddp"], "steps/s", 1.0))
        against_off.append(compare(f"{title}, sync / exchange off", rates["ours"], rates["off"], "steps/s", 0.95))
    ratios = sorted(figure.ratio for figure in against_ddp)
    middle = Figure("median over the nets, sync / DDP", median(ratios), 1.0, "ratio", median(ratios), ratios[0],
                    ratios[-1], len(ratios), 1.1)  # fmt: skip
    return [*against_off, *against_ddp, middle]


def measure(net: str) -> dict[str, list[float]]:
    """Each side's rates; every rank on a core of its own, one thread each. Blocks end when both ranks have ended."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < WORLD_SIZE:
        raise SystemExit(f"this benchmark needs {WORLD_SIZE} cores; there are {len(cpus)}")
    segment = create_segment(WORLD_SIZE)
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(RANK_PROGRAM),
                    net,
                    str(rank),
                    str(WORLD_SIZE),
                    str(segment),
                    str(cpus[rank]),
                    folder,
                ],
                pass_fds=[segment],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD_SIZE)
        ]
        os.close(segment)
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise SystemExit(f"{net}: a rank of the benchmark failed; its error stands above")
    rates: dict[str, list[float]] = json.loads(outputs[0])
    return rates
