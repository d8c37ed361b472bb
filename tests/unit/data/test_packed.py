"""Packed files: gzip and xz."""

import gzip
import lzma
import zlib
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.data.published import read_unpacked

CONTENT = np.random.default_rng(0).integers(0, 4, 100, np.uint8).tobytes()
GZIP, XZ = gzip.compress(CONTENT), lzma.compress(CONTENT)


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize("stored", [CONTENT, GZIP, XZ], ids=["plain", "gzip", "xz"])
def test_reads_plain_and_packed_whatever_the_name(tmp_path: Path, name: str, stored: bytes) -> None:
    (tmp_path / name).write_bytes(stored)
    assert read_unpacked(tmp_path / name, len(CONTENT)) == CONTENT


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_reads_no_more_than_asked(tmp_path: Path, pack: type[bytes]) -> None:
    (tmp_path / "images").write_bytes(pack(bytes(10_000_000)))
    with pytest.raises(InputError, match="holds more than the 20 bytes expected"):
        read_unpacked(tmp_path / "images", 20)


@pytest.mark.parametrize("stored", [GZIP, XZ], ids=["gzip", "xz"])
def test_a_packed_file_cut_off_anywhere_is_refused(tmp_path: Path, stored: bytes) -> None:
    for length in range(6, len(stored)):
        (tmp_path / "images").write_bytes(stored[:length])
        with pytest.raises(InputError, match=r"images: the packed file is damaged"):
            read_unpacked(tmp_path / "images", 1000)


@pytest.mark.parametrize("stored", [GZIP, XZ], ids=["gzip", "xz"])
def test_a_damaged_packed_file_is_refused(tmp_path: Path, stored: bytes) -> None:
    damaged = bytearray(stored)
    damaged[-8] ^= 1  # a checksum
    (tmp_path / "images").write_bytes(damaged)
    with pytest.raises(InputError, match="damaged"):
        read_unpacked(tmp_path / "images", 1000)


def test_an_xz_file_that_asks_for_much_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(_with_dictionary(bytearray(XZ), 512 << 20))
    with pytest.raises(InputError, match=r"damaged.*[Mm]emory"):
        read_unpacked(tmp_path / "images", 1000)


def _with_dictionary(stored: bytearray, size_bytes: int) -> bytes:
    """The xz file with another dictionary size in its one block header (12 bytes of stream header before it)."""
    header_bytes = 4 * (stored[12] + 1)
    block = stored[12 : 12 + header_bytes]
    place = block.index(b"\x21\x01") + 2  # LZMA2, one byte of properties
    block[place] = 2 * (size_bytes.bit_length() - 1 - 12)
    block[-4:] = zlib.crc32(block[:-4]).to_bytes(4, "little")
    return bytes(stored[:12] + block + stored[12 + header_bytes :])


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be read"):
        read_unpacked(tmp_path / "nowhere", 10)
