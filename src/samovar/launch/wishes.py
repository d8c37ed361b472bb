"""The wishes in the environment of a user's program: figures, and the folder for what is kept between runs."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

METRICS, TRACE = "SAMOVAR_METRICS", "SAMOVAR_TRACE"


@dataclass(frozen=True, slots=True)
class FigureWishes:
    """SAMOVAR_METRICS and SAMOVAR_TRACE, as `samovar run` sets them; None if they are not set."""

    metrics: str | None
    trace: str | None


def figure_wishes() -> FigureWishes:
    return FigureWishes(os.environ.get(METRICS) or None, os.environ.get(TRACE) or None)


def state_folder() -> Path | None:
    """Where this host's measurements are kept: in $XDG_STATE_HOME, else ~/.local/state. None without a home.

    Source: the XDG base directory specification.
    """
    given, home = (Path(os.environ.get(name, "")) for name in ("XDG_STATE_HOME", "HOME"))
    parent = given if given.is_absolute() else home / ".local" / "state"
    return parent / "samovar" / (socket.gethostname() or "host") if parent.is_absolute() else None
