"""Samovar's exceptions.

SamovarError                 anything this package refuses or cannot finish (exit code 3)
|-- InputError               the user's input: a file, a field, a flag (exit code 2)
|-- DeadlineExceeded         a wait ended by its deadline
|-- NotFinite                weights became infinite or NaN (exit code 4)
|-- RankFailed               a rank died or reported an error
`-- ReplicasDiffer           ranks that must agree hold different values

Every message says what happened, what was found, what is allowed and what to do next.
A bug of ours is an AssertionError, never one of these.
"""

import difflib
from collections.abc import Collection
from numbers import Integral
from typing import Final

_MAX_LENGTH: Final = 1000
_TAIL_LENGTH: Final = 300
_FEW: Final = 4  # choices are seen at a glance


class SamovarError(Exception):
    """Root of the tree; `exit_code` is the process's exit status. One that `is_shown` need not be shown again.

    Its text is one line that a terminal can show. Line ends and control characters, from names of files for example,
    become escapes. Of more than 1,000 characters the middle is left out.
    """

    exit_code = 3
    is_shown = False  # by another process of this host

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _MAX_LENGTH:
            text = f"{text[: _MAX_LENGTH - _TAIL_LENGTH]} [...] {text[-_TAIL_LENGTH:]}"
        return text if text.isprintable() else "".join(map(_visible, text))


class InputError(SamovarError):
    """Input that cannot be used; the message names the file and line, or the flag."""

    exit_code = 2


class DeadlineExceeded(SamovarError):
    """A wait for another rank (or thread) lasted longer than its deadline."""


class NotFinite(SamovarError):
    """Weights, or an update of them, are infinite or NaN: from here on nothing is learned."""

    exit_code = 4


class RankFailed(SamovarError):
    """A rank ended, or its host went, before its work was done; the message names it."""


class ReplicasDiffer(SamovarError):
    """Ranks that must hold the same bits do not; the message names the ranks."""


def require_choice(flag: str, value: object, allowed: Collection[str]) -> None:
    """Raises InputError if `value` is not among `allowed`; of many it tells the nearest first."""
    if value not in allowed:
        near = _nearest(str(value), allowed, 0.6) if len(allowed) > _FEW else None
        advice = f"did you mean '{near}'? Else choose" if near else "choose"
        raise InputError(f"{flag}: got {value!r}; {advice} one of: {', '.join(allowed)}")


def require_whole(what: str, value: object, least: int) -> None:
    """Raises InputError if `value` is not a whole number, or less than `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{what} is {value!r}; give a whole number from {least} on")


def nearest(name: str, allowed: Collection[str]) -> str:
    """ "did you mean 'x'?", or all allowed names if none is close."""
    near = _nearest(name, allowed, 0.5)
    return f"did you mean '{near}'?" if near else f"allowed are {', '.join(sorted(allowed))}"


def _nearest(name: str, allowed: Collection[str], similarity: float) -> str | None:
    spelled = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(name.lower(), list(spelled), n=1, cutoff=similarity)
    return spelled[close[0]] if close else None


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
