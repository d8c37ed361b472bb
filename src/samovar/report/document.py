"""The answer of a command as one JSON document on stdout."""

from typing import TextIO

from samovar.report.console import Console
from samovar.report.plain import json_document
from samovar.report.records import Record


class DocumentDisplay:
    """Prints the record of type `kind` as a JSON document to `output`, and all others as text to `errors`."""

    def __init__(self, kind: type[Record], output: TextIO, errors: TextIO) -> None:
        self._kind = kind
        self._output = output
        self._console = Console(errors, errors)

    def show(self, record: Record) -> None:
        """Show one record."""
        if isinstance(record, self._kind):
            self._output.write(json_document(record) + "\n")
        else:
            self._console.show(record)
