"""BlobProto, Caffe's stored array, to and from NumPy, and the mean image (`.binaryproto`)."""

from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from samovar.core.errors import InputError
from samovar.formats.caffe.files import read_binary
from samovar.formats.caffe.schema import Message, message_class, packed_message_class

MAX_BINARY_BYTES = (1 << 31) - 1  # protobuf's own limit
MAX_AXES = 32  # Caffe's limit
_LEGACY_AXES = ("num", "channels", "height", "width")


def decode_blob(blob: Message, where: str) -> npt.NDArray[np.float32]:
    """The array of a *packed* BlobProto (see `packed_message_class`): float32, C-contiguous, writable.

    Both shape notations are read (`shape`, and the old four numbers), and both float and double data.
    Raises InputError, starting with `where`, where shape and data disagree.
    """
    shape = _shape(blob)
    if len(shape) > MAX_AXES or any(size < 0 for size in shape):
        raise InputError(f"{where}: has shape {shape}; allowed are at most {MAX_AXES} axes, none negative")
    if blob.data and blob.double_data:
        raise InputError(f"{where}: holds both float and double data; it must hold one of them")
    values = _values(blob, where)
    if values.size != prod(shape):
        raise InputError(
            f"{where}: has shape {shape}, which is {prod(shape)} values, but holds {values.size}; the file is damaged"
        )
    return values.reshape(shape)


def encode_blob(blob: Message, array: npt.NDArray[np.float32]) -> None:
    """Fill a *packed* BlobProto with shape and float data in C order."""
    blob.shape.dim.extend(array.shape)
    blob.data.append(np.ascontiguousarray(array, "<f4").tobytes())


def read_blob(path: Path, kind: str) -> npt.NDArray[np.float32]:
    """The array of a `.binaryproto`; raises InputError, calling it a `kind` file, where it is not one."""
    try:
        blob = packed_message_class("BlobProto").FromString(read_binary(path, kind, MAX_BINARY_BYTES))
    except DecodeError:
        raise InputError(f"{path}: is not a {kind} file (BlobProto), or it was cut short") from None
    return decode_blob(blob, str(path))


def read_mean(path: Path) -> npt.NDArray[np.float32]:
    """The mean image (C, H, W; float32) of a `.binaryproto`; raises InputError where it is not one."""
    mean = read_blob(path, "mean")
    if mean.ndim == 4 and mean.shape[0] == 1:
        mean = mean[0]
    if mean.ndim != 3 or mean.size == 0:
        raise InputError(f"{path}: has shape {mean.shape}; a mean image has (channels, height, width)")
    return mean


def _shape(blob: Message) -> tuple[int, ...]:
    if blob.HasField("shape"):
        return tuple(blob.shape.dim)
    if any(blob.HasField(axis) for axis in _LEGACY_AXES):
        return tuple(getattr(blob, axis) for axis in _LEGACY_AXES)
    return ()


def _values(blob: Message, where: str) -> npt.NDArray[np.float32]:
    if blob.data or blob.double_data:
        runs, width = (blob.data, 4) if blob.data else (blob.double_data, 8)
        if all(len(run) % width == 0 for run in runs):
            return np.frombuffer(b"".join(runs), f"<f{width}").astype(np.float32)
    try:
        plain = message_class("BlobProto").FromString(blob.SerializeToString())  # numbers written one by one
    except DecodeError:
        raise InputError(f"{where}: its numbers are cut off in the middle; the file is damaged") from None
    return np.array(plain.double_data or plain.data, np.float32)
