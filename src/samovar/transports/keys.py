"""The key of a job: one secret file. Only processes that can read it take part.

The file is PEM: a private key (ECDSA, P-256) and a certificate of it, signed by itself. All members hold the same
file, and each accepts exactly this certificate. It never ends, so no clock has to be right.
"""

import importlib
import os
import re
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from samovar.core.errors import InputError

_MOST_BYTES = 16_384
_SIDES = (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Key:
    """A key that was read: its TLS contexts, and the certificate (DER) that the other side must show."""

    certificate: bytes = field(repr=False)
    for_client: ssl.SSLContext = field(repr=False)
    for_server: ssl.SSLContext = field(repr=False)


def make_key(path: Path) -> None:
    """Write a new key at `path`, readable by this user only, if there is no file yet. Raises InputError if that fails.

    An existing file is never overwritten, because others may use it: of programs that begin at once, one makes it.
    """
    descriptor = -1
    try:
        if path.exists():
            return
        text = _new_key()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(text)
    except OSError as error:
        if descriptor >= 0:  # a part of a key is none
            path.unlink(missing_ok=True)
        elif isinstance(error, FileExistsError) and path.exists():  # another program was faster
            return
        raise InputError(f"key file {path}: cannot be made ({error.strerror}); name another with --key-file") from error


def make_key_in_memory(text: bytes | None = None) -> int:
    """The descriptor of a key that no file has, `text` or a new one; `key_path` is where to read it."""
    descriptor = os.memfd_create("samovar-key", os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, text or _new_key())
    return descriptor


def copy_in_memory(path: Path) -> int:
    """The same with the key in `path`. Raises as `read_key`."""
    with _opened(path) as descriptor:
        return make_key_in_memory(os.read(descriptor, _MOST_BYTES))


def key_path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def read_key(path: Path) -> Key:
    """The key in `path`. Raises InputError if it cannot be read, is not a key, or others could read it."""
    with _opened(path) as descriptor:
        text = os.read(descriptor, _MOST_BYTES).decode("ascii", errors="replace")
        found = _CERTIFICATE.search(text)
        if found is None:
            raise InputError(f"key file {path}: holds no certificate; give the key file that the other side has")
        # The file that was checked, even if the path now leads to another.
        place = f"/proc/self/fd/{descriptor}"
        try:
            certificate = ssl.PEM_cert_to_DER_cert(found[0])
            contexts = [_context(side, place, certificate) for side in _SIDES]
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise InputError(f"key file {path}: cannot be used ({reason}); make a new one") from error
    return Key(certificate, *contexts)


def _new_key() -> bytes:
    # Only now: it imports much of `cryptography`, and few processes make a key.
    text: bytes = importlib.import_module("samovar.transports.new_key").new_key()
    return text


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file that only this user can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"key file {path}: {error.strerror}; copy the job's, or name it with --key-file") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise InputError(f"key file {path}: is not a file of at most {_MOST_BYTES:,} bytes; name another")
        if status.st_uid != os.geteuid():
            raise InputError(f"key file {path}: belongs to user {status.st_uid}; it must be your own")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise InputError(f"key file {path}: others may read it (mode {mode:04o}); say: chmod 600 {path}")
        yield descriptor
    finally:
        os.close(descriptor)


def _context(side: int, place: str, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is what is compared
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    context.load_cert_chain(place, password=lambda: b"")  # never ask at the terminal
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no connection resumes another
    return context
