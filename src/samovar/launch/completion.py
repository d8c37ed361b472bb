"""Whether a shell asks to complete a command line, and which one."""

import os

_ASKED = "_SAMOVAR_COMPLETE"  # the shell's script, which typer makes, sets it
_COMMAND_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # bash; zsh and fish


def words_to_complete() -> list[str] | None:
    """The words after the program's name; the last one may be incomplete. None: a command is to run."""
    if _ASKED not in os.environ:
        return None
    line = next((os.environ[name] for name in _COMMAND_LINES if name in os.environ), "")
    return line.split()[1:]
