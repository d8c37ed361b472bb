"""The flags of a command's output and of its help, which load nothing."""

from functools import partial
from typing import Annotated

import typer

output_flag = partial(typer.Option, rich_help_panel="Output and help")
json_flag = partial(output_flag, "--json", metavar="")  # its help says what is in the document


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


_ALL = "Show every flag, also those that few set."
HelpAll = Annotated[bool, output_flag("--help-all", metavar="", is_eager=True, callback=_show_all, help=_ALL)]
Quiet = Annotated[bool, output_flag("--quiet", metavar="", help="Show errors only.")]
