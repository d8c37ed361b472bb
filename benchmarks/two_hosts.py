"""Two hosts on a slow link, one rank each, against DDP on gloo of the same net in the same run. Needs root.

- `two-hosts`: sync-easgd every 8 steps.
- `two-hosts-gradients`: sync, which sends factors by default, without compression and with it.
- `two-hosts-box`: shm-easgd every 8 steps at a box on the first host.
- `two-hosts-accuracy`: sync-easgd until LeNet knows MNIST.

Both sides hold their nets in the same processes and take turns; the slower rank's time counts. Ranks end with finite
and equal weights.
"""

import math
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from figures import Figure, compare
from hosts import ETHERNET_MTU, ranks_on, require_namespaces
from images import DIGITS
from namespaces import two_hosts
from ranks import Ranks

WORLD_SIZE, PERIOD = 2, 8
BATCH = 16
Rates = dict[str, list[float]]
Settings = Mapping[str, Any]

OURS, THEIRS = "ours", "theirs"
SYNC_EASGD = {"kind": "replicated", "strategy": "sync-easgd", "sync_period_steps": PERIOD, "overlap": "period"}
# ShmCaffe's order: the read does not wait for the push, so the link carries both at once.
SHM_EASGD = {"kind": "center", "strategy": "shm-easgd", "sync_period_steps": PERIOD, "read_first": True}
# By codec, least ratio.
GRADIENT_BARS = {"none": 1.25, "bf16": 1.5}
DDP_BUCKETS_MIB = (25, 100)
GOAL, MOST_OF_DDPS_TIME = 0.985, 0.4
STEPS_TO_A_TEST, MOST_STEPS = 100, 6000


@dataclass(frozen=True)
class Link:
    """A link's rate, the steps of a block, and the pairs of blocks of a figure."""

    rate: str
    our_steps: int
    ddp_steps: int
    num_pairs: int
    bar: float | None

    def shortened(self, short: bool) -> "Link":
        return replace(self, our_steps=PERIOD, ddp_steps=1, num_pairs=2, bar=None) if short else self


SPEEDS = (Link("100mbit", 2 * PERIOD, 2, 3, 7.0), Link("1gbit", 2 * PERIOD, 6, 5, 1.4))
BOX_SPEEDS = (Link("100mbit", 2 * PERIOD, 2, 2, 4.0), Link("1gbit", 2 * PERIOD, 4, 3, 1.3))
GRADIENTS = Link("1gbit", 3, 3, 5, None)


def run_speed(short: bool = False) -> list[Figure]:
    return [speed(link.shortened(short), SYNC_EASGD, short) for link in SPEEDS]


def run_box(short: bool = False) -> list[Figure]:
    return [speed(link.shortened(short), SHM_EASGD, short) for link in BOX_SPEEDS]


def speed(link: Link, ours: Settings, short: bool) -> Figure:
    rates = measure(link, {OURS: ours, THEIRS: {"kind": "ddp"}}, {OURS: PERIOD, THEIRS: 1}, short)
    title = f"{net_of(short)} b{BATCH}, 2 hosts, {link.rate}: {ours['strategy']} every {PERIOD} / DDP"
    return compare(title, rates[OURS], rates[THEIRS], "samples/s", link.bar)


def run_gradients(short: bool = False) -> list[Figure]:
    """Sync against DDP with its faster bucket size; two nets at a time, to save memory."""
    found = {size: gradients("none", size, replace(GRADIENTS, num_pairs=2), short) for size in DDP_BUCKETS_MIB}
    best = max(found, key=lambda size: median(found[size][THEIRS]))
    figures = []
    for codec, bar in GRADIENT_BARS.items():
        rates = gradients(codec, best, GRADIENTS, short)
        title = f"{net_of(short)} b{BATCH}, 2 hosts, {GRADIENTS.rate}: sync, {codec} / DDP, {best} MiB"
        figures.append(compare(title, rates[OURS], rates[THEIRS], "samples/s", None if short else bar))
    return figures


def gradients(codec: str, bucket_mib: int, link: Link, short: bool) -> Rates:
    compression = {} if codec == "none" else {"compress": codec, "always_compresses": True}
    sides = {
        OURS: {"kind": "replicated", "strategy": "sync", **compression},
        THEIRS: {"kind": "ddp", "bucket_mib": bucket_mib},
    }
    return measure(link.shortened(short), sides, {OURS: 1, THEIRS: 1}, short)


