"""How a function becomes a command: the flags of its output and help, and flags that come to it as one value."""

import importlib
import inspect
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from samovar.core.errors import InputError


def load(module: str) -> Any:
    """A module that only some calls need, such as one that needs torch. A signal waits until it is loaded.

    Raised in the middle of it, an exception would pass through native code, which ends the process by itself.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, lambda which, _frame: came.append(which))
    try:
        return importlib.import_module(module)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came[:1]:
            signal.raise_signal(one)


class _HelpLast:
    """Shows --help in the last panel of its help, not in one of its own, and without colours."""

    params: list[Any]

    def get_help_option(self, ctx: typer.Context) -> TyperOption | None:
        """As typer makes it, in the panel of the last flags."""
        option: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
            option.rich_help_panel = getattr(self.params[-1], "rich_help_panel", None) if self.params else None
        return option

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:
        """Print the help so that it can be read on light terminals too."""
        _without_colours()
        super().format_help(ctx, formatter)  # type: ignore[misc]


class HelpLast(_HelpLast, TyperCommand):  # type: ignore[misc]
    """A command with such a help."""


class GroupHelpLast(_HelpLast, TyperGroup):  # type: ignore[misc]
    """A group of commands with such a help."""


def _without_colours() -> None:
    """Bright cyan and yellow, typer's, cannot be read on a light terminal."""
    styles = load("typer.rich_utils")
    styles.STYLE_TYPES = ""
    for name in ("STYLE_OPTION", "STYLE_SWITCH", "STYLE_USAGE", "STYLE_COMMANDS_TABLE_FIRST_COLUMN"):
        setattr(styles, name, "bold")


def gathered(function: Callable[..., None], **groups: type[Any] | Sequence[inspect.Parameter]) -> Callable[..., None]:
    """A command of `function`. A parameter in `groups` becomes a flag for each field of its named tuple.

    For a sequence of parameters, it becomes their flags, and their values come as a dictionary.
    """
    flags = {name: _flags(group) if isinstance(group, type) else list(group) for name, group in groups.items()}

    def command(**values: Any) -> None:
        for name, group in groups.items():
            given = {flag.name: values.pop(flag.name) for flag in flags[name]}
            values[name] = group(**given) if isinstance(group, type) else given
        function(**values)

    own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [flag for one in own for flag in flags.get(one.name, [one])]
    _require_different(parameters)
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _flags(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    fields = inspect.signature(group).parameters
    return [fields[name].replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY) for name in fields]


def _require_different(parameters: Sequence[inspect.Parameter]) -> None:
    names = [parameter.name for parameter in parameters]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--strategy: its setting {twice[0]} is called as another flag; give it another name")


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
