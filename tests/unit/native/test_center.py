"""The center against its definition in float64 and, bit for bit, in NumPy; files that are no center."""

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from samovar import _native
from samovar.box.mapped import create_center
from samovar.core.host import create_empty, seal
from tests.unit.native.numbers import wild

Floats = npt.NDArray[np.float32]
Make = Callable[..., list[_native.Center]]
CHUNK = 64
SIZES = (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 1000)
TIMEOUT_S = 30.0


@pytest.fixture
def make() -> Iterator[Make]:
    """make(num_elements, num_members, ...) gives a member each of one center, with mappings of their own."""
    made: list[_native.Center] = []

    def make(size: int, members: int = 1, **settings: bool) -> list[_native.Center]:
        descriptor = create_center(size, 4, chunk_elements=CHUNK, takes_any=True, **settings)
        centers = [_native.Center(descriptor) for _ in range(members)]
        os.close(descriptor)
        for member, center in enumerate(centers):
            center.attach(member, member + 1)
        made.extend(centers)
        return centers

    yield make
    for center in made:
        center.close()


def versions(center: _native.Center) -> npt.NDArray[np.int64]:
    return np.full(center.num_chunks, -7)


def read(center: _native.Center, is_velocity: bool = False) -> Floats:
    values = np.empty(center.num_elements, np.float32)
    assert center.read(0, values, is_velocity, versions(center), TIMEOUT_S)
    return values


def assert_same_bits(found: Floats, wanted: Floats) -> None:
    assert found.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)  # not-a-numbers are equal here
    assert (np.signbit(found) == np.signbit(wanted))[~np.isnan(found)].all()