def measure(link: Link, sides: Mapping[str, Settings], warm_steps: Mapping[str, int], short: bool) -> Rates:
    """Samples/s of both ranks at the slower one's pace, a block of each side after the other."""
    job = {"net": net_of(short).lower(), "batch": BATCH, "rate": 1e-4, "sides": sides, "warm_steps": warm_steps}
    steps = {OURS: link.our_steps, THEIRS: link.ddp_steps}
    rates: Rates = {side: [] for side in sides}
    with pair_of_ranks(link.rate, job, sides) as ranks:
        for pair in range(link.num_pairs):
            for side in sorted(sides, reverse=pair % 2 == 1):
                slowest_s = max(wall_s for wall_s, _ in ranks.ask(f"{side} {steps[side]}"))
                rates[side].append(WORLD_SIZE * BATCH * steps[side] / slowest_s)
        for side in sides:
            verify(side, ranks.ask(f"verify {side}"))
    return rates


@contextmanager
def pair_of_ranks(rate: str, job: Mapping[str, Any], sides: Mapping[str, Settings]):
    require_namespaces()
    with_box = any(settings["kind"] == "center" for settings in sides.values())
    with (
        two_hosts(rate, ETHERNET_MTU) as hosts,
        ranks_on(hosts, {"data": None, "seed": 1, "host_step_s": 0.0, **job}, with_box) as ranks,
    ):
        yield ranks


def verify(side: str, found: list[dict[str, Any]]) -> None:
    """Check for finite weights, the same on both ranks; at a center, that it has every update of both."""
    if not all(rank["is_finite"] for rank in found):
        raise SystemExit(f"{side}: the weights are not finite")
    if len({rank["sha256"] for rank in found}) != 1:
        raise SystemExit(f"{side}: the ranks' weights differ")
    if "updates" in found[0]:
        updates = [rank["updates"] for rank in found]
        if not all(updates) or any(rank["versions"] != [sum(updates)] * 2 for rank in found):
            raise SystemExit(f"{side}: updates by rank {updates}, in the center {[rank['versions'] for rank in found]}")
        print(f"{side}: the center holds all updates, by rank {updates}")


def run_accuracy(mnist: Path | None, short: bool = False) -> list[Figure]:
    data = data_of(mnist, short)
    seconds: Rates = {OURS: [], THEIRS: []}
    for seed in range(3):
        for side, settings in ((OURS, SYNC_EASGD), (THEIRS, {"kind": "ddp"})):
            job = {"net": "lenet", "batch": 64, "rate": 0.01, "sides": {side: settings}, "data": data, "seed": seed}
            with pair_of_ranks("100mbit", {**job, "warm_steps": {}}, {side: settings}) as ranks:
                spent_s, steps, _ = seconds_to(0.5 if short else GOAL, side, ranks)
            seconds[side].append(spent_s)
            print(f"seed {seed}, {side}: {steps} steps, {spent_s:.1f} s", file=sys.stderr)
    rates = {side: [1 / each for each in seconds[side]] for side in seconds}
    title = f"LeNet b64, 2 hosts, 100mbit, MNIST to {GOAL}: DDP's time / ours"
    return [compare(title, rates[OURS], rates[THEIRS], "runs/s", None if short else 1 / MOST_OF_DDPS_TIME)]


def seconds_to(
    goal: float, side: str, ranks: Ranks, steps_to_a_test: int = STEPS_TO_A_TEST, most_s: float = math.inf
) -> tuple[float, int, float]:
    """Training seconds, and steps of a rank, until the goal or `most_s`, with the accuracy; testing is not counted."""
    spent_s, steps, accuracy = 0.0, 0, 0.0
    while accuracy < goal and spent_s < most_s:
        if steps >= MOST_STEPS:
            raise SystemExit(f"{side} does not reach {goal} in {MOST_STEPS} steps; it came to {accuracy:.4f}")
        spent_s += max(wall_s for wall_s, _ in ranks.ask(f"{side} {steps_to_a_test}"))
        steps += steps_to_a_test
        right, images = zip(*ranks.ask(f"accuracy {side}"), strict=True)
        accuracy = sum(right) / sum(images)
    return spent_s, steps, accuracy


def data_of(mnist: Path | None, short: bool) -> str:
    """The arguments of `images.Images`."""
    if short:
        return DIGITS
    if mnist is None:
        raise SystemExit("give the folder of MNIST's four IDX files with --mnist")
    return str(mnist.resolve())


def net_of(short: bool) -> str:
    return "LeNet" if short else "AlexNet"
