"""Records reach every rank whole and in their round, however fast ranks are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from samovar.collectives.engine import RecordExchange
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.transports.shm import ShmTransport

MakeTransports = Callable[[int], list[ShmTransport]]
TIMEOUT_S = 30.0
NUM_ROUNDS = 50


def record(rank: int, round_number: int) -> list[float]:
    return [rank + 0.5, round_number / 3, float(rank * 1000 + round_number)]


def spin(generator: np.random.Generator) -> None:
    """Be faster or slower than the others, now and then much slower."""
    turns = int(generator.integers(0, 400)) * (20 if generator.random() < 0.1 else 1)
    for _ in range(turns):
        pass


def exchange(transport: ShmTransport) -> list[np.ndarray]:
    """As training does: post round s, collect it after the work of round s + 1."""
    rank = transport.group.rank
    generator = np.random.default_rng(rank)
    records = RecordExchange(transport, 3)
    collected = []
    for round_number in range(NUM_ROUNDS):
        spin(generator)
        if round_number > 0:
            collected.append(records.collect(Deadline.after(TIMEOUT_S)))
        records.post(record(rank, round_number))
    collected.append(records.collect(Deadline.after(TIMEOUT_S)))
    return collected


@pytest.mark.parametrize("world_size", range(1, 6))
def test_every_rank_collects_exactly_what_all_posted_in_that_round(
    make_transports: MakeTransports, world_size: int
) -> None:
    transports = make_transports(world_size)
    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(exchange, transports))
    for collected in results:
        assert len(collected) == NUM_ROUNDS
        for round_number, records in enumerate(collected):
            assert records.tolist() == [record(rank, round_number) for rank in range(world_size)]
    assert [t.bytes_sent for t in transports] == [NUM_ROUNDS * (world_size - 1) * 24] * world_size


def test_collected_records_are_the_callers_own(make_transports: MakeTransports) -> None:
    records = RecordExchange(make_transports(1)[0], 3)
    records.post(record(0, 0))
    first = records.collect(Deadline.after(TIMEOUT_S))
    for round_number in (1, 2):
        records.post(record(0, round_number))
        records.collect(Deadline.after(TIMEOUT_S))
    assert first.tolist() == [record(0, 0)]


def test_posting_and_collecting_take_turns(make_transports: MakeTransports) -> None:
    records = RecordExchange(make_transports(1)[0], 2)
    with pytest.raises(AssertionError, match="post a record first"):
        records.collect(Deadline.after(TIMEOUT_S))
    records.post([1.0, 2.0])
    with pytest.raises(AssertionError, match="collect the previous records first"):
        records.post([1.0, 2.0])
    records.collect(Deadline.after(TIMEOUT_S))
    with pytest.raises(AssertionError):
        records.post([1.0])


def test_a_rank_that_posts_nothing_is_named(make_transports: MakeTransports) -> None:
    transports = make_transports(3)
    exchanges = [RecordExchange(transport, 1) for transport in transports]
    exchanges[0].post([1.0])
    exchanges[1].post([2.0])
    with pytest.raises(DeadlineExceeded, match="rank 0: rank 2 did not notify slot 2 of window 'records'"):
        exchanges[0].collect(Deadline.after(0.01))
    exchanges[2].post([3.0])
    assert exchanges[0].collect(Deadline.after(TIMEOUT_S)).tolist() == [[1.0], [2.0], [3.0]]
