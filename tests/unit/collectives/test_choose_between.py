"""`--collective auto` over a network: what is predicted, and what is chosen."""

import math

import pytest

from samovar.collectives.cost import choose_between, cost, predicted_between_s
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.machine import NOMINAL, CalibrationRecord, TransportFigures

LATENCY_S, RATE = 1e-3, 1e6
SLOW_MESSAGES = TransportFigures(1.0, LATENCY_S, 1.0, ((1, 1e18),))
SLOW_BYTES = TransportFigures(1.0, 1e-15, 1.0, ((1, RATE),))
NO_TIME = TransportFigures(1e-15, 1e-15, 1e-15, ((1, 1e18),))
MESSAGES = [name for name in ALL_REDUCES if name != "direct"]


def hosts(link: TransportFigures, memory: TransportFigures = NO_TIME) -> CalibrationRecord:
    return CalibrationRecord("test", 64, 1, 1e-5, 1e9, 1e9, {"shm": memory, "tcp": link})


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8, 16])
def test_where_messages_are_all_that_costs_the_time_is_the_counted_steps(name: str, world_size: int) -> None:
    plans = [ALL_REDUCES[name](rank, world_size) for rank in range(world_size)]
    expected_s = cost(plans, 1024).steps * LATENCY_S
    assert predicted_between_s(hosts(SLOW_MESSAGES), name, world_size, 4096) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("name", "world_size", "buffers"),
    [
        ("ring", 2, 1.0),  # half there, half back, both ways at once
        ("ring", 4, 1.5),
        ("halving-doubling", 4, 1.5),
        ("halving-doubling", 3, 3.5),  # a buffer and a half over one link, a half both ways, a half, a sum
        ("tree", 4, 4.0),  # two over the root's link, then two links of the way down
        ("server", 4, 6.0),  # three over rank 0's link, and three back
        ("kary-tree", 4, 6.0),  # the same: it has three children
    ],
)
def test_where_bytes_are_all_that_costs_links_are_shared_one_after_the_other(
    name: str, world_size: int, buffers: float
) -> None:
    num_bytes = 12 << 16
    seconds = predicted_between_s(hosts(SLOW_BYTES), name, world_size, num_bytes)
    assert seconds == pytest.approx(buffers * num_bytes / RATE, rel=1e-6)


def test_sums_take_the_time_of_memory() -> None:
    """Two ranks: half a buffer is read twice and written once."""
    seconds = predicted_between_s(hosts(NO_TIME, SLOW_BYTES), "ring", 2, 1 << 20)
    assert seconds == pytest.approx(3 / 2 * (1 << 19) / RATE, rel=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 31])
@pytest.mark.parametrize("num_bytes", [0, 4, 4096, 28 << 20])
def test_nothing_is_predicted_to_be_faster_than_the_choice(world_size: int, num_bytes: int) -> None:
    times = {name: predicted_between_s(NOMINAL, name, world_size, num_bytes) for name in MESSAGES}
    assert times[choose_between(NOMINAL, world_size, num_bytes)] == min(times.values())
    assert all(math.isfinite(seconds) for seconds in times.values())


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8, 16])
def test_large_buffers_take_a_plan_that_sends_least(world_size: int) -> None:
    chosen = choose_between(NOMINAL, world_size, 28 << 20)
    assert chosen in (("ring", "halving-doubling") if world_size & (world_size - 1) == 0 else ("ring",))
