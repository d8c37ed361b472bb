"""A torch loop in two processes on one host: `sync` against DDP on gloo, and against the same two without exchange.

Each side has its own processes, because memory that one leaves in malloc's heap changes the page faults of another.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import torch
from figures import Figure, compare_both
from ranks import Net, Ranks, Rates, own_cpus, take_turns
from safetensors.torch import load_file
from verified import relative_distance

from samovar.transports.shm import create_segment

WORLD_SIZE = 2
# With the last one DDP too keeps freed memory, as `samovar.replicate` does.
SIDES = ("ours", "off", "ddp", "ddp-kept")
# Of the nets, their shape is in `torch_sync_rank.py`; a step counts as one here.
NETS = (
    Net("resnet20", "ResNet-20 b64", 1, 3, 32, 4, 24),
    Net("transformer", "transformer 10 M, 8 x 64 tokens", 1, 1, 64, 2, 24),
    Net("alexnet", "AlexNet b16", 1, 3, 227, 1, 16),
)


def run(short: bool = False) -> list[Figure]:
    against_off: list[Figure] = []
    against_ddp: list[Figure] = []
    against_kept: list[Figure] = []
    for net in NETS[: 1 if short else None]:
        rates = measure(net.shortened(short))
        for figures, side, name, bar in (
            (against_off, "off", "exchange off", 0.95),
            (against_ddp, "ddp", "DDP", 1.0),
            (against_kept, "ddp-kept", "DDP that keeps memory", None),
        ):
            figures.append(compare_both(f"{net.title}, sync / {name}", rates["ours"], rates[side], bar, "steps/s"))
    ratios = sorted(figure.ratio for figure in against_ddp)
    middle = Figure("median over the nets, sync / DDP", median(ratios), 1.0, "ratio", median(ratios), ratios[0],
                    ratios[-1], len(ratios), 1.1)  # fmt: skip
    return [*against_off, *against_ddp, middle, *against_kept]


def measure(net: Net) -> dict[str, Rates]:
    """Each side's rates; the ranks of a side on a core each, one thread each."""
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder, ExitStack() as open_sides:
        sides = {name: open_sides.enter_context(_ranks(name, net, Path(folder))) for name in SIDES}
        for ranks in sides.values():
            ranks.answers()
        rates = take_turns({name: ranks.turn(name, net) for name, ranks in sides.items()}, net.num_blocks)
        for ranks in sides.values():
            ranks.last_answers()
        _require_same_learned({name: load_file(Path(folder, name)) for name in SIDES})
    return rates


@contextmanager
def _ranks(side: str, net: Net, folder: Path) -> Iterator[Ranks]:
    segment = create_segment(WORLD_SIZE)
    files = {"meeting": str(folder / f"{side}-store"), "weights": str(folder / side)}
    job = {"side": side, "net": net.name, "world_size": WORLD_SIZE, "segment": segment, **files}
    jobs = [{**job, "rank": rank, "cpu": cpu} for rank, cpu in enumerate(own_cpus(WORLD_SIZE))]
    try:
        ranks = Ranks("torch_sync_rank.py", jobs, [segment])
    finally:
        os.close(segment)
    with ranks:
        yield ranks


def _require_same_learned(weights: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    ours = weights["ours"]
    distances = {
        side: relative_distance((ours[name], theirs[name]) for name in ours) for side, theirs in weights.items()
    }
    assert distances["ddp"] < 1e-5, f"Samovar and DDP differ by {distances['ddp']:.2g}"
    assert distances["off"] > 0, "nothing was exchanged"
