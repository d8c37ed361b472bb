"""What a user has said of malloc, where the process is theirs."""

import os
from collections.abc import Mapping

_MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def allocator_is_chosen(variables: Mapping[str, str] | None = None) -> bool:
    """Whether the environment says what malloc does with freed memory, or puts another in its place."""
    given = os.environ if variables is None else variables
    tunes = "glibc.malloc." in given.get("GLIBC_TUNABLES", "")
    return tunes or "malloc" in given.get("LD_PRELOAD", "") or any(given.get(name) for name in _MALLOC_VARIABLES)
