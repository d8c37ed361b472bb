"""Protobuf's text format from dictionaries, laid out for reading."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
MAX_LINE_LENGTH = 120


class Word(str):
    """A value written without quotes: true, false, or a name of an enum."""


TRUE, FALSE, TRAIN, TEST = Word("true"), Word("false"), Word("TRAIN"), Word("TEST")


def lines_of(field: str, value: object, indent: str = "") -> list[str]:
    """`field` with its value, on one line where it fits; a sequence is a repeated field."""
    line = indent + " ".join(_parts(field, value))
    if len(line) <= MAX_LINE_LENGTH or not isinstance(value, Mapping):
        return [line]
    return [f"{indent}{field} {{", *_inner_lines(value, indent + "  "), f"{indent}}}"]


def _inner_lines(message: Message, indent: str) -> list[str]:
    """What is not a message together first, then each message."""
    plain = [part for name, value in message.items() if not _is_message(value) for part in _parts(name, value)]
    nested = [line for name, value in message.items() if _is_message(value) for line in lines_of(name, value, indent)]
    return [*_filled(plain, indent), *nested]


def _filled(parts: list[str], indent: str) -> list[str]:
    """As many parts on each line as fit."""
    lines = [indent + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) <= MAX_LINE_LENGTH:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + part)
    return lines


def _is_message(value: object) -> bool:
    parts = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return all(isinstance(part, Mapping) for part in parts)


def _inline(message: Message) -> str:
    parts = [line for name, value in message.items() for line in _parts(name, value)]
    return "{ " + " ".join(parts) + " }"


def _parts(field: str, value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{field} {_inline(value)}"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [part for each in value for part in _parts(field, each)]
    return [f"{field}: {_scalar(value)}"]


def _scalar(value: object) -> str:
    if isinstance(value, str) and not isinstance(value, Word):
        return f'"{value}"'
    return f"{value:.9g}" if isinstance(value, float) else str(value)
