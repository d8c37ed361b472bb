"""Files as published: plain, gzip or xz, told apart by their first bytes."""

import gzip
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO

from samovar.core.errors import InputError

SUFFIXES = ("", ".gz", ".xz")
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_MAX_XZ_MEMORY_BYTES = 256 << 20  # `xz -9` asks for 65 MB; a header may declare 4 GB


def read_unpacked(path: Path, max_bytes: int) -> bytes:
    """The content of a file, unpacked where it is a gzip or xz file, whatever its name.

    Raises: InputError where it cannot be read or unpacked, or holds more than `max_bytes`.
    """
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
