"""The order of samples: every record once an epoch, for any number of workers."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.data.order import SampleOrder, below, member_portions, sample_draws, sample_indices, shares


@given(
    order=st.builds(SampleOrder, st.integers(1, 60), st.integers(-1, 2**63), st.booleans()),
    world_size=st.integers(1, 9),
    extra=st.integers(0, 40),
    num_epochs=st.integers(1, 4),
)
def test_ranks_together_read_every_record_once_an_epoch(
    order: SampleOrder, world_size: int, extra: int, num_epochs: int
) -> None:
    num_samples = order.num_samples
    global_batch = world_size + extra
    num_steps = -(-num_epochs * num_samples // global_batch)
    read = [
        index
        for step in range(num_steps)
        for start, count in shares(global_batch, world_size)
        for index in sample_indices(order, step * global_batch + start, count).tolist()
    ]
    for epoch in range(num_epochs):
        assert Counter(read[epoch * num_samples : (epoch + 1) * num_samples]) == Counter(range(num_samples))


@given(
    num_samples=st.integers(1, 30),
    start=st.integers(0, 10**12),
    count=st.integers(0, 90),
    cut=st.integers(0, 90),
    shuffled=st.booleans(),
)
def test_a_run_of_samples_is_its_pieces(num_samples: int, start: int, count: int, cut: int, shuffled: bool) -> None:
    order = SampleOrder(num_samples, 3, shuffled)
    cut = min(cut, count)
    pieces = [sample_indices(order, start, cut), sample_indices(order, start + cut, count - cut)]
    np.testing.assert_array_equal(np.concatenate(pieces), sample_indices(order, start, count))


def test_sequential_order_is_the_stored_order_and_wraps() -> None:
    np.testing.assert_array_equal(sample_indices(SampleOrder(5), 3, 9), [3, 4, 0, 1, 2, 3, 4, 0, 1])


def test_shuffled_order_differs_by_epoch_and_by_seed() -> None:
    first, second = (sample_indices(SampleOrder(100, 1, True), epoch * 100, 100) for epoch in range(2))
    other = sample_indices(SampleOrder(100, 2, True), 0, 100)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_shuffled_order_is_fixed_for_all_time() -> None:
    np.testing.assert_array_equal(sample_indices(SampleOrder(8, 1, True), 0, 8), [4, 0, 5, 6, 2, 7, 3, 1])


@given(global_batch=st.integers(1, 10**6), world_size=st.integers(1, 200))
def test_shares_are_contiguous_and_even(global_batch: int, world_size: int) -> None:
    if global_batch < world_size:
        with pytest.raises(InputError, match=f"{global_batch} samples cannot be shared by {world_size} workers"):
            shares(global_batch, world_size)
        return
    slices = shares(global_batch, world_size)
    assert len(slices) == world_size
    stops = [start + count for start, count in slices]
    assert [start for start, _ in slices] == [0, *stops[:-1]]
    assert stops[-1] == global_batch
    counts = [count for _, count in slices]
    assert max(counts) - min(counts) <= 1


@given(seed=st.integers(-1, 2**64), start=st.integers(0, 2**62), skip=st.integers(0, 20))
def test_draws_of_a_sample_do_not_depend_on_where_reading_starts(seed: int, start: int, skip: int) -> None:
    np.testing.assert_array_equal(sample_draws(seed, start, 25)[skip:], sample_draws(seed, start + skip, 25 - skip))


def test_draws_differ_between_samples_seeds_and_columns() -> None:
    draws = np.concatenate([sample_draws(seed, 0, 1000) for seed in (0, 1)])
    assert len(np.unique(draws)) == draws.size


def test_below_covers_the_range_evenly() -> None:
    counts = np.bincount(below(sample_draws(5, 0, 20_000)[:, 0], 7))
    assert len(counts) == 7
    assert np.all(abs(counts - 20_000 / 7) < 5 * np.sqrt(20_000 / 7))
    edges = np.array([0, 2**64 - 1], np.uint64)
    np.testing.assert_array_equal(below(edges, 7), [0, 6])


@pytest.mark.parametrize("shuffled", [False, True])
def test_each_member_reads_every_record_once_an_epoch_in_an_order_of_its_own(shuffled: bool) -> None:
    num_samples, batch = 60, 12
    order = SampleOrder(num_samples, 1, shuffled)
    orders = []
    for index in range(8):
        portions = member_portions(Group(0, 1), batch, index, num_samples)
        runs = [sample_indices(order, *portions.at(number)) for number in range(num_samples // batch)]
        orders.append(tuple(np.concatenate(runs).tolist()))
        if not shuffled:
            assert Counter(orders[-1]) == Counter(range(num_samples))
    assert len(set(orders)) == len(orders)
    assert orders[0] == tuple(sample_indices(order, 0, num_samples))  # as a run of one worker has it
    if not shuffled:
        places = sorted(order[0] for order in orders)
        assert min(np.diff([*places, num_samples])) >= num_samples // 16  # nobody follows on another's heels


def test_samples_that_layers_make_differ_between_members() -> None:
    starts = [member_portions(Group(0, 1), 12, index, 0).at(0)[0] for index in range(8)]
    assert len(set(starts)) == len(starts)


def test_members_of_a_launch_that_shares_a_batch_read_their_share_of_it() -> None:
    assert [member_portions(Group(rank, 2), 9, 0, 60).at(3) for rank in range(2)] == [(15, 5), (12, 4)]
