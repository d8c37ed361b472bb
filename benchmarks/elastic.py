"""Elastic averaging on slow links: LeNet's seconds of training to 0.985 on MNIST, four hosts, an exchange every step.

`elastic-turns` compares sync-easgd with round-robin-easgd. `elastic-async`, `-momentum`, `-hogwild` and `-sync` each
compare an elastic strategy with the one that adds up steps instead; `elastic-plain` runs all of these. Needs root.

Hosts are namespaces around a switch, one worker each. The box is on the first host, whose worker maps the center. The
others reach it over TLS; workers in step use gloo. First the links' rate is set so that round-robin-easgd communicates
for 85 % of its time. Hosts share this machine's cores and are slowed down, so that computing takes each of them the
same time in every step. That time gives every host room on the cores, times two, or times five in `elastic-turns`. So
most of the machine is free for the cost of exchanges. Rate and computing scale together, so the share stays.

Workers that are in step, or take turns, learn the same bits on fast and slow links. So `elastic-turns` counts the steps
to the goal on fast links, for several seeds. Then it times a step of each on the slow links, in turns, and compares
the weights that both have after the same number of steps. Asynchronous workers are timed on the slow links until the
goal, each at its best rate of 0.01 to 0.05: strategies differ in the highest rate that works.

For a net of N bytes, a round of round-robin-easgd sends 2 (P - 1) N over the first host's link, one after the other. A
step of sync-easgd sends 2 (P - 1) / P N over every link, behind the next step's computing. With P = 4 it can be at
most 4.7 times as fast. With `--compress int8` hosts gather each other's messages, (P - 1) N / 4 over every link. That
is half as much with P = 4, and takes less time than computing, so it can be at most 6.7 times as fast.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from figures import Figure
from hosts import ETHERNET_MTU, ranks_on, require_namespaces
from namespaces import Network, switched_hosts
from ranks import Ranks
from two_hosts import GOAL, data_of, seconds_to

WORLD_SIZE, BATCH, RATE = 4, 16, 0.01
SHARE, SHARE_ERROR = 0.85, 0.01
CALIBRATION_STEPS, MOST_TRIALS = 30, 6
STEPS_TO_A_TEST, PLAIN_STEPS_TO_A_TEST = 50, 25
TURNS_BAR, SEEDS, PLAIN_SEEDS = 5.0, (1, 2, 3), (1, 2, 3, 4, 5)
TURNS_SLACK, PLAIN_SLACK = 5.0, 2.0
BLOCK_STEPS, TURNS_BLOCKS = 50, 5
FAST = "10gbit"
IN_TURN, IN_STEP, IN_BYTES = "round-robin-easgd", "sync-easgd", "sync-easgd-int8"
REPLICATED: dict[str, dict[str, object]] = {
    "sync": {"strategy": "sync"},
    IN_STEP: {"strategy": IN_STEP, "sync_period_steps": 1, "overlap": "period"},
    IN_BYTES: {"strategy": IN_STEP, "sync_period_steps": 1, "overlap": "period", "compress": "int8"},
}
# Each with the solver's rate that suits it best; where the center adds up steps it diverges at 0.04 with some seeds.
PAIRS = {
    "async": (("async-easgd", 0.04), ("async-sgd", 0.03)),
    "momentum": (("async-measgd", 0.04), ("async-msgd", 0.02)),
    "hogwild": (("hogwild-easgd", 0.04), ("hogwild-sgd", 0.03)),
    "sync": ((IN_STEP, RATE), ("sync", RATE)),
}
# That ratio has no bar: what only adds up may send gradients as factors, a twentieth of this net's bytes.
UNBARRED = "sync"
ENOUGH = 1.5


@dataclass(frozen=True)
class Task:
    """The hosts, what they learn, and how well; computing takes each of them `host_step_s`, if that is not zero."""

    network: Network
    data: str
    goal: float
    calibration_steps: int
    most_trials: int
    host_step_s: float = 0.0
    rate: float = RATE
    steps_to_a_test: int = STEPS_TO_A_TEST

    @contextmanager
    def ranks(self, seed: int, *strategies: str) -> Iterator[Ranks]:
        """Processes in which the strategies take turns, each with a net of its own."""
        sides = {name: settings_of(name) for name in strategies}
        job = {"net": "lenet", "batch": BATCH, "rate": self.rate, "data": self.data, "seed": seed, "warm_steps": {}}
        with_box = any(settings["kind"] == "center" for settings in sides.values())
        with ranks_on(self.network.hosts, {**job, "sides": sides, "host_step_s": self.host_step_s}, with_box) as ranks:
            yield ranks

    def trained(self, strategy: str, seed: int, most_s: float = float("inf")) -> tuple[float, int]:
        """Seconds, and steps of a worker, until the goal, or until it takes longer than `most_s`."""
        with self.ranks(seed, strategy) as ranks:
            spent_s, steps, accuracy = seconds_to(self.goal, strategy, ranks, self.steps_to_a_test, most_s)
            check(strategy, ranks)
        end = "" if accuracy >= self.goal else ", given up"
        side = f"{strategy} at rate {self.rate:g}, seed {seed}"
        say(f"{side}: {steps} steps of a worker, {spent_s:.1f} s to {accuracy:.4f}{end}")
        return spent_s, steps

    def steps_in_turns(self, strategies: Sequence[str], num_blocks: int) -> tuple[dict[str, float], dict[str, str]]:
        """Seconds of a step of each, the median of blocks in turns, and digests of the weights they have then."""
        found: dict[str, list[float]] = {name: [] for name in strategies}
        with self.ranks(SEEDS[0], *strategies) as ranks:
            for block in range(num_blocks + 1):  # the first one connects
                for name in sorted(strategies, reverse=block % 2 == 1):
                    wall_s = max(wall_s for wall_s, _ in ranks.ask(f"{name} {BLOCK_STEPS}"))
                    found[name] += [wall_s / BLOCK_STEPS] if block else []
            digests = {name: check(name, ranks) for name in strategies}
        for name, seconds in found.items():
            say(f"a step of {name}: {', '.join(f'{1000 * each:.1f}' for each in seconds)} ms")
        return {name: median(seconds) for name, seconds in found.items()}, digests

    def digest(self, strategy: str, num_steps: int) -> str:
        """A digest of the weights after `num_steps` steps."""
        with self.ranks(SEEDS[0], strategy) as ranks:
            ranks.ask(f"{strategy} {num_steps}")
            return check(strategy, ranks)

    def slowed_down(self, slack: float) -> "Task":
        """Hosts on which computing takes `slack` times what it takes where each has a core, and the box one."""
        with self.ranks(0, IN_TURN) as ranks:
            ranks.ask(f"{IN_TURN} {self.calibration_steps}")  # the first ones connect
            _, computed_s = (fmean(times) for times in zip(*ranks.ask(f"{IN_TURN} {BLOCK_STEPS}"), strict=True))
        stretch = slack * max(1.0, (WORLD_SIZE + 1) / len(os.sched_getaffinity(0)))
        say(f"computing takes {1000 * computed_s / BLOCK_STEPS:.1f} ms of a step, on the hosts {stretch:g} times that")
        return replace(self, host_step_s=stretch * computed_s / BLOCK_STEPS)

    def calibrate(self) -> float:
        """Set the links' rate. Returns the share of its time that round-robin-easgd then communicates.

        A step takes a + b / rate seconds; the rate does not change the time of computing.
        """
        rate_mbit, found = 1000.0, []
        with self.ranks(0, IN_TURN) as ranks:
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


def settings_of(strategy: str) -> dict[str, object]:
    if strategy in REPLICATED:
        return {"kind": "replicated", **REPLICATED[strategy]}
    return {"kind": "center", "strategy": strategy, "sync_period_steps": 1}


def run_turns(mnist: Path | None, short: bool = False) -> list[Figure]:
    """The exchange as it is, by gloo's ring, and with compressed differences; both behind the next step."""
    num_blocks, seeds = (1, SEEDS[:1]) if short else (TURNS_BLOCKS, SEEDS)
    sides = (IN_STEP, IN_BYTES, IN_TURN)
    with calibrated(mnist, short, TURNS_SLACK) as task:
        step_s, digests = task.steps_in_turns(sides, num_blocks)
        task.network.set_rate(FAST)
        fast = replace(task, host_step_s=0.0)
        for name, digest in digests.items():
            if fast.digest(name, (num_blocks + 1) * BLOCK_STEPS) != digest:
                raise SystemExit(f"{name} learns other weights on fast links than on slow ones")
        times = {
            name: [step_s[name] * steps for steps in (fast.trained(name, seed)[1] for seed in seeds)] for name in sides
        }
    bars = {IN_STEP: None, IN_BYTES: None if short else TURNS_BAR}
    return [compared(name, IN_TURN, list(zip(times[name], times[IN_TURN], strict=True)), bars[name]) for name in bars]