@pytest.mark.parametrize("with_locks", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_accumulate_to_the_bit(make: Make, size: int, with_locks: bool) -> None:
    one, two = make(size, 2, with_locks=with_locks)
    c, d, e = (wild(seed, size, np.float32) for seed in range(3))
    one.write(0, c, False)
    assert one.accumulate(0, 1, d, 0.0, versions(one), TIMEOUT_S)
    assert two.accumulate(0, 1, e, 0.0, versions(two), TIMEOUT_S)
    with np.errstate(all="ignore"):
        assert_same_bits(read(one), (c + d) + e)


@pytest.mark.parametrize("with_locks", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_accumulate_with_momentum_to_the_bit(make: Make, size: int, with_locks: bool) -> None:
    (center,) = make(size, with_locks=with_locks, with_velocity=True)
    c, v, d = (wild(seed, size, np.float32) for seed in range(3))
    center.write(0, c, False)
    center.write(0, v, True)
    assert center.accumulate(0, 1, d, 0.9, versions(center), TIMEOUT_S)
    with np.errstate(all="ignore"):
        v = np.float32(0.9) * v + d
        assert_same_bits(read(center, True), v)
        assert_same_bits(read(center), c + v)
    # Without momentum the velocity goes along.
    assert center.accumulate(0, 2, d, 0.0, versions(center), TIMEOUT_S)
    assert_same_bits(read(center, True), v)


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("with_locks", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_exchange_to_the_bit(make: Make, size: int, with_locks: bool, into: bool) -> None:
    """The same bits as the other elastic kernels: d = rate (x - c), rounded three times."""
    (center,) = make(size, with_locks=with_locks)
    c, x = wild(0, size, np.float32), wild(1, size, np.float32)
    center.write(0, c, False)
    pulled, difference = x.copy(), np.empty_like(x)
    _native.elastic_pull(pulled, c, difference, 0.18)
    moved, given = np.empty_like(x), x.copy()
    if into:
        assert center.exchange_into(0, 1, given, moved, 0.18, versions(center), TIMEOUT_S)
        assert_same_bits(given, x)
        assert_same_bits(moved, pulled)
    else:
        assert center.exchange(0, 1, given, 0.18, versions(center), TIMEOUT_S)
        assert_same_bits(given, pulled)
    with np.errstate(all="ignore"):
        assert_same_bits(read(center), c + difference)


def test_a_run_of_updates_against_float64(make: Make) -> None:
    size, rate, momentum = 777, 0.3, 0.75
    members = make(size, 3, with_velocity=True)
    random = np.random.default_rng(5)
    c, v = np.zeros(size), np.zeros(size)
    weights = [random.standard_normal(size).astype(np.float32) for _ in members]
    x = [own.astype(np.float64) for own in weights]
    for sequence in range(1, 30):
        for rank, member in enumerate(members):
            d = random.standard_normal(size).astype(np.float32)
            v = momentum * v + d
            c = c + v
            assert member.accumulate(0, 2 * sequence, d, momentum, versions(member), TIMEOUT_S)
            step = rate * (x[rank] - c)
            x[rank], c = x[rank] - step, c + step
            assert member.exchange(0, 2 * sequence + 1, weights[rank], rate, versions(member), TIMEOUT_S)
    np.testing.assert_allclose(read(members[0]), c, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(weights, x, rtol=1e-4, atol=1e-4)


def test_versions_count_the_updates_of_each_chunk(make: Make) -> None:
    one, two = make(3 * CHUNK + 5, 2)
    found = versions(one)
    for sequence in (1, 2):
        assert one.accumulate(0, sequence, np.ones(3 * CHUNK + 5, np.float32), 0.0, found, TIMEOUT_S)
        np.testing.assert_array_equal(found, sequence)
    assert two.accumulate(2, 1, np.ones(CHUNK + 5, np.float32), 0.0, found[:2], TIMEOUT_S)
    np.testing.assert_array_equal(found[:2], 3)
    assert one.read(0, np.empty(3 * CHUNK + 5, np.float32), False, found, TIMEOUT_S)
    assert found.tolist() == [2, 2, 3, 3]


@pytest.mark.parametrize("with_locks", [True, False])
def test_a_sequence_counts_once_in_each_chunk(make: Make, with_locks: bool) -> None:
    size = 3 * CHUNK
    one, two = make(size, 2, with_locks=with_locks)
    ones, found = np.ones(size, np.float32), versions(one)
    # A part first, as an operation leaves it that gave up; then all of it, and again, and an older one.
    assert one.accumulate(1, 5, ones[:CHUNK], 0.0, found[:1], TIMEOUT_S)
    assert two.accumulate(0, 1, ones, 0.0, versions(two), TIMEOUT_S)
    for sequence in (5, 5, 4):
        assert one.accumulate(0, sequence, ones, 0.0, found, TIMEOUT_S)
        assert found.tolist() == [2, 1, 2]  # the versions that this update made
    assert (read(one) == 2).all()
    assert one.entry(1, 0) == (1, 5, 1)
    assert one.entry(1, 1) == (2, 1, 2)
    assert one.entry(1, 3) == (0, 0, 0)


@pytest.mark.parametrize("into", [False, True])
def test_an_exchange_that_was_made_is_not_made_again(make: Make, into: bool) -> None:
    size = 2 * CHUNK
    (center,) = make(size)
    center.write(0, np.zeros(size, np.float32), False)
    x = np.ones(size, np.float32)
    moved = np.zeros(size, np.float32)

    def exchange(start: int, stop: int) -> None:
        part = x[start * CHUNK : stop * CHUNK]
        if into:
            places = (part, moved[start * CHUNK : stop * CHUNK])
            assert center.exchange_into(start, 1, *places, 0.25, versions(center)[start:stop], TIMEOUT_S)
        else:
            assert center.exchange(start, 1, part, 0.25, versions(center)[start:stop], TIMEOUT_S)

    exchange(1, 2)
    for _ in range(3):
        exchange(0, 2)
    assert (read(center) == 0.25).all()
    assert ((moved if into else x) == 0.75).all()


def test_another_incarnation_begins_its_own_count(make: Make) -> None:
    (first,) = make(CHUNK)
    ones = np.ones(CHUNK, np.float32)
    assert first.accumulate(0, 9, ones, 0.0, versions(first), TIMEOUT_S)
    first.close()
    with pytest.raises(RuntimeError, match="not attached"):
        first.accumulate(0, 10, ones, 0.0, versions(first), TIMEOUT_S)
    first.attach(0, 2)
    assert first.accumulate(0, 1, ones, 0.0, versions(first), TIMEOUT_S)
    assert (read(first) == 2).all()
    assert first.entry(0, 0) == (2, 1, 2)


def test_a_row_has_one_owner(make: Make) -> None:
    descriptor = create_center(CHUNK, 2, chunk_elements=CHUNK)
    one, two = _native.Center(descriptor), _native.Center(descriptor)
    os.close(descriptor)
    one.attach(0, 5)
    with pytest.raises(OSError, match=f"member 0 is process {os.getpid()}"):
        two.attach(0, 6)
    with pytest.raises(_native.Fenced, match="incarnation 5 of member 0 is here, incarnation 4 is over"):
        two.attach(0, 4)
    with pytest.raises(IndexError, match="no such member: 2 of 2"):
        two.attach(2, 1)
    with pytest.raises(ValueError, match="no such incarnation: 0"):
        two.attach(1, 0)
    one.close()
    two.attach(0, 5)  # its process has given it back: the same incarnation may go on
    two.close()


def test_operations_end_by_their_deadline(make: Make) -> None:
    (center,) = make(3 * CHUNK)
    values = np.ones(3 * CHUNK, np.float32)
    assert not center.read(0, values, False, versions(center), 0.0)
    assert not center.accumulate(0, 1, values, 0.0, versions(center), 0.0)
    assert not center.exchange(0, 1, values, 0.5, versions(center), float("nan"))
    assert (values == 1).all()
    assert (read(center) == 0).all()


def test_arrays_of_other_sizes_and_types_are_refused(make: Make) -> None:
    (center,) = make(3 * CHUNK + 1)
    found = versions(center)
    for size in (0, CHUNK - 1, CHUNK + 1, 3 * CHUNK + 2):
        with pytest.raises(ValueError, match="elements in chunks of 64 there, the array"):
            center.accumulate(0, 1, np.zeros(size, np.float32), 0.0, found, TIMEOUT_S)
    with pytest.raises(ValueError, match="there are 4 chunks, not 3"):
        center.read(0, np.zeros(3 * CHUNK + 1, np.float32), False, found[:3], TIMEOUT_S)
    with pytest.raises(IndexError, match="no such chunk: 4"):
        center.write(4, np.zeros(1, np.float32), False)
    with pytest.raises(ValueError, match="has no velocity"):
        center.write(0, np.zeros(3 * CHUNK + 1, np.float32), True)
    with pytest.raises(ValueError, match="has no velocity"):
        center.accumulate(0, 1, np.zeros(3 * CHUNK + 1, np.float32), 0.5, found, TIMEOUT_S)
    with pytest.raises(ValueError, match="sequences begin with 1"):
        center.accumulate(0, 0, np.zeros(3 * CHUNK + 1, np.float32), 0.0, found, TIMEOUT_S)
    wrong: Any
    for wrong in (np.zeros(3 * CHUNK + 1), np.zeros(6 * CHUNK + 2, np.float32)[::2]):
        with pytest.raises(TypeError):
            center.read(0, wrong, False, found, TIMEOUT_S)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 64, 4), "1 to 1099511627776 elements, not 0"),
        ((2**63, 64, 4), "elements, not 9223372036854775808"),
        ((100, 0, 4), "a chunk has 1 to 16777216 elements, not 0"),
        ((100, 2**30, 4), "a chunk has 1 to"),
        ((100, 64, 0), "1 to 1024 members, not 0"),
        ((100, 64, 1025), "1 to 1024 members, not 1025"),
        ((2**21, 1, 4), "2097152 chunks are too many, choose larger ones"),
    ],
)
def test_sizes_that_cannot_be(sizes: tuple[int, int, int], message: str) -> None:
    descriptor = create_empty()
    with pytest.raises(ValueError, match=message):
        _native.Center.create(descriptor, *sizes, False, True)
    os.close(descriptor)


