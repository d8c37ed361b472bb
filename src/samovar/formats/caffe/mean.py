"""The mean image that Caffe's `compute_image_mean` writes (`.binaryproto`); `blob.read_mean` reads it back."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.durable import write_file
from samovar.core.errors import InputError
from samovar.formats.caffe.schema import message_class

_IMAGES_PER_SUM = 4096


def mean_image(images_NCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The mean of uint8 images (N, C, H, W) as float32 (C, H, W).

    The sums are whole numbers; up to 65,793 images they are those of Caffe, which adds in float32, bit for bit.
    """
    sums = np.zeros(images_NCHW.shape[1:], np.int64)
    for start in range(0, len(images_NCHW), _IMAGES_PER_SUM):
        sums += images_NCHW[start : start + _IMAGES_PER_SUM].sum(axis=0, dtype=np.int64)
    return sums.astype(np.float32) / np.float32(len(images_NCHW))


def encode_mean(mean_CHW: npt.NDArray[np.float32]) -> bytes:
    """A BlobProto in the notation of `compute_image_mean`: num (1), channels, height, width, and float data."""
    channels, height, width = mean_CHW.shape
    blob = message_class("BlobProto")(num=1, channels=channels, height=height, width=width, data=mean_CHW.ravel())
    encoded: bytes = blob.SerializeToString(deterministic=True)
    return encoded


def write_mean(path: Path, mean_CHW: npt.NDArray[np.float32]) -> bool:
    """Write a mean image (C, H, W; float32) to a new file; False where this very file is there already.

    Raises: InputError where something else is there, or the file cannot be written.
    """
    content = encode_mean(mean_CHW)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if os.path.lexists(path):
            if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
                return False
            raise InputError(f"{path}: exists with other content, so it is not replaced. Remove it, or choose another.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(partial, [content])
        os.link(partial, path)  # unlike rename, never over a file that came meanwhile
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}. Choose another folder.") from error
    finally:
        partial.unlink(missing_ok=True)
    return True
