"""The codecs against NumPy, bit for bit, with the parts that they leave out and values that are not finite."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from samovar.collectives.encoded import CODECS, Codec
from tests.unit.native import codec_reference as reference
from tests.unit.native.numbers import wild

SIZES = (0, 1, 7, 8, 99, 100, 101, 1023, 1024, 1025, 5000)
FLOATS = arrays.arrays(np.float32, st.integers(0, 300), elements=st.floats(width=32, allow_nan=True))
codecs = pytest.mark.parametrize("name", CODECS)


def encode(name: str, source: np.ndarray, residual: np.ndarray) -> np.ndarray:
    codec = Codec(name)
    message = np.full(codec.message_bytes(len(source)), 0xAB, np.uint8)
    codec.encode(source, residual, message)
    return message


def decode(name: str, message: np.ndarray, count: int) -> np.ndarray:
    values = np.full(count, 7, np.float32)
    Codec(name).decode([message], values)
    return values


def check(name: str, source: np.ndarray, residual: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        wanted_message, wanted_residual = reference.encoded(name, source + residual)
    message = encode(name, source, residual)
    assert len(message) % 4 == 0
    assert message.tobytes() == wanted_message
    np.testing.assert_array_equal(residual, wanted_residual, strict=True)
    assert np.isfinite(residual).all()
    wanted = reference.decoded(name, wanted_message, len(source))
    np.testing.assert_array_equal(decode(name, message, len(source)), wanted, strict=True)


@codecs
@pytest.mark.parametrize("size", SIZES)
def test_against_the_reference(name: str, size: int) -> None:
    normal = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    check(name, normal[0], normal[1])
    check(name, wild(1, size, np.float32), normal[1].copy())
    tiny = (normal[0] * 1e-39).astype(np.float32)
    check(name, tiny, np.zeros_like(tiny))
    check(name, np.round(normal[0]), np.zeros(size, np.float32))  # many ties


@codecs
@settings(max_examples=60)
@given(source=FLOATS)
def test_any_values(name: str, source: np.ndarray) -> None:
    check(name, source, np.zeros_like(source))


@codecs
@given(parts=st.lists(st.integers(0, 5000), min_size=1, max_size=5))
def test_a_message_is_not_larger_than_those_of_its_parts(name: str, parts: list[int]) -> None:
    codec = Codec(name)
    assert codec.message_bytes(sum(parts)) <= sum(map(codec.message_bytes, parts))


@pytest.mark.parametrize("name", ["bf16", "int8", "int4", "top-k"])
def test_what_is_sent_and_what_stays_are_exactly_what_was_there(name: str) -> None:
    source = np.random.default_rng(3).standard_normal(4000).astype(np.float32)
    residual = np.zeros_like(source)
    sent = decode(name, encode(name, source, residual), len(source))
    assert np.array_equal(sent.astype(np.float64) + residual, source.astype(np.float64))


def test_one_bit_leaves_out_nothing_but_rounding() -> None:
    source = np.random.default_rng(3).standard_normal(4000).astype(np.float32)
    residual = np.zeros_like(source)
    sent = decode("1-bit", encode("1-bit", source, residual), len(source))
    np.testing.assert_allclose(sent + residual, source, rtol=0, atol=3e-7)


@codecs
def test_what_is_left_out_is_sent_in_the_end(name: str) -> None:
    """The mean of what was sent comes to the source, however little is sent at a time."""
    source = np.random.default_rng(5).standard_normal(2000).astype(np.float32)
    residual, total, num_steps = np.zeros_like(source), np.zeros(2000), 2000
    for _ in range(num_steps):
        total += decode(name, encode(name, source, residual), len(source))
    assert np.abs(total / num_steps - source).max() < 0.5


@codecs
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_seen_by_all_and_kept_by_nobody(name: str, odd: float) -> None:
    source = np.random.default_rng(5).standard_normal(3000).astype(np.float32)
    source[1500] = odd
    residual = np.zeros_like(source)
    found = decode(name, encode(name, source, residual), len(source))
    assert not np.isfinite(found[1500])
    assert np.isfinite(found[:1024]).all()
    assert np.isfinite(residual).all()


@codecs
def test_messages_are_added_in_their_order(name: str) -> None:
    codec = Codec(name)
    sources = np.random.default_rng(9).standard_normal((3, 2500)).astype(np.float32)
    messages = [encode(name, source, np.zeros(2500, np.float32)) for source in sources]
    parts = [decode(name, message, 2500) for message in messages]
    values = np.empty(2500, np.float32)
    codec.decode(messages, values)
    assert values.tobytes() == ((parts[0] + parts[1]) + parts[2]).tobytes()
    codec.add(messages[:2], values)
    assert values.tobytes() == ((((parts[0] + parts[1]) + parts[2]) + parts[0]) + parts[1]).tobytes()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no codec is called gzip"):
        Codec("gzip")
    codec, values = Codec("top-k"), np.zeros(100, np.float32)
    for message in (np.zeros(4, np.uint8), np.zeros(12, np.uint8), np.zeros(9, np.uint8)[1:]):
        with pytest.raises(ValueError, match="message"):
            codec.decode([message], values)
    with pytest.raises(ValueError, match="equal sizes"):
        codec.encode(values, values[:50], np.zeros(8, np.uint8))
    with pytest.raises(IndexError, match="names element 100"):
        codec.decode([np.array([100, 0], np.uint32).view(np.uint8)], values)
