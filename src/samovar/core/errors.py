"""Samovar's exceptions.

SamovarError                 anything this package refuses or cannot finish (exit code 3)
|-- InputError               the user's input: a file, a field, a flag (exit code 2)
|-- DeadlineExceeded         a wait ended by its deadline
|-- RankFailed               a rank died or reported an error
`-- ReplicasDiffer           ranks that must agree hold different values

Every message says what happened, what was found, what is allowed and what to do next.
A bug of ours is an AssertionError, never one of these.
"""


class SamovarError(Exception):
    """Root of the tree; `exit_code` is the process's exit status."""

    exit_code = 3


class InputError(SamovarError):
    """Input that cannot be used; the message names the file and line, or the flag."""

    exit_code = 2


class DeadlineExceeded(SamovarError):
    """A wait for another rank (or thread) lasted longer than its deadline."""


class RankFailed(SamovarError):
    """A rank ended, or its host went, before its work was done; the message names it."""


class ReplicasDiffer(SamovarError):
    """Ranks that must hold the same bits do not; the message names the ranks."""
