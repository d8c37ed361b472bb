"""Records of all ranks under random delays, and what a single buffer would do."""

import math
from random import Random

import pytest

from samovar.collectives.engine import RecordExchange
from samovar.transports.sim.races import Race
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

NUM_ROUNDS = 6
MAX_DELAY_S = 1e-3


class SingleBuffered(RecordExchange):
    """Posts every record where the one before lies."""

    def __init__(self, transport, num_fields):
        super().__init__(transport, num_fields)
        self._regions = [self._regions[0]] * 2


def run_seed(seed: int, world_size: int, kind: type[RecordExchange]) -> list[list[list[list[float]]]]:
    """The collected rows of each rank, round by round, as training does: post, compute, collect."""

    def program(transport: SimTransport) -> list[list[list[float]]]:
        exchange = kind(transport, 2)
        pauses = Random(seed * world_size + transport.group.rank)
        collected = []
        for round_number in range(NUM_ROUNDS):
            exchange.post([transport.group.rank, round_number])
            transport.sleep(MAX_DELAY_S * pauses.random())
            records = exchange.collect(transport.deadline(math.inf))
            transport.note(exchange._regions[round_number % 2].array, writes=False, verb="collecting")
            collected.append(records.tolist())
        return collected

    return simulate(program, world_size, SimConfig(seed, max_delay_s=MAX_DELAY_S)).results


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 9])
def test_every_rank_collects_what_all_posted_in_that_round(world_size: int) -> None:
    wanted = [[[rank, round_number] for rank in range(world_size)] for round_number in range(NUM_ROUNDS)]
    for seed in range(20):
        assert run_seed(seed, world_size, RecordExchange) == [wanted] * world_size


def test_a_single_buffer_is_overwritten_before_it_is_collected() -> None:
    for seed in range(5):
        with pytest.raises(Race, match="of window 'records'"):
            run_seed(seed, 3, SingleBuffered)
