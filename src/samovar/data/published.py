"""MNIST, Fashion-MNIST and CIFAR-10 as Caffe's LMDBs, from their published files.

A record of CIFAR-10 is one byte of label, then 1,024 bytes each of red, green and blue. Batches 1 to 4 are for
training and batch 5 for testing. The published test batch is not used: an accuracy here is not that of the test set.

MNIST is in the form IDX: two zero bytes, the type of the numbers (0x08: unsigned byte), and the number of dimensions.
Then come each dimension as a big-endian u32, and the numbers, the last dimension fastest. Files are plain, gzip or xz,
recognized by their first bytes.
"""

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.data.databases import WrittenDatabase, write_images
from samovar.formats.caffe.blob import mean_image, require_room_for_mean, write_mean

SUFFIXES = ("", ".gz", ".xz")
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_MAX_XZ_MEMORY_BYTES = 256 << 20  # `xz -9` asks for 65 MB; a header may declare 4 GB


def read_unpacked(path: Path, max_bytes: int) -> bytes:
    """The content of a file, unpacked if it is a gzip or xz file, with any name.
    Raises: InputError if it cannot be read or unpacked, or holds more than `max_bytes`."""
    if path.exists() and not path.is_file():  # to open a FIFO would wait for ever
        raise InputError(f"{path}: is not a regular file. Download it again.")
    try:
        with path.open("rb") as file:
            content = _unpacked(file, max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise InputError(f"{path}: the packed file is damaged ({error}). Download it again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from error
    if len(content) > max_bytes:
        raise InputError(f"{path}: holds more than the {max_bytes} bytes expected. Download it again.")
    return content


def _unpacked(file: BinaryIO, limit: int) -> bytes:
    """At most `limit` bytes of what is in the file."""
    magic = file.read(len(_XZ_MAGIC))
    file.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=file).read(limit)
    if magic == _XZ_MAGIC:
        return _unpacked_xz(file, limit)
    return file.read(limit)


def _unpacked_xz(file: BinaryIO, limit: int) -> bytes:
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY_BYTES)
    content = bytearray()
    while not unpacker.eof and len(content) < limit:
        packed = file.read(1 << 20) if unpacker.needs_input else b""
        if unpacker.needs_input and not packed:
            raise EOFError("it ends before its content does")
        content += unpacker.decompress(packed, limit - len(content))
    return bytes(content)


_UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes, name: str, num_dimensions: int) -> npt.NDArray[np.uint8]:
    """A read-only uint8 array of `num_dimensions` dimensions over `content`; `name` is for messages.
    Raises: InputError for another type, another number of dimensions, or sizes that do not fit the bytes."""
    header_bytes = 4 + 4 * num_dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, num_dimensions])
    if len(content) < header_bytes or content[:4] != magic:
        raise InputError(
            f"{name}: starts with bytes {content[:4].hex(' ') or '(none)'}, not with {magic.hex(' ')}: it is "
            f"not an IDX file of unsigned bytes in {num_dimensions} dimensions. Check which file it is."
        )
    shape = tuple(np.frombuffer(content, ">u4", num_dimensions, offset=4).tolist())
    if prod(shape) != len(content) - header_bytes:
        raise InputError(
            f"{name}: its header says {' x '.join(map(str, shape))} bytes, it holds "
            f"{len(content) - header_bytes}. Download it again."
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A published file, unpacked."""

    name: str
    size_bytes: int
    md5: str


def find_published(source: Path, files: Sequence[PublishedFile], data_set: str) -> dict[str, Path]:
    """The path of each file in the folder `source`, by its name: plain, or else packed (.gz, .xz).
    Raises: InputError naming every missing file."""
    names = [file.name for file in files]
    packed = " or ".join(suffix for suffix in SUFFIXES if suffix)
    try:
        present = {path.name for path in source.iterdir()}
    except OSError as error:
        raise InputError(
            f"{source}: {error.strerror}. Name the folder that holds {', '.join(names)} "
            f"(or {packed} of the same names)."
        ) from error
    found = {name: f"{name}{suffix}" for suffix in reversed(SUFFIXES) for name in names if f"{name}{suffix}" in present}
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"{source}: {', '.join(missing)} (or {packed} of the same name) not found. Put the published {data_set} "
            "files there, or name the folder that holds them."
        )
    return {name: source / found[name] for name in names}


def read_published(path: Path, file: PublishedFile) -> bytes:
    """The unpacked content. Raise InputError if its checksum is not the published one."""
    content = read_unpacked(path, file.size_bytes)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise InputError(
            f"{path}: its content has MD5 {found}, the published file {file.md5}: it is damaged, or of "
            "another data set. Download it again."
        )
    return content


@dataclass(frozen=True, slots=True)
class MnistSplit:
    """One database and the files it is made from."""

    folder_name: str
    images: PublishedFile
    labels: PublishedFile


def _split_of(folder_name: str, part: str, num_images: int, images_md5: str, labels_md5: str) -> MnistSplit:
    images = PublishedFile(f"{part}-images-idx3-ubyte", 16 + num_images * 28 * 28, images_md5)
    return MnistSplit(folder_name, images, PublishedFile(f"{part}-labels-idx1-ubyte", 8 + num_images, labels_md5))


_MNIST_MD5S = "6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"
_MNIST_TEST_MD5S = "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"
MNIST = (
    _split_of("mnist_train_lmdb", "train", 60_000, *_MNIST_MD5S),
    _split_of("mnist_test_lmdb", "t10k", 10_000, *_MNIST_TEST_MD5S),
)
_FASHION_MD5S = "f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"
_FASHION_TEST_MD5S = "8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"
FASHION_MNIST = (
    _split_of("fashion_mnist_train_lmdb", "train", 60_000, *_FASHION_MD5S),
    _split_of("fashion_mnist_test_lmdb", "t10k", 10_000, *_FASHION_TEST_MD5S),
)


def write_mnist(source: Path, out: Path, splits: tuple[MnistSplit, ...] = MNIST) -> list[WrittenDatabase]:
    """Write out/mnist_train_lmdb and out/mnist_test_lmdb, records in file order, keys 00000000, ...

    `source` is the folder of the four published files, plain or packed; `splits` may name another data set of
    the same form. It writes only if all files are present and their content has the published checksums.

    Raises: InputError naming every missing file, or the one that differs.
    """
    files = [file for split in splits for file in (split.images, split.labels)]
    paths = find_published(source, files, "Fashion-MNIST" if splits is FASHION_MNIST else "MNIST")
    arrays = [_read_split(split, paths) for split in splits]
    return [
        write_images(out / split.folder_name, images[:, None], labels)
        for split, (images, labels) in zip(splits, arrays, strict=True)
    ]


def _read_split(split: MnistSplit, paths: dict[str, Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images = parse_idx(read_published(paths[split.images.name], split.images), split.images.name, 3)
    labels = parse_idx(read_published(paths[split.labels.name], split.labels), split.labels.name, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{split.images.name} holds {len(images)} images, {split.labels.name} {len(labels)} labels; "
            "take both files from one data set."
        )
    return images, labels


_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_BATCH_BYTES = 10_000 * _RECORD_BYTES
_KEY_DIGITS = 5  # as Caffe's converter of this data set
_MD5S = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
)
BATCHES = tuple(PublishedFile(f"data_batch_{n}.bin", _BATCH_BYTES, md5) for n, md5 in enumerate(_MD5S, start=1))


@dataclass(frozen=True, slots=True)
class WrittenMean:
    """The mean image of a database, written."""

    path: Path
    already_there: bool


def write_cifar10(
    source: Path, out: Path, batches: tuple[PublishedFile, ...] = BATCHES
) -> tuple[list[WrittenDatabase], WrittenMean]:
    """Write out/cifar10_train_lmdb (all batches but the last), out/cifar10_test_lmdb (the last) and
    out/mean.binaryproto, the mean of the training images.

    `source` is the folder of the batches, plain or packed (.gz, .xz). It writes only if all are present with their
    published checksums. Cost: about 2 s and 300 MB of memory, without unpacking.

    Raises: InputError naming every missing file or the one that differs, or if something else is at the place.
    """
    paths = find_published(source, batches, "CIFAR-10")
    parts = [_read_batch(paths[file.name], file) for file in batches]
    images = np.concatenate([images for images, _ in parts[:-1]])
    labels = np.concatenate([labels for _, labels in parts[:-1]])
    path, mean = out / "mean.binaryproto", mean_image(images)
    require_room_for_mean(path, mean)
    databases = [
        write_images(out / "cifar10_train_lmdb", images, labels, _KEY_DIGITS),
        write_images(out / "cifar10_test_lmdb", *parts[-1], _KEY_DIGITS),
    ]
    return databases, WrittenMean(path, not write_mean(path, mean))


def _read_batch(path: Path, file: PublishedFile) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images uint8 (N, 3, 32, 32), channels red, green, blue, and labels uint8 (N,)."""
    content = read_published(path, file)
    if len(content) % _RECORD_BYTES:
        raise InputError(f"{path}: {len(content)} bytes are not whole records of {_RECORD_BYTES}. Download it again.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    return records[:, 1:].reshape(-1, *_SHAPE), records[:, 0]
