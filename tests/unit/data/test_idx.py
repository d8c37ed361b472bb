"""IDX files."""

import struct

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.data.published import parse_idx

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
CONTENT = struct.pack(">4B3I", 0, 0, 8, 3, 2, 3, 4) + IMAGES.tobytes()


def test_parses_shape_and_values() -> None:
    found = parse_idx(CONTENT, "images", 3)
    np.testing.assert_array_equal(found, IMAGES)
    assert found.dtype == np.uint8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"images: starts with bytes \(none\)"),
        (CONTENT[:10], "starts with bytes 00 00 08 03"),
        (b"\x89PNG" + CONTENT[4:], "starts with bytes 89 50 4e 47, not with 00 00 08 03"),
        (struct.pack(">4B3I", 0, 0, 13, 3, 2, 3, 1) + IMAGES.tobytes(), "not an IDX file of unsigned bytes"),
        (struct.pack(">4B2I", 0, 0, 8, 2, 6, 4) + IMAGES.tobytes(), "in 3 dimensions"),
        (CONTENT[:-1], "its header says 2 x 3 x 4 bytes, it holds 23"),
        (CONTENT + b"\0", "it holds 25"),
        (struct.pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3), "4294967295 x 4294967295 x 4294967295"),
    ],
)
def test_refuses_what_is_no_idx(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_idx(content, "images", 3)
