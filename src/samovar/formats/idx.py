"""IDX, the format of the MNIST files: a big-endian header, then the numbers.

Two zero bytes, the type of the numbers (0x08: unsigned byte), the number of dimensions, each dimension as
u32, then the numbers with the last dimension running fastest.
"""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"


def read_plain_or_gzip(path: Path, max_bytes: int) -> bytes:
    """The content of a file, unpacked where it is a gzip file, whatever its name.

    Raises: InputError where it cannot be read or unpacked, or holds more than `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            content = gzip.GzipFile(fileobj=file).read(max_bytes + 1) if packed else file.read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the gzip file is damaged ({error}). Download it again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from error
    if len(content) > max_bytes:
        raise InputError(f"{path}: holds more than the {max_bytes} bytes expected. Download it again.")
    return content


def parse_idx(content: bytes, name: str, num_dimensions: int) -> npt.NDArray[np.uint8]:
    """A read-only uint8 array of `num_dimensions` dimensions over `content`; `name` is for messages.

    Raises: InputError for another type, another number of dimensions, or sizes that do not fit the bytes.
    """
    header_bytes = 4 + 4 * num_dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, num_dimensions])
    if len(content) < header_bytes or content[:4] != magic:
        raise InputError(
            f"{name}: starts with bytes {content[:4].hex(' ') or '(none)'}, not with {magic.hex(' ')}: it is "
            f"no IDX file of unsigned bytes in {num_dimensions} dimensions. Check which file it is."
        )
    shape = tuple(np.frombuffer(content, ">u4", num_dimensions, offset=4).tolist())
    if prod(shape) != len(content) - header_bytes:
        raise InputError(
            f"{name}: its header says {' x '.join(map(str, shape))} bytes, it holds "
            f"{len(content) - header_bytes}. Download it again."
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)
