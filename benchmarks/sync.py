"""Synchronous training of two ranks, a core and a thread each: against the same two without exchange, and against DDP.

Samovar's sides, with the exchange and without, are in the same two processes. DDP's are in two others, since plain
torch does not change malloc. Sides make blocks of steps in turn, in a random order, while the others wait. A block
includes the end of its last exchange. All read random numbers of a fixed batch. DDP gets the bucket size that is best
for it. The first update of every side is compared with that of one process with the whole batch.
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from figures import Figure, compare_both
from ranks import Net, Ranks, Rates, own_cpus, take_turns

from samovar.transports.shm import create_segment

WORLD_SIZE = 2
ALONE, OFF, DEFAULT = "alone", "off", "none"  # no flag gives `none`: no worker has a core to spare
TORCH = ("torch:1", "torch:2")  # threads


@dataclass(frozen=True)
class Contest:
    """A net, how its ranks exchange (the bars are the first way's), DDP's buckets in MB, and the bars (None: none)."""

    net: Net
    overlaps: tuple[str, ...]
    ddp: tuple[str, ...]
    exposed: float
    speedup: float | None


CONTESTS = (
    Contest(Net("lenet", "LeNet", 64, 1, 28, 12, 40), (DEFAULT, "full:400000"), ("ddp:1", "ddp:25"), 0.97, 1.6),
    Contest(
        Net("cifar10_full", "CIFAR-10 full", 100, 3, 32, 4, 32),
        (DEFAULT, "backward:60000", "full:60000"),
        ("ddp:0.1", "ddp:25"),
        0.97,
        1.8,
    ),
    Contest(
        Net("alexnet", "AlexNet", 16, 3, 227, 2, 12),
        (DEFAULT, "full:16000000"),
        ("ddp:25", "ddp:100"),
        0.94,
        None,
    ),
)


def run(short: bool = False) -> list[Figure]:
    return [figure for contest in CONTESTS[: 1 if short else None] for figure in figures_of(contest, short)]


def run_lenet(short: bool = False) -> list[Figure]:
    return figures_of(CONTESTS[0], short)


def run_cifar10(short: bool = False) -> list[Figure]:
    return figures_of(CONTESTS[1], short)


def run_alexnet(short: bool = False) -> list[Figure]:
    return figures_of(CONTESTS[2], short)


def figures_of(contest: Contest, short: bool) -> list[Figure]:
    net = contest.net.shortened(short)
    figures = at_batch_each(contest, net)
    if contest.speedup is not None:
        figures += in_all(contest, replace(net, batch=net.batch // WORLD_SIZE), contest.speedup)
    return figures


def at_batch_each(contest: Contest, net: Net) -> list[Figure]:
    """Each rank at the published batch."""
    rates = measure(net, (OFF, *contest.overlaps), (), contest.ddp)
    ddp = max(contest.ddp, key=lambda name: median(rates[name].wall))
    title = f"{net.title}, {net.batch} each"
    first, *others = contest.overlaps
    return [
        compare_both(f"{title}, {first} / exchange off", rates[first], rates[OFF], contest.exposed),
        compare_both(f"{title}, {first} / DDP {ddp}", rates[first], rates[ddp], 1.5),
        *(compare_both(f"{title}, {name} / exchange off", rates[name], rates[OFF], None) for name in others),
    ]


def in_all(contest: Contest, net: Net, speedup: float) -> list[Figure]:
    """Strong scaling: all ranks together at the published batch."""
    rates = measure(net, (ALONE, OFF, *contest.overlaps), TORCH, ())
    title = f"{net.title}, {net.batch * WORLD_SIZE} in all"
    first, *others = contest.overlaps
    return [
        compare_both(f"{title}, {first} / exchange off", rates[first], rates[OFF], 0.95),
        compare_both(f"{title}, {first} / one worker", rates[first], rates[ALONE], speedup),
        compare_both(f"{title}, exchange off / one worker", rates[OFF], rates[ALONE], None),
        *(compare_both(f"{title}, {name} / one worker", rates[name], rates[ALONE], None) for name in others),
        compare_both(f"{title}, torch, 2 threads / 1 thread", rates[TORCH[1]], rates[TORCH[0]], None),
    ]


def measure(net: Net, ours: Sequence[str], torch: Sequence[str], ddp: Sequence[str]) -> dict[str, Rates]:
    """Rates of all sides; plain torch's first update is what the others must make."""
    together = replace(net, batch=net.batch * WORLD_SIZE)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="samovar-bench-"))
        job = {**net.job, "meeting": folder, "moves": str(Path(folder, "moves.npz"))}
        whole = stack.enter_context(opened({**job, "sides": torch or TORCH[:1]}, 1, own_cpus(WORLD_SIZE)))
        if not torch:
            whole.last_answers()  # others need its memory
        turns = {name: whole.turn(name, together) for name in torch}
        pairs = [stack.enter_context(opened({**job, "sides": sides}, WORLD_SIZE)) for sides in (ours, ddp) if sides]
        for pair, sides in zip(pairs, filter(None, (ours, ddp)), strict=True):
            turns |= {name: pair.turn(name, together, 1 if name == ALONE else None) for name in sides}
        rates = take_turns(turns, net.num_blocks)
        for pair in pairs:
            verify(pair.last_answers())
    return rates


def opened(job: dict[str, object], world_size: int, cpus: Sequence[int] = ()) -> Ranks:
    """The processes, after the first step of every side; all on `cpus`, or each on one of its own."""
    segment = create_segment(WORLD_SIZE)
    places = [list(cpus)] if cpus else [[cpu] for cpu in own_cpus(world_size)]
    jobs = [{**job, "rank": rank, "segment": segment, "cpus": place} for rank, place in enumerate(places)]
    ranks = Ranks("sync_rank.py", jobs, [segment])
    os.close(segment)
    ranks.answers()
    return ranks


def verify(digests: list[dict[str, str]]) -> None:
    """Ranks that exchange end with equal weights."""
    for name, digest in digests[0].items():
        if name not in (OFF, ALONE) and any(other[name] != digest for other in digests):
            raise SystemExit(f"side {name}: the ranks ended with different weights")
