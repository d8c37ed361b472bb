"""Encoded all-reduces: any plan, any codec; equal bits on all ranks, and nothing is lost."""

import math
from functools import partial
from random import Random

import numpy as np
import pytest

from samovar.collectives.cost import cost
from samovar.collectives.encoded import CODECS, Codec, EncodedChannel, completed_cells, encodable
from samovar.collectives.execute import Channel
from samovar.collectives.plan import PlanFunction, Put
from samovar.collectives.plans import ALL_REDUCES, halving_doubling_all_reduce, two_level
from samovar.core.clock import Deadline
from samovar.transports.base import Region, Transport
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.unit.strategies.harness import on_threads

SIZE, NUM_RUNS = 1500, 3
PLANS: dict[str, PlanFunction] = {name: encodable(name, 0) for name in ALL_REDUCES} | {
    "two-level": two_level(2),
    "two-level halving": two_level(2, between=halving_doubling_all_reduce),
}
Found = tuple[list[np.ndarray], list[np.ndarray], list[int]]


def share(rank: int, run: int) -> np.ndarray:
    """Whole numbers: sums and differences of them are exact, and so is what bf16 and top-k make of them."""
    return np.random.default_rng([rank, run]).integers(-9999, 9999, SIZE).astype(np.float32)


def take_part(plan: str, codec: str, transport: Transport, deadline: Deadline) -> Found:
    """After each run the result, and what this rank left out; and the bytes it sent."""
    window = transport.open_window("gradients", SIZE * 4, 0)
    buffer = Region.of(window, 0, SIZE, np.float32)
    channel = EncodedChannel("sum", PLANS[plan], transport, buffer, Codec(codec))
    results, left_out, sent = [], [], []
    for run in range(NUM_RUNS):
        buffer.array[:] = share(transport.group.rank, run)
        before = transport.bytes_sent
        channel.run(deadline)
        sent.append(transport.bytes_sent - before)
        results.append(buffer.array.copy())
        residual = channel.residual.copy()
        buffer.array[:] = 0
        channel.give_back()
        assert not channel.residual.any()
        assert np.array_equal(buffer.array, residual)
        left_out.append(residual)
        channel.residual[:] = residual
    return results, left_out, sent


def simulated(plan: str, codec: str, world_size: int, seed: int) -> list[Found]:
    def program(transport: SimTransport) -> Found:
        transport.sleep(1e-3 * Random(seed + transport.group.rank).random())
        return take_part(plan, codec, transport, transport.deadline(math.inf))

    return simulate(program, world_size, SimConfig(seed, max_delay_s=1e-3)).results


@pytest.mark.parametrize("world_size", range(1, 10))
@pytest.mark.parametrize("plan", PLANS)
def test_each_sum_is_completed_by_one_rank(plan: str, world_size: int) -> None:
    plans = [PLANS[plan](rank, world_size) for rank in range(world_size)]
    completed = [cell for rank in range(world_size) for cell in completed_cells(plans, rank)]
    assert sorted(completed) == list(range(plans[0].num_cells))


@pytest.mark.parametrize("world_size", range(1, 10))
@pytest.mark.parametrize("plan", PLANS)
def test_each_rank_encodes_each_element_once(plan: str, world_size: int) -> None:
    """So a residual in the order of the buffer belongs to it on any plan."""
    plans = [PLANS[plan](rank, world_size) for rank in range(world_size)]
    for rank, own in enumerate(plans):
        puts = [one for one in own.operations if isinstance(one, Put) and one.staging is not None]
        cells = [own.cell_bounds(cell, SIZE) for cell in completed_cells(plans, rank)]
        encoded = sorted([*cells, *(own.chunk_bounds(put.chunk, SIZE) for put in puts)])
        assert [element for bounds in encoded for element in range(*bounds)] == list(range(SIZE))


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("plan", PLANS)
def test_results_are_equal_everywhere_and_every_time(plan: str, codec: str, world_size: int) -> None:
    found = simulated(plan, codec, world_size, seed=1)
    again = simulated(plan, codec, world_size, seed=2)
    for run in range(NUM_RUNS):
        assert len({results[run].tobytes() for results, _, _ in (*found, *again)}) == 1
    for one, other in zip(found, again, strict=True):
        assert [part.tobytes() for part in one[1]] == [part.tobytes() for part in other[1]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("plan", PLANS)
def test_nothing_is_lost(plan: str, codec: str, world_size: int) -> None:
    """Result + what was left out = inputs + what was left out before; exactly, where arithmetic is."""
    found = simulated(plan, codec, world_size, seed=3)
    before = np.zeros(SIZE)
    for run in range(NUM_RUNS):
        left_out = np.sum([left[run].astype(np.float64) for _, left, _ in found], axis=0)
        total = sum(share(rank, run).astype(np.float64) for rank in range(world_size)) + before
        tolerance = 0.0 if codec in ("bf16", "top-k") else 0.1
        np.testing.assert_allclose(found[0][0][run] + left_out, total, rtol=0, atol=tolerance)
        before = left_out
    assert np.abs(before).max() > 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("plan", PLANS)
def test_bytes_are_those_of_the_cost_model(plan: str, codec: str) -> None:
    for world_size in (2, 3, 4):
        plans = [PLANS[plan](rank, world_size) for rank in range(world_size)]
        documented = cost(plans, SIZE, message_bytes=Codec(codec).message_bytes)
        found = simulated(plan, codec, world_size, seed=4)
        assert tuple(sent[-1] for _, _, sent in found) == documented.bytes_sent
        assert sum(documented.bytes_sent) < 0.6 * sum(cost(plans, SIZE).bytes_sent)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("plan", PLANS)
def test_shared_memory_gives_the_same_bits(plan: str, codec: str) -> None:
    in_threads = on_threads(3, lambda transport: take_part(plan, codec, transport, Deadline.after(30.0)))
    for (results, left, sent), other in zip(in_threads, simulated(plan, codec, 3, seed=5), strict=True):
        for arrays, others in ((results, other[0]), (left, other[1])):
            assert [array.tobytes() for array in arrays] == [array.tobytes() for array in others]
        assert sent == other[2]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_the_direct_plan_in_messages_sums_without_codec_too(world_size: int) -> None:
    def program(transport: SimTransport) -> None:
        rank, window = transport.group.rank, transport.open_window("data", SIZE * 4, 0)
        buffer = Region.of(window, 0, SIZE, np.float32)
        channel = Channel("sum", encodable("direct", world_size)(rank, world_size), transport, buffer)
        for run in range(NUM_RUNS):
            buffer.array[:] = share(rank, run)
            channel.run(transport.deadline(math.inf))
            assert np.array_equal(buffer.array, sum(share(peer, run) for peer in range(world_size)))

    for seed in range(5):
        simulate(partial(program), world_size, SimConfig(seed, max_delay_s=1e-3))
