"""A torch loop in two processes on one host: `sync` against DDP on gloo, and against the same two without exchange."""

import os
import tempfile
from statistics import median

from figures import Figure, compare_both
from ranks import Net, Ranks, Rates, own_cpus, take_turns

from samovar.transports.shm import create_segment

WORLD_SIZE = 2
SIDES = ("ours", "ddp", "off")
# Of the nets, their shape is in `torch_sync_rank.py`; a step counts as one here.
NETS = (
    Net("resnet20", "ResNet-20 b64", 1, 3, 32, 4, 24),
    Net("transformer", "transformer 10 M, 8 x 64 tokens", 1, 1, 64, 2, 24),
    Net("alexnet", "AlexNet b16", 1, 3, 227, 1, 16),
)


def run(short: bool = False) -> list[Figure]:
    against_ddp, against_off = [], []
    for net in NETS[: 1 if short else None]:
        rates = measure(net.shortened(short))
        title = f"{net.title}, sync"
        against_ddp.append(compare_both(f"{title} / DDP", rates["ours"], rates["ddp"], 1.0, "steps/s"))
        against_off.append(compare_both(f"{title} / exchange off", rates["ours"], rates["off"], 0.95, "steps/s"))
    ratios = sorted(figure.ratio for figure in against_ddp)
    middle = Figure("median over the nets, sync / DDP", median(ratios), 1.0, "ratio", median(ratios), ratios[0],
                    ratios[-1], len(ratios), 1.1)  # fmt: skip
    return [*against_off, *against_ddp, middle]


def measure(net: Net) -> dict[str, Rates]:
    """Each side's rates; every rank on a core of its own, one thread each, all sides in the same processes."""
    segment = create_segment(WORLD_SIZE)
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        job = {"net": net.name, "world_size": WORLD_SIZE, "segment": segment, "meeting": f"{folder}/store"}
        jobs = [{**job, "rank": rank, "cpu": cpu} for rank, cpu in enumerate(own_cpus(WORLD_SIZE))]
        with Ranks("torch_sync_rank.py", jobs, [segment]) as ranks:
            os.close(segment)
            ranks.answers()
            rates = take_turns({name: ranks.turn(name, net) for name in SIDES}, net.num_blocks)
            ranks.last_answers()
    return rates
