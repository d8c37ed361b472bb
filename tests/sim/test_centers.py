"""Sums are conserved to the last bit under delays, pauses and retries, and planted mistakes are caught."""

import pytest

from tests.sim.center_mistakes import CENTER_MISTAKES
from tests.sim.centers import RULES, CenterCase, Parts, WrongOrder, WrongSum, run_center
from tests.sim.harness import MAX_DELAYS_S
from tests.sim.mapped_centers import VirtualCenter, has_locks, run_mapped

NUM_SEEDS = 1000
BLOCK = 50
NUM_MISTAKEN_SEEDS = 12
SHAPES = ((4, 3), (3, 3), (6, 2))
FIRSTS = [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(BLOCK, NUM_SEEDS, BLOCK))]


@pytest.mark.parametrize("first", FIRSTS)
def test_no_seed_finds_a_lost_or_doubled_update(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_center(CenterCase.of_seed(seed))
        run_mapped(CenterCase.of_seed(seed))


def test_seeds_cover_every_rule_and_repeat() -> None:
    drawn = {(case.rule, has_locks(case)) for case in map(CenterCase.of_seed, range(BLOCK))}
    assert drawn == {(rule, locks) for rule in RULES for locks in (True, False)}
    case = CenterCase.of_seed(5)
    assert run_center(case).event_hash == run_center(case).event_hash
    assert run_mapped(case).event_hash == run_mapped(case).event_hash


class AccumulatesTwice(VirtualCenter):
    """Adds a difference a second time, as another update."""

    def accumulate(self, sequence, difference, deadline, momentum=0.0):
        super().accumulate(2 * sequence, difference, deadline, momentum)
        return super().accumulate(2 * sequence + 1, difference, deadline, momentum)


class SequencesIgnored(VirtualCenter):
    """An update that is tried again counts twice."""

    num_updates = 0

    def accumulate(self, _sequence, difference, deadline, momentum=0.0):
        self.num_updates += 1
        return super().accumulate(self.num_updates, difference, deadline, momentum)


@pytest.mark.parametrize("center", [AccumulatesTwice, SequencesIgnored])
def test_a_mistake_at_a_mapped_center_is_caught(center: type[VirtualCenter]) -> None:
    for seed in range(NUM_MISTAKEN_SEEDS):
        case = CenterCase(seed, "async-sgd", *SHAPES[seed % 3], 1, 16, True)
        with pytest.raises((WrongSum, WrongOrder)) as caught:
            run_mapped(case, center)
        assert "to repeat: python tools/simulate.py --of mapped --seed" in caught.value.__notes__[-1]


@pytest.mark.parametrize("name", CENTER_MISTAKES)
def test_a_mistake_is_caught_and_only_by_what_is_meant_to(name: str) -> None:
    mistake = CENTER_MISTAKES[name]
    cases = [
        CenterCase(seed, mistake.rule, *SHAPES[seed % 3], 1, 16, mistake.tries_again, mistake.overlaps)
        for seed in range(100)
    ]
    delayed = [case for case in cases if case.config().max_delay_s == max(MAX_DELAYS_S)][:NUM_MISTAKEN_SEEDS]
    found = [error for error in (_ending(case, mistake.parts) for case in delayed) if error is not None]
    assert len(found) > NUM_MISTAKEN_SEEDS // 2
    strangers = [error for error in found if not isinstance(error, mistake.caught_by)]
    assert not strangers, strangers[0]


def _ending(case: CenterCase, parts: Parts) -> Exception | None:
    try:
        run_center(case, parts)
    except Exception as error:
        return error
    return None
