"""BlobProto, Caffe's stored array, to and from NumPy, and the mean image (`.binaryproto`): computed, read, written."""

import contextlib
import os
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from samovar.core.errors import InputError
from samovar.core.files import write_file
from samovar.formats.caffe.schema import Message, message_class, packed_message_class, read_binary

MAX_BINARY_BYTES = (1 << 31) - 1  # protobuf's own limit
MAX_AXES = 32  # Caffe's limit
_LEGACY_AXES = ("num", "channels", "height", "width")


def decode_blob(blob: Message, where: str) -> npt.NDArray[np.float32]:
    """The array of a *packed* BlobProto (see `packed_message_class`): float32, C-contiguous, writable.

    Both shape notations are read (`shape`, and the old four numbers), and both float and double data.
    Raises InputError, starting with `where`, if shape and data disagree.
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
    try:
        return values.reshape(shape)
    except ValueError:  # none in one direction, and too many in another
        raise InputError(f"{where}: has shape {shape}, which no array can have; the file is damaged") from None


def encode_blob(blob: Message, array: npt.NDArray[np.float32]) -> None:
    """Fill a *packed* BlobProto with shape and float data in C order."""
    blob.shape.dim.extend(array.shape)
    blob.data.append(np.ascontiguousarray(array, "<f4").tobytes())


def read_blob(path: Path, kind: str) -> npt.NDArray[np.float32]:
    """The array of a `.binaryproto`; raises InputError, calling it a `kind` file, if it is not one."""
    try:
        blob = packed_message_class("BlobProto").FromString(read_binary(path, kind, MAX_BINARY_BYTES))
    except DecodeError:
        raise InputError(f"{path}: is not a {kind} file (BlobProto), or it was cut short") from None
    return decode_blob(blob, str(path))


def read_mean(path: Path) -> npt.NDArray[np.float32]:
    """The mean image (C, H, W), float32, of a `.binaryproto`; raises InputError if it is not one."""
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


_IMAGES_PER_SUM = 4096


def mean_image(images_NCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The mean of uint8 images (N, C, H, W) as float32 (C, H, W).
    The sums are whole numbers; up to 65,793 images they are those of Caffe, which adds in float32, bit for bit."""
    sums = np.zeros(images_NCHW.shape[1:], np.int64)
    for start in range(0, len(images_NCHW), _IMAGES_PER_SUM):
        sums += images_NCHW[start : start + _IMAGES_PER_SUM].sum(axis=0, dtype=np.int64)
    return sums.astype(np.float32) / np.float32(len(images_NCHW))


def encode_mean(mean_CHW: npt.NDArray[np.float32]) -> bytes:
    """A BlobProto in the notation of `compute_image_mean`: num (1), channels, height, width, and float data."""
    channels, height, width = mean_CHW.shape
    blob = message_class("BlobProto")(num=1, channels=channels, height=height, width=width, data=mean_CHW.ravel())
    return bytes(blob.SerializeToString(deterministic=True))


def require_room_for_mean(path: Path, mean_CHW: npt.NDArray[np.float32]) -> None:
    """Raise InputError if `write_mean` would find a file with other content."""
    _is_written(path, encode_mean(mean_CHW))


def _is_written(path: Path, content: bytes) -> bool:
    if not os.path.lexists(path):
        return False
    if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
        return True
    raise InputError(f"{path}: exists with other content, so it is not replaced. Remove it, or choose another.")


def require_place_for_mean(path: Path) -> None:
    """Raise InputError if `write_mean` could make no file there, for any mean."""
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    is_taken = os.path.lexists(path)
    if not (path.is_file() if is_taken else above.is_dir()):
        what = "is not a regular file" if is_taken else f"cannot be written, because {above} is not a folder"
        raise InputError(f"{path}: {what}. Give the name of a new file.")


def _publish(partial: Path, path: Path) -> None:
    """Unlike a rename, never over a file that another process made."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        if os.path.lexists(path):
            raise
        partial.rename(path)


def write_mean(path: Path, mean_CHW: npt.NDArray[np.float32]) -> bool:
    """Write a mean image (C, H, W), float32, to a new file; False if it exists with the same content.
    Raises: InputError if it exists with other content, or cannot be written."""
    content = encode_mean(mean_CHW)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if _is_written(path, content):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # of a process that was killed, and had the same number in its container
        write_file(partial, [content])
        _publish(partial, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}. Choose another folder.") from error
    finally:
        with contextlib.suppress(OSError):  # the reason is told already
            partial.unlink()
    return True