def run_plain(mnist: Path | None, short: bool = False, names: Sequence[str] = tuple(PAIRS)) -> list[Figure]:
    """A counterpart that has taken ENOUGH times as long is waited for no longer: its ratio is at least that."""
    figures = []
    with calibrated(mnist, short, PLAIN_SLACK) as calibrated_task:
        task = replace(calibrated_task, steps_to_a_test=PLAIN_STEPS_TO_A_TEST)
        for name in names:
            ((elastic, our_rate), (plain, their_rate)), times = PAIRS[name], []
            ours, theirs = replace(task, rate=our_rate), replace(task, rate=their_rate)
            for seed in PLAIN_SEEDS[: 1 if short else None]:
                ours_s, _ = ours.trained(elastic, seed)
                theirs_s, _ = theirs.trained(plain, seed, ENOUGH * ours_s)
                times.append((ours_s, theirs_s))
            figures.append(compared(elastic, plain, times, None if short or name == UNBARRED else 1.0))
    return figures


@contextmanager
def calibrated(mnist: Path | None, short: bool, slack: float) -> Iterator[Task]:
    require_namespaces()
    data = data_of(mnist, short)
    with switched_hosts(WORLD_SIZE, ETHERNET_MTU) as network:
        task = Task(network, data, *((0.3, 5, 2) if short else (GOAL, CALIBRATION_STEPS, MOST_TRIALS)))
        task = task.slowed_down(slack)
        share = task.calibrate()
        if not short and abs(share - SHARE) > SHARE_ERROR:
            raise SystemExit(
                f"no rate was found at which {IN_TURN} communicates for {SHARE:.0%} of its time; it is {share:.1%}"
            )
        yield task


