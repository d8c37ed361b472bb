"""When workers that wait for nobody have trained enough: the three rules of ShmCaffe."""

from collections.abc import Sequence
from typing import Final

MASTER, FIRST, MEAN = "master", "first", "mean"
STOP_RULES: Final = (MEAN, MASTER, FIRST)


def run_steps(rule: str, steps_done: Sequence[int], master: int) -> int:
    """The steps of a run whose workers have done `steps_done`: the master's, the most of any, or their mean.

    The mean is rounded down; what a dead worker leaves undone the others do. The run is over for all when these reach
    what was asked for; tests, snapshots and learning rates go by them, too. Source: ShmCaffe (2018).
    """
    if rule == MASTER:
        return steps_done[master]
    return max(steps_done) if rule == FIRST else sum(steps_done) // len(steps_done)


def described(rule: str, num_steps: int, *, at_box: bool = False) -> str:
    """The rule in words; `at_box` the master is who has the lowest number of those that are there."""
    master = "the member of the lowest number" if at_box else "rank 0"
    who = {MASTER: f"{master} has done", FIRST: "the first worker has done", MEAN: "workers have done, on average,"}[
        rule
    ]
    return f"stop rule {rule}: the run ends when {who} {num_steps:,} steps"
