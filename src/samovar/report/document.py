"""The answer of a command as one JSON document on stdout."""

import sys
from collections.abc import Callable
from typing import Any

from samovar.core.plain import json_document
from samovar.report.console import Console
from samovar.report.records import Record
from samovar.report.tables import printer


def print_json(value: object) -> None:
    """Print `value` as a JSON document, at once: at its exit Python reports a full disk in its own way."""
    try:
        sys.stdout.write(json_document(value) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        printer().on_broken_pipe()


class AnswerDisplay:
    """Shows the record of type `kind` by `answer`, and all others as text: on stderr, if it is a document."""

    def __init__(self, kind: type[Record], answer: Callable[[Any], None], *, is_document: bool = False) -> None:
        self._kind, self._answer = kind, answer
        self._console = Console(sys.stderr if is_document or answer is print_json else sys.stdout, sys.stderr)

    def show(self, record: Record) -> None:
        """Show one record."""
        (self._answer if isinstance(record, self._kind) else self._console.show)(record)
