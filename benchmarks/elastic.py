"""Elastic averaging on slow links: LeNet's seconds of training to 0.985 on MNIST, four hosts, an exchange every step.

`elastic-turns` is sync-easgd against round-robin-easgd; `elastic-async`, `-momentum`, `-hogwild`, `-sync` are each an
elastic strategy against the one that adds up steps instead, `elastic-plain` all of these. Hosts are namespaces around
a switch, one worker each; the box is on the first host, whose worker maps the center, and the others come to it over
TLS; workers in step use gloo. First the links' rate is set so that round-robin-easgd communicates for 85 % of its
time. Hosts that share a core compute as much slower, and in `elastic-turns` three times as much, so that most of the
machine is left for what exchanges cost it; rate and computing go together, so the share stays. Needs root.

Of a net of N bytes 2 (P - 1) N go over the first host's link in a round of round-robin-easgd, and 2 (P - 1) / P N over
every link in a step of sync-easgd: with P = 4, and nothing but links, it cannot be more than 4 times as fast, 5.3 times
if the center had a host of its own. With `--compress int8` hosts gather each other's messages, (P - 1) N / 4 over every
link, half as much with P = 4.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from figures import Figure
from hosts import ETHERNET_MTU, ranks_on, require_namespaces
from namespaces import Network, switched_hosts
from ranks import Ranks
from two_hosts import GOAL, data_of, seconds_to

WORLD_SIZE, BATCH, RATE = 4, 16, 0.01
SHARE, SHARE_ERROR = 0.85, 0.01
CALIBRATION_STEPS, MOST_TRIALS = 30, 6
STEPS_TO_A_TEST = 50
TURNS_BAR, TURNS_SEEDS, SEED = 5.0, (1,), 1
TURNS_SLACK = 3.0
IN_TURN, IN_STEP, IN_BYTES = "round-robin-easgd", "sync-easgd", "sync-easgd-int8"
REPLICATED: dict[str, dict[str, object]] = {
    "sync": {"strategy": "sync"},
    IN_STEP: {"strategy": IN_STEP, "sync_period_steps": 1, "overlap": "period"},
    IN_BYTES: {"strategy": IN_STEP, "sync_period_steps": 1, "overlap": "period", "compress": "int8"},
}
PAIRS = {
    "async": ("async-easgd", "async-sgd"),
    "momentum": ("async-measgd", "async-msgd"),
    "hogwild": ("hogwild-easgd", "hogwild-sgd"),
    "sync": (IN_STEP, "sync"),
}
ENOUGH = 1.5


@dataclass(frozen=True)
class Task:
    """The hosts, what they learn, and how well; computing takes `slack` times as long as sharing cores makes it."""

    network: Network
    data: str
    goal: float
    calibration_steps: int
    most_trials: int
    slack: float

    @contextmanager
    def ranks(self, strategy: str, seed: int) -> Iterator[Ranks]:
        settings: dict[str, object] = {"kind": "center", "strategy": strategy, "sync_period_steps": 1}
        if strategy in REPLICATED:
            settings = {"kind": "replicated", **REPLICATED[strategy]}
        job = {"net": "lenet", "batch": BATCH, "rate": RATE, "data": self.data, "seed": seed, "warm_steps": {}}
        # A core for each worker, and one for the box and the network.
        stretch = self.slack * max(1.0, (WORLD_SIZE + 1) / len(os.sched_getaffinity(0)))
        sides = {"sides": {strategy: settings}, "stretch": stretch}
        with ranks_on(self.network.hosts, job | sides, settings["kind"] == "center") as ranks:
            yield ranks

    def seconds(self, strategy: str, seed: int, most_s: float = float("inf")) -> float:
        """Of training until the goal, or until it takes longer than `most_s`."""
        with self.ranks(strategy, seed) as ranks:
            spent_s, steps, accuracy = seconds_to(self.goal, strategy, ranks, STEPS_TO_A_TEST, most_s)
            check(strategy, ranks)
        end = "" if accuracy >= self.goal else ", given up"
        say(f"{strategy}, seed {seed}: {steps} steps of a worker, {spent_s:.1f} s to {accuracy:.4f}{end}")
        return spent_s

    def calibrate(self) -> float:
        """Set the links' rate; the share of its time that round-robin-easgd then communicates.

        A step takes a + b / rate seconds, and computing is no part of what the rate changes.
        """
        rate_mbit, found = 1000.0, []
        with self.ranks(IN_TURN, 0) as ranks:
            ranks.ask(f"{IN_TURN} {self.calibration_steps}")  # the first ones connect
            while True:
                self.network.set_rate(f"{rate_mbit:.0f}mbit")
                wall_s, computed_s = (
                    fmean(times) for times in zip(*ranks.ask(f"{IN_TURN} {self.calibration_steps}"), strict=True)
                )
                share = 1 - computed_s / wall_s
                milliseconds = [1000 * each / self.calibration_steps for each in (wall_s, computed_s)]
                say(
                    f"links of {rate_mbit:.0f} Mbit/s: a step of {IN_TURN} takes {milliseconds[0]:.1f} ms, of which "
                    f"{milliseconds[1]:.1f} ms computing: {share:.1%} communication"
                )
                found.append((1 / rate_mbit, wall_s))
                if abs(share - SHARE) <= SHARE_ERROR or len(found) == self.most_trials:
                    return share
                rate_mbit = next_rate(found, computed_s / (1 - SHARE))


def next_rate(found: list[tuple[float, float]], wanted_s: float) -> float:
    """The rate for steps of `wanted_s`, by a line through the last two that were tried; twice the last without two."""
    (last, wall_s) = found[-1]
    if len(found) == 1:
        return 1 / (last * (1.5 if wall_s < wanted_s else 0.7))
    (before, before_s) = found[-2]
    slope = (wall_s - before_s) / (last - before)
    return 1 / max(last + (wanted_s - wall_s) / slope, last / 4) if slope > 0 else 1 / (last * 1.5)


def run_turns(mnist: Path | None, short: bool = False) -> list[Figure]:
    """The exchange as it is, by gloo's ring, and with compressed differences; both behind the next step."""
    sides = {IN_STEP: None, IN_BYTES: None if short else TURNS_BAR}
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    with calibrated(mnist, short, TURNS_SLACK) as task:
        for seed in TURNS_SEEDS[: 1 if short else None]:
            ours = {side: task.seconds(side, seed) for side in sides}
            in_turn_s = task.seconds(IN_TURN, seed)
            for side, ours_s in ours.items():
                times[side].append((ours_s, in_turn_s))
    return [compared(side, IN_TURN, times[side], bar) for side, bar in sides.items()]


