"""Datum records: read, written, and refused where sizes and data disagree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.errors import InputError
from samovar.formats.caffe.datum import decode_datum, encode_datum
from samovar.formats.caffe.schema import message_class

Datum = message_class("Datum")


def test_round_trip(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (3, 5, 4), np.uint8)

    decoded, label = decode_datum(encode_datum(image, 9))

    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, image)
    assert label == 9


def test_float_image() -> None:
    record = Datum(channels=1, height=2, width=2, float_data=[0.5, -1, 2, 3], label=-4).SerializeToString()

    image, label = decode_datum(record)

    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, [[[0.5, -1], [2, 3]]])
    assert label == -4


BAD = [
    ({"channels": 1, "height": 2, "width": 2, "data": b"abc"}, "is 4 values, but holds 3"),
    ({"channels": 1, "height": 2, "width": 2, "data": b"abcde"}, "is 4 values, but holds 5"),
    ({"channels": 1, "height": 2, "width": 2}, "is 4 values, but holds 0"),
    ({"channels": 1, "height": 2, "width": 2, "float_data": [1.0]}, "is 4 values, but holds 1"),
    ({"channels": 1, "height": 1, "width": 1, "float_data": [1.0], "data": b"a"}, "both bytes and floats"),
    ({"channels": -1, "height": -1, "width": 1, "data": b"a"}, "each must be at least 1"),
    ({"channels": 0, "height": 1, "width": 1}, "each must be at least 1"),
    ({"channels": 1 << 30, "height": 1 << 30, "width": 1 << 30, "data": b"a"}, "product at most 67108864"),
    ({"channels": 1, "height": 1, "width": 1, "data": b"a", "encoded": True}, "no whole image of the kinds"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_refused_records(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decode_datum(Datum(**fields).SerializeToString())


def test_garbage() -> None:
    with pytest.raises(InputError, match="record of 4 bytes is not a Caffe Datum"):
        decode_datum(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("image", "label"),
    [
        (np.zeros((1, 2, 2), np.float32), 0),
        (np.zeros((2, 2), np.uint8), 0),
        (np.zeros((1, 0, 2), np.uint8), 0),
        (np.zeros((1, 2, 2), np.uint8), 1 << 31),
    ],
)
def test_images_that_cannot_be_written(image: np.ndarray, label: int) -> None:
    with pytest.raises(InputError, match="image"):
        encode_datum(image, label)


@given(st.binary(max_size=40))
def test_no_bytes_break_the_reader(record: bytes) -> None:
    try:
        image, _ = decode_datum(record)
    except InputError:
        return
    assert image.size > 0
    assert image.ndim == 3
