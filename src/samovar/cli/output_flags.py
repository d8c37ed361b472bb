"""How flags are declared, and those of a command's output and of its help; loads nothing."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from samovar.core.errors import InputError


@dataclass(frozen=True)
class Panel:
    """Makes flags that stand under this title in a command's help; "" is typer's own.

    `metavar` is what follows the flag, "" nothing. Shells complete `choices`. A flag that few would set is `hidden`:
    --help leaves it out, --help-all shows it.
    """

    title: str = ""

    def __call__(self, metavar: str, text: str, *names: str, choices: Sequence[str] = (), **more: Any) -> Any:
        """The flag with this help, and with `names` if they do not follow from the parameter's."""
        panel = self.title or None
        return typer.Option(
            *names, metavar=metavar, help=text, rich_help_panel=panel, autocompletion=lambda: list(choices), **more
        )


OPTIONS, OUTPUT = Panel(), Panel("Output and help")


def require_place(flag: str, path: Path, read: Callable[[Path], object] | None = None) -> None:
    """Refuse now what would be refused after measuring. A file that exists is replaced only if `read` can read it."""
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"{flag} {path}: is not a place for a file; give a file in a folder that exists")
    try:
        if read is not None and os.path.lexists(path):
            read(path)
    except InputError as error:
        raise InputError(f"{flag} {path}: exists, and does not hold what is saved here; give another file") from error


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


_ALL = "Show every flag, also those that few set."
HelpAll = Annotated[bool, OUTPUT("", _ALL, "--help-all", is_eager=True, callback=_show_all)]
Quiet = Annotated[bool, OUTPUT("", "Show errors only.", "--quiet")]
