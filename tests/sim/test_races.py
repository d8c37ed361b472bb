"""The race finder: what is ordered by notifications passes in every schedule, what is not is found in every one."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from samovar.transports.base import Notification
from samovar.transports.sim.races import Race
from samovar.transports.sim.window import SimWindow
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

SHARE = np.ones(8, np.uint8)
Step = Callable[[SimTransport, SimWindow], None]


def put(transport: SimTransport, window: SimWindow) -> None:
    window.put(1, 0, SHARE, Notification(0, 1))


def put_beside(transport: SimTransport, window: SimWindow) -> None:
    window.put(1, 8, SHARE)


def put_half(transport: SimTransport, window: SimWindow) -> None:
    window.put(1, 4, SHARE)


def awaited(transport: SimTransport, window: SimWindow) -> None:
    window.wait(0, 1, 0, transport.deadline(math.inf))


def told(transport: SimTransport, window: SimWindow) -> None:
    window.notify(0, Notification(1, 1))


def told_first(transport: SimTransport, window: SimWindow) -> None:
    window.wait(1, 1, 1, transport.deadline(math.inf))


def read(transport: SimTransport, window: SimWindow) -> None:
    transport.note(window.local[:8], writes=False, verb="reading")


def write(transport: SimTransport, window: SimWindow) -> None:
    transport.note(window.local[:8], writes=True, verb="writing")


def get(transport: SimTransport, window: SimWindow) -> None:
    window.get(1, 0, np.zeros(8, np.uint8))


def atomic(transport: SimTransport, window: SimWindow) -> None:
    window.fetch_add(1, 16, 1)


def run(seed: int, *of_ranks: list[Step]) -> None:
    def program(transport: SimTransport) -> None:
        window = transport.open_window("data", 24, 2)
        for step in of_ranks[transport.group.rank]:
            step(transport, window)

    simulate(program, len(of_ranks), SimConfig(seed, max_delay_s=1.0))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([put], [awaited, read, write]),
        ([told_first, put], [write, read, told, awaited, read]),
        ([put_beside], [write, read]),
        ([put, put_half], [awaited]),
        ([told_first, get], [write, told, read]),
        ([atomic], [atomic]),
    ],
)
def test_what_is_ordered_passes(seed: int, first: list[Step], second: list[Step]) -> None:
    run(seed, first, second)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([put], [read]),
        ([put], [write]),
        ([put], [read, awaited]),
        ([told_first, put], [told, read]),
        ([put, put_half], [awaited, read]),
        ([get], [write]),
    ],
)
def test_what_is_not_ordered_is_found_in_every_schedule(seed: int, first: list[Step], second: list[Step]) -> None:
    with pytest.raises(Race, match="window 'data' on rank 1"):
        run(seed, first, second)


@pytest.mark.parametrize("seed", range(5))
def test_two_ranks_that_put_to_one_place_race(seed: int) -> None:
    with pytest.raises(Race, match=r"rank [02]'s put .* and nothing orders it after rank [02]'s put"):
        run(seed, [put], [], [put])


def test_what_orders_two_accesses_may_go_through_a_third_rank() -> None:
    def tell_third(transport: SimTransport, window: SimWindow) -> None:
        window.notify(2, Notification(0, 1))

    run(0, [put_beside, tell_third], [], [awaited, put_beside])


def test_an_atomic_orders_what_was_before_it_on_one_rank_with_what_comes_after_on_another() -> None:
    def second_after_first(transport: SimTransport, window: SimWindow) -> None:
        while window.fetch_add(1, 16, 0) == 0:
            transport.sleep(1.0)

    run(0, [put_beside, atomic], [], [second_after_first, put_beside])
