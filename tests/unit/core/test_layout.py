"""Layouts and their buckets, for any set of parameters."""

from itertools import pairwise
from math import prod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.layout import ALIGNMENT_ELEMENTS, Layout, ParameterSpec

LINE_BYTES = 64

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)
layouts = st.lists(st.tuples(shapes, st.booleans()), max_size=12).map(
    lambda rows: Layout.pack(
        ParameterSpec(f"p{k}", shape, channels_last and len(shape) == 4)
        for k, (shape, channels_last) in enumerate(rows)
    )
)


@given(layouts)
def test_parameters_are_aligned_in_order_without_overlap_or_waste(layout: Layout) -> None:
    end = 0
    for entry in layout.entries:
        assert entry.offset * 4 % LINE_BYTES == 0
        assert 0 <= entry.offset - end < ALIGNMENT_ELEMENTS
        assert entry.stop - entry.offset == prod(entry.spec.shape)
        end = entry.stop
    assert 0 <= layout.num_elements - end < ALIGNMENT_ELEMENTS
    assert layout.num_elements % ALIGNMENT_ELEMENTS == 0


@given(layouts, st.none() | st.integers(1, 20_000))
def test_buckets_partition_all_parameters_in_order(layout: Layout, bucket_size_bytes: int | None) -> None:
    buckets = layout.buckets(bucket_size_bytes)
    assert tuple(entry for bucket in buckets for entry in bucket.entries) == layout.entries
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
    assert all(bucket.entries for bucket in buckets)
    bounds = [bound for bucket in buckets for bound in (bucket.start, bucket.stop)]
    assert bounds[::2] == [0, *bounds[1:-1:2]][: len(buckets)], "one starts where the other ends"
    assert (bounds[-1] if bounds else 0) == layout.num_elements
    for bucket in buckets:
        assert bucket.size == bucket.stop - bucket.start
        assert bucket.start * 4 % LINE_BYTES == 0
        assert all(bucket.start <= entry.offset and entry.stop <= bucket.stop for entry in bucket.entries)


@given(layouts, st.integers(1, 20_000))
def test_a_bucket_is_as_large_as_asked_and_no_parameter_larger(layout: Layout, bucket_size_bytes: int) -> None:
    buckets = layout.buckets(bucket_size_bytes)
    for bucket in buckets[:-1]:
        assert bucket.size * 4 >= bucket_size_bytes
    for bucket in buckets:
        without_last = bucket.entries[-1].offset - bucket.start
        assert len(bucket.entries) == 1 or without_last * 4 < bucket_size_bytes


def test_the_two_extremes() -> None:
    layout = Layout.pack([ParameterSpec("a", (3,)), ParameterSpec("b", (17,)), ParameterSpec("c", (16,))])
    assert [entry.offset for entry in layout.entries] == [0, 16, 48]
    assert [(b.start, b.stop) for b in layout.buckets()] == [(0, 64)]
    assert [(b.start, b.stop) for b in layout.buckets(1)] == [(0, 16), (16, 48), (48, 64)]
    assert Layout.pack([]).buckets() == ()


def test_a_bucket_of_just_less_than_asked_takes_one_more() -> None:
    layout = Layout.pack(ParameterSpec(f"p{k}", (16,)) for k in range(4))
    assert [b.size for b in layout.buckets(64)] == [16, 16, 16, 16]
    assert [b.size for b in layout.buckets(65)] == [32, 32]


A, B = ParameterSpec("a", (2, 3, 1, 1)), ParameterSpec("b", (5,))


@pytest.mark.parametrize(
    "other",
    [
        [B, A],
        [A],
        [A, B, ParameterSpec("c", ())],
        [ParameterSpec("a", (2, 3, 1, 1), channels_last=True), B],
        [ParameterSpec("a", (3, 2, 1, 1)), B],
        [A, ParameterSpec("b'", (5,))],
    ],
)
def test_the_fingerprint_tells_layouts_apart(other: list[ParameterSpec]) -> None:
    assert Layout.pack(other).fingerprint() != Layout.pack([A, B]).fingerprint()


def test_equal_layouts_have_equal_fingerprints() -> None:
    assert Layout.pack([A, B]).fingerprint() == Layout.pack(iter([A, B])).fingerprint()


@given(layouts, st.randoms(use_true_random=False))
def test_a_cut_has_every_learned_parameter_once_in_order(layout: Layout, random: Random) -> None:
    lengths, left = [], len(layout.learned)
    while left:
        lengths.append(random.randint(1, left))
        left -= lengths[-1]
    buckets = layout.cut(lengths)
    assert [len(bucket.entries) for bucket in buckets] == lengths
    assert tuple(entry for bucket in buckets for entry in bucket.entries) == layout.learned
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
    assert all(first.stop == second.start for first, second in pairwise(buckets))
