"""`--bucket auto`: the cut is the best there is under its model, whatever the net and the machine."""

from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.strategies.bucketing import ExchangeModel, least_exposed

# Sizes and times of nets, zeros included: a weight's gradient is final with its bias's.
parameters = st.lists(
    st.tuples(st.integers(1, 1 << 26), st.one_of(st.just(0.0), st.floats(1e-7, 1.0))), min_size=1, max_size=40
)
models = st.builds(
    ExchangeModel,
    latency_s=st.one_of(st.just(0.0), st.floats(1e-7, 0.1)),
    bytes_per_s=st.floats(1e6, 1e11),
    hidden_fraction=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0)),
)
Rows = list[tuple[int, float]]


def columns(rows: Rows) -> tuple[list[int], list[float]]:
    return [size for size, _ in rows], [seconds for _, seconds in rows]


def every_cut(count: int) -> list[tuple[int, ...]]:
    """All ways to divide `count` parameters into runs."""
    found = []
    for num_borders in range(count):
        for borders in combinations(range(1, count), num_borders):
            stops = (0, *borders, count)
            found.append(tuple(b - a for a, b in pairwise(stops)))
    return found


def end_s(
    lengths: Sequence[int], sizes_bytes: Sequence[int], backward_s: Sequence[float], model: ExchangeModel
) -> float:
    """When the last exchange of such buckets ends, by the definition of `least_exposed`."""
    bytes_before = list(accumulate(sizes_bytes, initial=0))
    finals_s = list(accumulate(backward_s, initial=0.0))
    last_s = 0.0
    for first, stop in pairwise(accumulate(lengths, initial=0)):
        seconds = model.latency_s + (bytes_before[stop] - bytes_before[first]) / model.bytes_per_s
        last_s = max(last_s, model.hidden_fraction * finals_s[stop]) + seconds
    return last_s


def exposed_s(
    lengths: Sequence[int], sizes_bytes: Sequence[int], backward_s: Sequence[float], model: ExchangeModel
) -> float:
    """How long after the end of the backward pass the last exchange ends."""
    return end_s(lengths, sizes_bytes, backward_s, model) - model.hidden_fraction * sum(backward_s)


@given(parameters, models)
def test_every_parameter_is_in_one_bucket(rows: Rows, model: ExchangeModel) -> None:
    lengths = least_exposed(*columns(rows), model)
    assert sum(lengths) == len(rows)
    assert all(length > 0 for length in lengths)


@given(parameters, models)
def test_it_is_never_worse_than_the_two_extremes(rows: Rows, model: ExchangeModel) -> None:
    sizes, backward_s = columns(rows)
    found_s = exposed_s(least_exposed(sizes, backward_s, model), sizes, backward_s, model)
    assert found_s <= exposed_s([len(rows)], sizes, backward_s, model)
    assert found_s <= exposed_s([1] * len(rows), sizes, backward_s, model)


@given(st.lists(st.tuples(st.integers(1, 1 << 26), st.floats(0, 1.0)), min_size=1, max_size=10), models)
def test_it_is_the_best_of_all_cuts_with_the_fewest_buckets(rows: Rows, model: ExchangeModel) -> None:
    sizes, backward_s = columns(rows)
    lengths = least_exposed(sizes, backward_s, model)
    # Of ends that differ by a rounding, what is exposed may be the same number.
    costs = [(end_s(cut, sizes, backward_s, model), len(cut)) for cut in every_cut(len(rows))]
    assert (end_s(lengths, sizes, backward_s, model), len(lengths)) == min(costs)


@given(parameters, models)
def test_with_nothing_hidden_one_bucket_is_best(rows: Rows, model: ExchangeModel) -> None:
    without = ExchangeModel(model.latency_s, model.bytes_per_s, 0.0)
    lengths = least_exposed(*columns(rows), without)
    if model.latency_s:
        assert len(lengths) == 1
    sizes, backward_s = columns(rows)
    assert exposed_s(lengths, sizes, backward_s, without) == pytest.approx(
        len(lengths) * model.latency_s + sum(sizes) / model.bytes_per_s
    )


def test_a_case_counted_by_hand() -> None:
    """Backward ends at 6 s. 2 + 1 bytes may go before; the last waits for the end: 6 + 1 + 1 s."""
    model = ExchangeModel(latency_s=1.0, bytes_per_s=1.0, hidden_fraction=1.0)
    sizes, backward_s = [2, 1, 1], [1.0, 1.0, 4.0]
    assert exposed_s([3], sizes, backward_s, model) == 5.0
    assert exposed_s([2, 1], sizes, backward_s, model) == 2.0
    assert exposed_s([1, 1, 1], sizes, backward_s, model) == 2.0
    assert least_exposed(sizes, backward_s, model) == (2, 1)


def test_half_of_the_pace_counts_half_of_the_time() -> None:
    """The first exchange may start at 1 s and has 3 s to do 2 s of work at half the pace: it ends 0.5 s too late."""
    model = ExchangeModel(latency_s=0.0, bytes_per_s=1.0, hidden_fraction=0.5)
    assert exposed_s([1, 1], [2, 1], [1.0, 3.0], model) == pytest.approx(0.5 + 1)


def test_no_parameters_no_buckets() -> None:
    assert least_exposed([], [], ExchangeModel(1e-6, 1e9, 1.0)) == ()
