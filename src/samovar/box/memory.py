"""Anonymous files (memfd) that processes map together: no name, so nothing is left behind by any kill."""

import fcntl
import os

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create_empty() -> int:
    """A new empty file; the caller owns the descriptor, which children inherit only where it is passed on."""
    return os.memfd_create("samovar", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(descriptor: int) -> None:
    """The file keeps its size from now on, so no mapping of it can ever fault."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)


def is_sealed(descriptor: int) -> bool:
    """Whether the file has got the size and the content with which others may map it."""
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK != 0
