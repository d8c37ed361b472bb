"""Wishes in the environment: figures, the folder for what is kept between runs, and words that a shell completes."""

import os
import socket
from pathlib import Path

METRICS, TRACE = "SAMOVAR_METRICS", "SAMOVAR_TRACE"
_ASKED = "_SAMOVAR_COMPLETE"  # the shell's script, which typer makes, sets it
_COMMAND_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # bash; zsh and fish


def figure_wishes() -> tuple[str | None, str | None]:
    """SAMOVAR_METRICS and SAMOVAR_TRACE, as `samovar run` sets them; None if they are not set."""
    return os.environ.get(METRICS) or None, os.environ.get(TRACE) or None


def state_folder() -> Path | None:
    """Where this host's measurements are kept: in $XDG_STATE_HOME, else ~/.local/state. None without a home.

    Source: the XDG base directory specification.
    """
    given, home = (Path(os.environ.get(name, "")) for name in ("XDG_STATE_HOME", "HOME"))
    parent = given if given.is_absolute() else home / ".local" / "state"
    return parent / "samovar" / (socket.gethostname() or "host") if parent.is_absolute() else None


def words_to_complete() -> list[str] | None:
    """The words after the program's name; the last one may be incomplete. None: a command is to run."""
    if _ASKED not in os.environ:
        return None
    line = next((os.environ[name] for name in _COMMAND_LINES if name in os.environ), "")
    return line.split()[1:]