def damaged(word: int, value: int) -> int:
    """A center whose head says something else at 64-bit word `word`."""
    descriptor = create_empty()
    _native.Center.create(descriptor, 1000, CHUNK, 4, False, True)
    os.pwrite(descriptor, struct.pack("<Q", value), 8 * word)
    seal(descriptor)
    return descriptor


@pytest.mark.parametrize("value", [0, 1, 999, 1001, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("word", range(8))
def test_a_head_that_says_something_else(word: int, value: int) -> None:
    """Of no word but its own size may the file say anything but what it was made with."""
    if word == 1 and value == 1:
        return  # the format that it has
    descriptor = damaged(word, value)
    if word == 6:  # its own size: what counts is the file's
        _native.Center(descriptor)
    else:
        with pytest.raises(ValueError, match=r"not a center|format|has 1 to|too many|damaged"):
            _native.Center(descriptor)
    os.close(descriptor)


def test_files_that_are_no_center() -> None:
    empty = create_empty()
    with pytest.raises(ValueError, match="not a center"):
        _native.Center(empty)
    _native.Center.create(empty, 1000, CHUNK, 4, False, True)
    with pytest.raises(ValueError, match="not sealed against shrinking"):
        _native.Center(empty)
    os.ftruncate(empty, 8192)
    with pytest.raises(ValueError, match="file has 8192 bytes, not"):
        _native.Center(empty)
    os.close(empty)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.Center(empty)


def test_numbers_of_slots_in_a_file_are_not_trusted() -> None:
    """The words of chunks and the spares of members lead to places in memory: none leads out of the file."""
    descriptor = create_center(4 * CHUNK, 2, chunk_elements=CHUNK)
    size = os.fstat(descriptor).st_size
    values, found = np.ones(4 * CHUNK, np.float32), np.zeros(4, np.int64)
    random = np.random.default_rng(3)
    # From behind the header, in which only the count of members is read later: rows, then words of chunks.
    for offset in range(128, 512, 4):
        kept = os.pread(descriptor, 4, offset)
        center = _native.Center(descriptor)
        os.pwrite(descriptor, random.bytes(4), offset)
        try:
            center.attach(1, offset)
            center.accumulate(0, 1, values, 0.0, found, TIMEOUT_S)
            center.read(0, values, False, found, TIMEOUT_S)
        except (ValueError, OSError, _native.Fenced):
            pass
        os.pwrite(descriptor, kept, offset)
        center.close()
    assert os.fstat(descriptor).st_size == size
    os.close(descriptor)


@pytest.mark.parametrize("with_locks", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_update_leaves_what_is_not_finite(bad: float, with_locks: bool) -> None:
    descriptor = create_center(2 * CHUNK, 2, with_velocity=True, with_locks=with_locks, chunk_elements=CHUNK)
    center = _native.Center(descriptor)
    os.close(descriptor)
    center.attach(0, 1)
    start, moved, sick = np.ones((3, 2 * CHUNK), np.float32)
    center.write(0, start, False)
    sick[CHUNK // 2] = bad

    with pytest.raises(_native.NotFinite, match="values are not finite"):
        center.write(0, sick, False)
    with pytest.raises(_native.NotFinite, match="chunk 0 would not be finite"):
        center.accumulate(0, 1, sick, 0.0, versions(center), TIMEOUT_S)
    with pytest.raises(_native.NotFinite, match="chunk 0 would not be finite"):
        center.accumulate(0, 2, sick, 0.5, versions(center), TIMEOUT_S)
    with pytest.raises(_native.NotFinite, match="chunk 0 would not be finite"):
        center.exchange(0, 3, sick.copy(), 0.5, versions(center), TIMEOUT_S)
    with pytest.raises(_native.NotFinite, match="chunk 0 would not be finite"):
        center.exchange_into(0, 4, sick, moved, 0.5, versions(center), TIMEOUT_S)
    ticket = center.submit(5, sick, 0.0)
    with pytest.raises(_native.NotFinite, match="chunk 0 would not be finite"):
        center.wait(ticket, versions(center), TIMEOUT_S)

    np.testing.assert_array_equal(read(center), start)
    np.testing.assert_array_equal(read(center, True), np.zeros_like(start))
    center.close()


@pytest.mark.parametrize("with_locks", [True, False])
def test_a_sum_beyond_all_numbers_is_refused(with_locks: bool) -> None:
    descriptor = create_center(CHUNK, 1, with_locks=with_locks, chunk_elements=CHUNK)
    center = _native.Center(descriptor)
    os.close(descriptor)
    center.attach(0, 1)
    half = np.full(CHUNK, 2e38, np.float32)
    assert center.accumulate(0, 1, half, 0.0, versions(center), TIMEOUT_S)

    with pytest.raises(_native.NotFinite):
        center.accumulate(0, 2, half, 0.0, versions(center), TIMEOUT_S)

    np.testing.assert_array_equal(read(center), half)
    center.close()


@pytest.mark.parametrize("size", [1, 2047, 2048, 2049, 10_000])
def test_all_finite(size: int) -> None:
    values = np.zeros(size, np.float32)
    values[0] = np.finfo(np.float32).max
    assert _native.all_finite(values)
    for place in (0, size // 2, size - 1):
        for bad in (np.nan, np.inf, -np.inf):
            one = values.copy()
            one[place] = bad
            assert not _native.all_finite(one)
