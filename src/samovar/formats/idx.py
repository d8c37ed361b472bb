"""IDX, the format of the MNIST files: a big-endian header, then the numbers.

Two zero bytes, the type of the numbers (0x08: unsigned byte), the number of dimensions, each dimension as
u32, then the numbers with the last dimension running fastest.
"""

from math import prod

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError

_UNSIGNED_BYTE = 0x08


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
