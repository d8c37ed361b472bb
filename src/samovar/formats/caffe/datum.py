"""Datum, the record of Caffe's databases."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from samovar.core.errors import InputError
from samovar.formats.caffe.schema import Message, message_class
from samovar.formats.image import Channels, decode_image

Image: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.float32]

MAX_IMAGE_BYTES = 64 << 20
_Datum = message_class("Datum")


def decode_datum(record: bytes, channels: Channels = "stored") -> tuple[Image, int]:
    """The image (C, H, W), uint8 or float32 as the record holds it, and the label of one record.

    A uint8 image is a read-only view of the record's bytes. A compressed one (`encoded`) is decoded to `channels`.
    Raises InputError if the record is not a Datum, or if its sizes and its data disagree.
    """
    try:
        datum = _Datum.FromString(record)
    except DecodeError:
        raise InputError(
            f"record of {len(record)} bytes is not a Caffe Datum; was the database written by another tool?"
        ) from None
    if datum.encoded:
        return decode_image(datum.data, channels), datum.label
    shape = (datum.channels, datum.height, datum.width)
    size = shape[0] * shape[1] * shape[2]
    data = datum.data
    if min(shape) > 0 and len(data) == size <= MAX_IMAGE_BYTES and not datum.float_data:
        return np.frombuffer(data, np.uint8).reshape(shape), datum.label
    return _float_image(datum, shape), datum.label


def _float_image(datum: Message, shape: tuple[int, int, int]) -> npt.NDArray[np.float32]:
    channels, height, width = shape
    size = channels * height * width
    found = f"channels: {channels} height: {height} width: {width}"
    if min(shape) <= 0 or size > MAX_IMAGE_BYTES:
        raise InputError(f"record has {found}; each must be at least 1 and their product at most {MAX_IMAGE_BYTES}")
    if datum.data and datum.float_data:
        raise InputError("record holds both bytes and floats; write it with one of data and float_data")
    count = len(datum.data) or len(datum.float_data)
    if count != size or datum.data:
        raise InputError(f"record has {found}, which is {size} values, but holds {count}; the database is damaged")
    return np.fromiter(datum.float_data, np.float32, size).reshape(shape)


def encode_compressed_datum(content: bytes, label: int) -> bytes:
    """One record from an image file's bytes and its label, in 32 bits, as Caffe's converter does with `encoded`."""
    return bytes(_Datum(data=content, label=label, encoded=True).SerializeToString(deterministic=True))


def encode_datum(image_CHW: npt.NDArray[np.uint8], label: int) -> bytes:
    """One record from an uint8 image (C, H, W) and its label: the bytes that Caffe's converters write.
    Raises InputError for another dtype or number of axes, an empty or too large image, a label beyond int32."""
    if image_CHW.dtype != np.uint8 or image_CHW.ndim != 3:
        raise InputError(f"image is {image_CHW.dtype} {image_CHW.shape}; a Datum takes uint8 (channels, height, width)")
    if not 0 < image_CHW.size <= MAX_IMAGE_BYTES or not -(1 << 31) <= label < 1 << 31:
        raise InputError(
            f"image {image_CHW.shape} with label {label}; an image has 1 to {MAX_IMAGE_BYTES} values, "
            "a label fits into 32 bits"
        )
    channels, height, width = image_CHW.shape
    datum = _Datum(channels=channels, height=height, width=width, data=image_CHW.tobytes(), label=label)
    return bytes(datum.SerializeToString(deterministic=True))
