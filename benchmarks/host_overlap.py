"""A step by `replicate` and by DDP, both on gloo: two hosts of one core, 1 Gbit/s. Needs root.

Gradients travel whole, except those of a transformer that sees few tokens, which travel as factors.

`two-hosts-overlap` compares

- the defaults of `samovar.replicate` with DDP, which overlap their exchange with the backward pass;
- both with what one core and one link allow: the larger of the wire's time and the computing's. The first is what a
  host sends in a step, at the link's rate. The second is a step of the same loop alone, plus the time that an
  all-reduce of the gradients without a step keeps the core busy. On a busy core packets come in larger lots, so that
  a step can take a little less.

All are measured in turns, in one run. Ranks end with finite and equal weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from figures import Figure, compare
from ranks import Ranks
from texts import STDLIB
from two_hosts import OURS, THEIRS, Settings, pair_of_ranks, verify

ALONE = "alone"
RATE, BITS_PER_S = "1gbit", 1e9
LEAST_OF_DDP, MOST_OF_BOUND = 1.3, 1.15
SIDES: Mapping[str, Settings] = {
    OURS: {"kind": "replicated", "strategy": "sync"},
    THEIRS: {"kind": "ddp"},
    ALONE: {"kind": "alone"},
}


@dataclass(frozen=True)
class Case:
    """A net of `hosts_rank.NETS`, the samples of a host's step, and the turns."""

    title: str
    net: str
    batch: int
    num_bytes: int
    data: str | None = None
    steps: int = 2
    turns: int = 5

    def shortened(self, short: bool) -> "Case":
        small = Case("small transformer", "small-transformer", 1, 1 << 20, STDLIB, steps=1, turns=2)
        return small if short else self


CASES = (
    Case("ResNet-18 b4", "resnet18", 4, 46_062_752),
    Case("transformer of 10.8 M, 4 x 64 tokens", "transformer", 4, 43_078_656, STDLIB),
    Case("transformer of 10.8 M, 1 x 64 tokens", "transformer", 1, 43_078_656, STDLIB, steps=4),
)


def run(short: bool = False) -> list[Figure]:
    return [figure for case in CASES[: 1 if short else None] for figure in figures_of(case.shortened(short), short)]


def figures_of(case: Case, short: bool) -> list[Figure]:
    job = {"net": case.net, "batch": case.batch, "rate": 1e-4, "data": case.data, "sides": SIDES}
    with pair_of_ranks(RATE, {**job, "warm_steps": dict.fromkeys(SIDES, 1)}, SIDES) as ranks:
        rates: dict[str, list[float]] = {name: [] for name in (*SIDES, "bound")}
        for turn in range(case.turns):
            for name in sorted(SIDES, reverse=turn % 2 == 1):
                slowest_s = max(wall_s for wall_s, _ in ranks.ask(f"{name} {case.steps}"))
                rates[name].append(case.steps / slowest_s)
            rates["bound"].append(bound(ranks, case, 1 / rates[ALONE][-1]))
        for name in (OURS, THEIRS):
            verify(name, ranks.ask(f"verify {name}"))
    title = f"{case.title}, 2 hosts of a core, {RATE}"
    ddp_bar, bound_bar = (None, None) if short else (LEAST_OF_DDP, 1 / MOST_OF_BOUND)
    return [
        compare(f"{title}: sync / DDP", rates[OURS], rates[THEIRS], "steps/s", ddp_bar),
        compare(f"{title}: sync / bound", rates[OURS], rates["bound"], "steps/s", bound_bar),
        compare(f"{title}: DDP / bound", rates[THEIRS], rates["bound"], "steps/s", None),
        compare(f"{title}: alone / bound", rates[ALONE], rates["bound"], "steps/s", None),
    ]


def bound(ranks: Ranks, case: Case, alone_s: float) -> float:
    """Steps/s that these cores and this link allow, unless less is sent, or for less CPU time."""
    sent, busy_s = zip(*ranks.ask(f"exchange {case.num_bytes}"), strict=True)
    return 1 / max(8 * max(sent) / BITS_PER_S, alone_s + median(busy_s))
