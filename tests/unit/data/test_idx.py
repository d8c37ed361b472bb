"""IDX files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.formats.idx import parse_idx, read_plain_or_gzip

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
        (struct.pack(">4B3I", 0, 0, 13, 3, 2, 3, 1) + IMAGES.tobytes(), "no IDX file of unsigned bytes"),
        (struct.pack(">4B2I", 0, 0, 8, 2, 6, 4) + IMAGES.tobytes(), "in 3 dimensions"),
        (CONTENT[:-1], "its header says 2 x 3 x 4 bytes, it holds 23"),
        (CONTENT + b"\0", "it holds 25"),
        (struct.pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3), "4294967295 x 4294967295 x 4294967295"),
    ],
)
def test_refuses_what_is_no_idx(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_idx(content, "images", 3)


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize("stored", [CONTENT, gzip.compress(CONTENT)])
def test_reads_plain_and_gzip_whatever_the_name(tmp_path: Path, name: str, stored: bytes) -> None:
    (tmp_path / name).write_bytes(stored)
    assert read_plain_or_gzip(tmp_path / name, len(CONTENT)) == CONTENT


@pytest.mark.parametrize("stored", [CONTENT, gzip.compress(bytes(10_000_000))])
def test_reads_no_more_than_asked(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / "images").write_bytes(stored)
    with pytest.raises(InputError, match="holds more than the 20 bytes expected"):
        read_plain_or_gzip(tmp_path / "images", 20)


@pytest.mark.parametrize("length", range(2, len(gzip.compress(CONTENT))))
def test_a_gzip_file_cut_off_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "images.gz").write_bytes(gzip.compress(CONTENT)[:length])
    with pytest.raises(InputError, match=r"images\.gz: the gzip file is damaged"):
        read_plain_or_gzip(tmp_path / "images.gz", 1000)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    stored = bytearray(gzip.compress(CONTENT))
    stored[-8] ^= 1  # its checksum
    (tmp_path / "images.gz").write_bytes(stored)
    with pytest.raises(InputError, match="damaged"):
        read_plain_or_gzip(tmp_path / "images.gz", 1000)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be read"):
        read_plain_or_gzip(tmp_path / "nowhere", 10)
