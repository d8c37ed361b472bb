"""Every planted mistake by its name, and whether seeds catch it.

python -m tests.sim.all_mistakes        tells each one, and exits 1 if fewer than 95 of a hundred are caught
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from samovar.box import protocol
from tests.sim import (
    test_box,
    test_centers,
    test_elastic,
    test_mistakes,
    test_native,
    test_runs,
    test_sessions,
    test_steps,
)
from tests.sim.box_world import PART_BYTES
from tests.sim.center_mistakes import CENTER_MISTAKES
from tests.sim.elastic_mistakes import ELASTIC_MISTAKES
from tests.sim.mistakes import MISTAKES
from tests.sim.run_mistakes import RUN_MISTAKES
from tests.sim.sessions import FilledTooSoon, NeverTold
from tests.sim.step_mistakes import STEP_MISTAKES

SHARE_CAUGHT = 0.95
Check = Callable[[], None]  # a test: raises if its mistake is not caught


def in_box(plant: test_box.Plant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "PART_BYTES", PART_BYTES)
        test_box.test_a_planted_mistake_is_seen(plant, patch)


def named(room: str, names: Any, check: Callable[[Any], None]) -> dict[str, Check]:
    return {f"{room}: {getattr(name, '__name__', name)}": partial(check, name) for name in names}


CHECKS: dict[str, Check] = {
    **named("plans", MISTAKES, test_mistakes.test_a_mistake_is_caught_by_most_seeds_and_only_by_what_is_meant_to),
    **named("native", test_native.MISTAKES, test_native.test_a_mistake_is_caught_and_only_by_what_is_meant_to),
    **named("steps", STEP_MISTAKES, test_steps.test_a_mistake_is_caught_and_only_by_what_is_meant_to),
    **named("centers", CENTER_MISTAKES, test_centers.test_a_mistake_is_caught_and_only_by_what_is_meant_to),
    **named(
        "mapped",
        [test_centers.AccumulatesTwice, test_centers.SequencesIgnored],
        test_centers.test_a_mistake_at_a_mapped_center_is_caught,
    ),
    **named("sessions", [FilledTooSoon, NeverTold], test_sessions.test_a_planted_mistake_is_found),
    **named("elastic", ELASTIC_MISTAKES, test_elastic.test_a_planted_mistake_is_found),
    **named("runs", RUN_MISTAKES, test_runs.test_a_planted_mistake_is_found),
    **named("box", test_box.MISTAKES, in_box),
}


def is_caught(check: Check) -> bool:
    try:
        check()
    except (Exception, pytest.fail.Exception):
        return False
    return True


def main() -> int:
    caught = {name: is_caught(check) for name, check in CHECKS.items()}
    for name, is_found in caught.items():
        print(f"{name}: {'caught' if is_found else 'MISSED'}")
    print(f"{sum(caught.values())} of {len(caught)} planted mistakes caught")
    return int(sum(caught.values()) < SHARE_CAUGHT * len(caught))


if __name__ == "__main__":
    sys.exit(main())
