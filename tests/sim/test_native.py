"""The native executor under random orders of its operations, and mistakes planted in it."""

import pytest

from samovar.collectives.plan import Wait
from samovar.collectives.plans import ring_all_reduce
from samovar.collectives.tree import kary_tree_all_reduce
from samovar.transports.sim.scheduler import Deadlock
from tests.sim.harness import COLLECTIVES, SimCase, WrongResult
from tests.sim.mistakes import changed
from tests.sim.native import NativeParts, TurnsChannel, run_native

NUM_SEEDS = 1000
BLOCK = 100
NUM_MISTAKEN_SEEDS = 12
FIRSTS = [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(BLOCK, NUM_SEEDS, BLOCK))]


class CombineLeftOut(TurnsChannel):
    """The first sum is not made."""

    left_out = False

    def _add(self, operation):
        if type(operation).__name__ in ("Reduce", "Combine") and not self.left_out:
            self.left_out = True
        else:
            super()._add(operation)


class NotificationLeftOut(TurnsChannel):
    """The last operation that tells somebody is not made."""

    def _add(self, operation):
        tells = [one for one in self._memory.plan.operations if hasattr(one, "peer") and not isinstance(one, Wait)]
        if not tells or operation is not tells[-1]:
            super()._add(operation)


def without_waits(plan):
    return tuple(one for one in plan.operations if not isinstance(one, Wait))


MISTAKES = {
    "combine left out": ("tree", NativeParts(channel=CombineLeftOut), WrongResult),
    "combine of shared memory left out": ("direct", NativeParts(channel=CombineLeftOut), WrongResult),
    "notification left out": ("ring", NativeParts(channel=NotificationLeftOut), Deadlock),
    "waits left out": ("ring", NativeParts(changed(ring_all_reduce, without_waits).function), WrongResult),
    "children not awaited": (
        "kary tree",
        NativeParts(changed(kary_tree_all_reduce, without_waits).function),
        WrongResult,
    ),
}


@pytest.mark.parametrize("first", FIRSTS)
def test_no_order_of_operations_finds_a_deadlock_or_a_wrong_result(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_native(SimCase.of_seed(seed))


def test_seeds_cover_every_plan_and_repeat() -> None:
    assert {SimCase.of_seed(seed).collective for seed in range(BLOCK)} == set(COLLECTIVES)
    case = SimCase(5, "ring", 5, 64, "float32")
    assert run_native(case) == run_native(case)
    assert len({run_native(SimCase(seed, "ring", 5, 64, "float32")).event_hash for seed in range(20)}) > 10


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught_and_only_by_what_is_meant_to(name: str) -> None:
    collective, parts, caught_by = MISTAKES[name]
    found = [_ending(SimCase(seed, collective, (3, 4, 7)[seed % 3], 257, "float32"), parts) for seed in range(12)]
    caught = [error for error in found if error is not None]
    assert len(caught) > NUM_MISTAKEN_SEEDS // 2
    assert all(isinstance(error, caught_by) for error in caught), caught
    assert all("to repeat: python tools/simulate.py --of native --seed" in error.__notes__[-1] for error in caught)


def _ending(case: SimCase, parts: NativeParts) -> Exception | None:
    try:
        run_native(case, parts)
    except Exception as error:
        return error
    return None
