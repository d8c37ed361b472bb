"""Files of published data sets: plain, gzip or xz, recognized by their first bytes; and IDX, the form of MNIST.

IDX has two zero bytes, the type of the numbers (0x08: unsigned byte), and the number of dimensions. Then come each
dimension as a big-endian u32, and the numbers, the last dimension fastest.
"""

import gzip
import lzma
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError

SUFFIXES = ("", ".gz", ".xz")
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_MAX_XZ_MEMORY_BYTES = 256 << 20  # `xz -9` asks for 65 MB; a header may declare 4 GB


def read_unpacked(path: Path, max_bytes: int) -> bytes:
    """The content of a file, unpacked if it is a gzip or xz file, with any name.
    Raises: InputError if it cannot be read or unpacked, or holds more than `max_bytes`."""
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