def run_plain(mnist: Path | None, short: bool = False, names: Sequence[str] = tuple(PAIRS)) -> list[Figure]:
    """A counterpart that has taken ENOUGH times as long is waited for no longer: its ratio is at least that."""
    figures = []
    with calibrated(mnist, short) as task:
        for elastic, plain in (PAIRS[name] for name in names):
            ours_s = task.seconds(elastic, SEED)
            theirs_s = task.seconds(plain, SEED, ENOUGH * ours_s)
            figures.append(compared(elastic, plain, [(ours_s, theirs_s)], None if short else 1.0))
    return figures


@contextmanager
def calibrated(mnist: Path | None, short: bool, slack: float = 1.0) -> Iterator[Task]:
    require_namespaces()
    data = data_of(mnist, short)
    with switched_hosts(WORLD_SIZE, ETHERNET_MTU) as network:
        task = Task(network, data, *((0.3, 5, 2) if short else (GOAL, CALIBRATION_STEPS, MOST_TRIALS)), slack)
        share = task.calibrate()
        if not short and abs(share - SHARE) > SHARE_ERROR:
            raise SystemExit(
                f"no rate was found at which {IN_TURN} communicates for {SHARE:.0%} of its time; it is {share:.1%}"
            )
        yield task


def check(strategy: str, ranks: Ranks) -> None:
    """Finite weights, the same center for all; with locks every update is in it."""
    found = ranks.ask(f"verify {strategy}")
    if not all(rank["is_finite"] for rank in found) or len({rank["sha256"] for rank in found}) != 1:
        raise SystemExit(f"{strategy}: weights that are not finite, or differ between ranks")
    updates: Mapping[int, int] = {rank: each["updates"] for rank, each in enumerate(found) if "updates" in each}
    if updates and (not all(updates.values()) or found[0]["versions"] != [sum(updates.values())] * 2):
        raise SystemExit(f"{strategy}: updates by rank {updates}, in the center {found[0]['versions']}")


def compared(ours: str, theirs: str, times: list[tuple[float, float]], bar: float | None) -> Figure:
    """Seconds as they are; the ratio is theirs to ours."""
    our_s, their_s = (fmean(side) for side in zip(*times, strict=True))
    ratios = [their / our for our, their in times]
    title = f"LeNet b{BATCH}, {WORLD_SIZE} hosts: time to {GOAL}, {theirs} / {ours}"
    return Figure(title, our_s, their_s, "s", fmean(ratios), min(ratios), max(ratios), len(ratios), bar)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
