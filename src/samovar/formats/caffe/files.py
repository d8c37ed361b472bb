"""A user's file, read whole, with a size cap and errors that name it, and written whole."""

from pathlib import Path

from samovar.core.durable import publish_file
from samovar.core.errors import InputError

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


def start_of(path: Path, num_bytes: int) -> bytes:
    """The first bytes of a regular file; none if it cannot be read."""
    try:
        if not path.is_file():  # to open a FIFO would wait for ever
            return b""
        with path.open("rb") as file:
            return file.read(num_bytes)
    except (OSError, ValueError):
        return b""


def read_file(path: Path, kind: str, max_bytes: int) -> bytes:
    """The bytes of the regular file `path`; `kind` ("solver", "caffemodel") is for the message.
    Raises InputError if it does not exist, cannot be read, or has more than `max_bytes`."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a regular file; give a {kind} file")
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(f"{path}: has {size} bytes; a {kind} may have at most {max_bytes}")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such {kind} file (looked from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: cannot read the {kind} file: {reason}") from None


def read_binary(path: Path, kind: str, max_bytes: int) -> bytes:
    """As `read_file`, for a binary protobuf; the error says so if it is an HDF5 file."""
    content = read_file(path, kind, max_bytes)
    if content.startswith(HDF5_MAGIC):
        raise InputError(
            f"{path}: is an HDF5 file, but a {kind} is a binary protobuf; give the file that Caffe's tools wrote"
        )
    return content


def utf8(value: str | bytes, where: str) -> str:
    """A text from one of Caffe's messages, which holds bytes instead if they are not UTF-8.
    Raises InputError, starting with `where`, for bytes."""
    if isinstance(value, bytes):
        raise InputError(f"{where}: {value[:60]!r} is not UTF-8 text; the file is damaged")
    return value


def write_whole(path: Path, content: bytes, flag: str = "") -> None:
    """Write `path`, also over an old file; it is whole, or as before. InputError, beginning with `flag`, on failure."""
    try:
        publish_file(path, [content])
    except OSError as error:
        raise InputError(f"{flag}{path}: cannot be written: {error.strerror}; give another name") from error
