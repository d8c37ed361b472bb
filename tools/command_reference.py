"""Every command and flag of the program, as the reference of the command line lists them.

    python tools/command_reference.py

Writes docs/reference/command-line.md between its marks. `make docs` checks that it is up to date.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from samovar.cli.commands import app_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/command-line.md"
_MADE = re.compile(r"(<!-- made from the flags -->\n)(.*)(<!-- end -->)", re.DOTALL)


@cache
def program() -> Any:
    return get_command(app_of(()))


@cache
def commands() -> dict[tuple[str, ...], Any]:
    """All commands by their words: ("train",), ("box", "serve")."""
    return dict(_below(program(), ()))


def _below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in getattr(command, "commands", {}).items():
        yield (*words, name), one
        yield from _below(one, (*words, name))


def flags_of(words: tuple[str, ...]) -> set[str]:
    """The flags of a command, also those that --help leaves out; () is the program."""
    command = commands()[words] if words else program()
    return {"--help", *(flag for one in command.params for flag in (*one.opts, *one.secondary_opts))}


def with_commands(text: str) -> str:
    """Return the page with its generated part brought up to date."""
    made = "\n".join(_described(words, command) for words, command in commands().items())
    return _MADE.sub(lambda found: f"{found[1]}\n{made}\n{found[3]}", text)


def _described(words: tuple[str, ...], command: Any) -> str:
    lines = [f"{'#' * (len(words) + 1)} samovar {' '.join(words)}", "", _joined(command.help or ""), ""]
    if not hasattr(command, "commands"):
        lines += ["```text", _usage(words, command), "```", "", *_arguments(command), *_flags(command)]
    return "\n".join(lines)


def _joined(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _usage(words: tuple[str, ...], command: Any) -> str:
    required = [f"{_flag(one)} {_value(one)}".rstrip() for one in _options(command) if one.required]
    rest = ["[FLAGS]"] if _options(command) else []
    return " ".join(["samovar", *words, *required, *rest, *(_value(one) for one in _positional(command))])


def _positional(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name != "argument"]


def _arguments(command: Any) -> list[str]:
    lines = [f"- `{_value(one)}`: {_sentence(one)}" for one in _positional(command)]
    return [*lines, ""] if lines else []


def _flags(command: Any) -> Iterator[str]:
    """By panel, as --help shows them; within one, those that --help leaves out come last."""
    panels: dict[str, list[Any]] = {}
    for one in sorted(_options(command), key=lambda one: bool(one.hidden)):
        panels.setdefault(one.rich_help_panel or "", []).append(one)
    for panel, options in panels.items():
        if panel:
            yield from (f"**{panel}**", "")
        for one in options:
            rare = " Shown by `--help-all`." if one.hidden else ""
            yield f"- `{f'{_flag(one)} {_value(one)}'.rstrip()}`: {_sentence(one)}{_default(one)}{rare}"
        yield ""


def _flag(one: Any) -> str:
    return ", ".join(sorted((*one.opts, *one.secondary_opts), key=len))


def _value(one: Any) -> str:
    """The placeholder of a flag's value, or of an argument."""
    if one.metavar is not None:
        return str(one.metavar)
    if one.param_type_name == "argument":
        return str(one.name).upper()
    kinds = {bool: "", int: "N", float: "X", Path: "PATH"}
    annotation = one.type_descriptor.annotation
    return kinds.get(annotation, "TEXT")


def _sentence(one: Any) -> str:
    text = _joined(one.help or "").replace("<", "\\<")  # Markdown would take <name> for HTML
    return text if text.endswith((".", "?")) else f"{text}."


def _default(one: Any) -> str:
    if one.required:
        return " Required."
    if not one.show_default or one.default in (None, False, "") or "efault:" in (one.help or ""):
        return ""
    shown = one.show_default if isinstance(one.show_default, str) else one.default
    return f" Default: `{shown:g}`." if isinstance(shown, float) else f" Default: `{shown}`."


def main() -> int:
    PAGE.write_text(with_commands(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
