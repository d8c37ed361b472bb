"""Streaming diloco on slow links: four hosts, a transformer of 10.7 M parameters, the standard library's sources.

Sides take turns, a period at a time. Hosts are namespaces around a switch, whose cables carry 100 Mbit/s each way.
Needs root.

`streaming` compares streaming diloco, plain diloco, and the same loop without any exchange:

- Time: of periods with exchanges, against those without. The slowest host counts.
- Peak: the most bytes that an interface sends in any second of a side's steps. Plain diloco fills its link.
- In the end links are held to a quarter of the rate. No second can carry more then, and streaming must keep up.

`streaming-loss` compares both kinds of diloco on links without a limit, which changes no bit. It compares their loss
on files that they do not train on. Both make the same number of steps on the same samples.

The hosts share this machine's cores. So each step takes a host `step_s` seconds until its update, however soon it gets
a core, and its exchange comes on top. That is many times what it computes. In an exchange of plain diloco each host
sends 64 MB, which takes 5 s. A period computes for 24 s: real hosts have more steps in it, and larger batches.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from elastic import check
from figures import Figure, compare
from hosts import ETHERNET_MTU, ranks_on, require_namespaces
from namespaces import Network, switched_hosts
from ranks import Ranks
from texts import STDLIB

WORLD_SIZE, RATE = 4, 1e-3
LINK, QUARTER = "100mbit", "25mbit"
ALONE, PLAIN, STREAMING = "alone", "diloco", "streaming"
MOST_TIME, MOST_PEAK, MOST_LOSS = 1.05, 0.25, 1.01
TITLE = f"transformer, {WORLD_SIZE} hosts"


@dataclass(frozen=True)
class Size:
    """Steps of a period, periods on each link, the seconds of a step, and steps and periods of `streaming-loss`."""

    period: int = 8
    periods: int = 3
    slow_periods: int = 2
    step_s: float = 3.0
    loss_period: int = 20
    loss_periods: int = 12
    net: str = "transformer"

    def sides(self, names: Sequence[str], period: int) -> dict[str, dict[str, Any]]:
        adam = {"optimizer": "adamw"}
        plain = {**adam, "kind": "replicated", "transport": "tcp", "strategy": "diloco", "sync_period": period}
        delay = max(period // 10, 1)
        streaming = {**plain, "fragments": 4, "delay_steps": delay, "mixing": 0.5, "compress": "int4"}
        sides: dict[str, dict[str, Any]] = {ALONE: {**adam, "kind": "alone"}, PLAIN: plain, STREAMING: streaming}
        return {name: sides[name] for name in names}


FULL, SHORT = Size(), Size(4, 2, 2, 0.0, 4, 2, "small-transformer")


def run(short: bool = False) -> list[Figure]:
    size, names = (SHORT if short else FULL), (ALONE, PLAIN, STREAMING)
    with hosts_of(size, names, size.period, size.step_s) as (network, ranks):
        network.set_rate(LINK)
        rates = in_turns(ranks, size.period, names, size.periods)
        traffic = {name: ranks.ask(f"traffic {name}") for name in (PLAIN, STREAMING)}
        network.set_rate(QUARTER)
        slow = in_turns(ranks, size.period, (ALONE, STREAMING), size.slow_periods)
        for name in (PLAIN, STREAMING):
            check(name, ranks)
    peaks, sent = (
        {name: max(found[what] for found in traffic[name]) / 1e6 for name in traffic}
        for what in ("peak_bytes_per_s", "num_bytes")
    )
    least_rate = None if short else 1 / MOST_TIME
    return [
        compare(f"{TITLE}, {LINK}: {PLAIN} / alone", rates[PLAIN], rates[ALONE], "steps/s", None),
        compare(f"{TITLE}, {LINK}: streaming / alone", rates[STREAMING], rates[ALONE], "steps/s", least_rate),
        compare(f"{TITLE}, {QUARTER}: streaming / alone", slow[STREAMING], slow[ALONE], "steps/s", least_rate),
        small("bytes: diloco / streaming", sent, "MB", None),
        small("peak of a second: diloco / streaming", peaks, "MB/s", None if short else 1 / MOST_PEAK),
    ]


def run_loss(short: bool = False) -> list[Figure]:
    size, names = (SHORT if short else FULL), (PLAIN, STREAMING)
    with hosts_of(size, names, size.loss_period) as (_, ranks):
        in_turns(ranks, size.loss_period, names, size.loss_periods)
        losses = {name: loss_of(ranks, name) for name in names}
        for name in (PLAIN, STREAMING):
            check(name, ranks)
    title = f"{TITLE}: held-out loss of diloco / streaming"
    return [small(title, losses, "nats", None if short else 1 / MOST_LOSS)]


@contextmanager
def hosts_of(size: Size, names: Sequence[str], period: int, step_s: float = 0.0) -> Iterator[tuple[Network, Ranks]]:
    require_namespaces()
    job = {"net": size.net, "batch": 1, "rate": RATE, "data": STDLIB, "seed": 1, "warm_steps": {}}
    job |= {"sides": size.sides(names, period), "host_step_s": step_s, "shares_cores": True, "is_metered": True}
    with (
        switched_hosts(WORLD_SIZE, ETHERNET_MTU) as network,
        ranks_on(network.hosts, job, with_key=True) as ranks,
    ):
        yield network, ranks


def in_turns(ranks: Ranks, period: int, names: Sequence[str], num_periods: int) -> dict[str, list[float]]:
    """Steps/s of the slowest host, for each period of each side."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(num_periods):
        for name in sorted(names, reverse=number % 2 == 1):
            slowest_s = max(wall_s for wall_s, _ in ranks.ask(f"{name} {period}"))
            rates[name].append(period / slowest_s)
            print(f"period {number}, {name}: {slowest_s:.1f} s", file=sys.stderr, flush=True)
    return rates


def loss_of(ranks: Ranks, name: str) -> float:
    """The mean on what is held out, by the weights that count."""
    totals, counts = zip(*ranks.ask(f"loss {name}"), strict=True)
    return float(sum(totals) / sum(counts))


def small(name: str, found: dict[str, float], unit: str, bar: float | None) -> Figure:
    """A quantity that is to be small: how many times as much plain diloco has."""
    ratio = found[PLAIN] / found[STREAMING]
    return Figure(name, found[STREAMING], found[PLAIN], unit, ratio, ratio, ratio, 1, bar)
