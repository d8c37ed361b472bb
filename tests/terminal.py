"""The screen of a terminal that a test has made."""

import os
from contextlib import suppress


def read_to_end(screen: int) -> bytes:
    """The output to a terminal whose other end is closed; the kernel may deliver it late."""
    shown = b""
    with suppress(OSError):  # which is the end
        while piece := os.read(screen, 1 << 16):
            shown += piece
    return shown