def check(strategy: str, ranks: Ranks) -> str:
    """Finite weights, the same center for all; with locks every update is in it. Their digest."""
    found = ranks.ask(f"verify {strategy}")
    if not all(rank["is_finite"] for rank in found) or len({rank["sha256"] for rank in found}) != 1:
        raise SystemExit(f"{strategy}: weights that are not finite, or differ between ranks")
    updates: Mapping[int, int] = {rank: each["updates"] for rank, each in enumerate(found) if "updates" in each}
    if updates and (not all(updates.values()) or found[0]["versions"] != [sum(updates.values())] * 2):
        raise SystemExit(f"{strategy}: updates by rank {updates}, in the center {found[0]['versions']}")
    return str(found[0]["sha256"])


def compared(ours: str, theirs: str, times: list[tuple[float, float]], bar: float | None) -> Figure:
    """Means over seeds, and theirs / ours; the spread is the least and the most of it."""
    our_s, their_s = (fmean(side) for side in zip(*times, strict=True))
    ratios = [their / our for our, their in times]
    title = f"LeNet b{BATCH}, {WORLD_SIZE} hosts: time to {GOAL}, {theirs} / {ours}"
    return Figure(title, our_s, their_s, "s", their_s / our_s, min(ratios), max(ratios), len(ratios), bar)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
