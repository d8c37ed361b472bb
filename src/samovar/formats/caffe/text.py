"""Caffe's text files (`.prototxt`): parsing, and the line of every field for later messages."""

import codecs
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import text_format

from samovar.core.errors import InputError, nearest
from samovar.core.files import read_file
from samovar.formats.caffe.schema import Message, message_class

MAX_TEXT_BYTES = 4 << 20  # some 20,000 layers; the parser takes up to 100 bytes of memory for each
MAX_NESTING = 32  # Caffe's own messages nest 6 deep
_TOKEN = re.compile(r"""\#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[{}<>\[\]:;,]|[^\s{}<>\[\]:;,"'\#]+|["']""")
_NOTHING: Mapping[str, Collection[str]] = {}
_NO_FIELD = re.compile(r'Message type "caffe\.([\w.]+)" has no field named "([^"]*)"')
_NO_VALUE = re.compile(r'Enum type "caffe\.([\w.]+)" has no value named (\S+?)\.?$')


@dataclass(slots=True)
class TextPlace:
    """The place of a field: its line (from 1), and the places of a message's fields by name, in file order."""

    line: int
    fields: dict[str, list["TextPlace"]] = field(default_factory=dict)

    def line_of(self, *names: str) -> int:
        """The line of the first field of this path, or of the last message on the way that exists."""
        place = self
        for name in names:
            if name not in place.fields:
                break
            place = place.fields[name][0]
        return place.line


@dataclass(frozen=True, slots=True)
class Skipped:
    """A field `name` of another program's messages `message`, which was skipped at `line`."""

    message: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class TextMessage:
    """A parsed file: Caffe's message, and `places.fields["layer"][k]` is the place of layer k."""

    path: Path
    message: Message
    places: TextPlace
    skipped: tuple[Skipped, ...] = ()


Foreign: TypeAlias = Mapping[str, Collection[str]]
"""Fields that Caffe does not have, by the name of their message."""


def read_text(path: Path, message_name: str, foreign: Foreign = _NOTHING) -> TextMessage:
    """Parse `path` as Caffe's message `message_name` ("NetParameter", "SolverParameter").

    Fields that Caffe does not have and `foreign` names are skipped. Raises InputError `path:line:column: ...` for text
    that is not such a message, and if the file has more than 4 MB, is not UTF-8, or nests deeper than 32 messages.
    """
    return parse_text(_decoded(path), path, message_name, foreign)


def field_names(path: Path) -> frozenset[str]:
    """The names of the fields of the file itself, without those of messages inside it, known to Caffe or not.
    Raises InputError if the file cannot be read as text."""
    return frozenset(_outline(_decoded(path), path).fields)


def _decoded(path: Path) -> str:
    content = read_file(path, "prototxt", MAX_TEXT_BYTES).removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; is it a text file?") from None


def parse_text(text: str, path: Path, message_name: str, foreign: Foreign = _NOTHING) -> TextMessage:
    """As `read_text`, for text that is already in memory; `path` is for the messages."""
    places = _outline(text, path)
    message = message_class(message_name)()
    unknown = list(_unknown_fields(message.DESCRIPTOR, places)) if foreign else []
    skipped = tuple(field for field in unknown if field.name in foreign.get(field.message, ()))
    if skipped and len(skipped) < len(unknown):  # the parser says nothing of them where it skips any
        other = next(field for field in unknown if field not in skipped)
        raise InputError(f"{path}:{other.line}: {_unknown(other.name, other.message)}")
    try:
        text_format.Parse(text, message, allow_unknown_field=bool(skipped))
    except text_format.ParseError as error:
        raise InputError(f"{path}:{_sentence(error, text)}") from None
    if missing := message.FindInitializationErrors():
        raise InputError(f"{path}: required field {missing[0]} is missing; add it")
    return TextMessage(path, message, places, skipped)


class _Frame:
    """One open message of `_outline`: its place, and the field name that waits for its value."""

    __slots__ = ("colon", "in_list", "line", "name", "place")

    def __init__(self, place: TextPlace) -> None:
        self.place = place
        self.name, self.line, self.colon, self.in_list = "", place.line, False, False

    def add(self, line: int) -> TextPlace:
        """Note that the waiting field has a value; in a list the name still waits."""
        place = TextPlace(line if self.in_list else self.line)
        self.place.fields.setdefault(self.name, []).append(place)
        if not self.in_list:
            self.name, self.colon = "", False
        return place

    def take(self, token: str, line: int) -> None:
        if token == ":":
            self.colon = True
        elif token == "[":
            self.in_list = bool(self.name)
        elif token == "]":
            self.name, self.colon, self.in_list = "", False, False
        elif token in (",", ";"):
            pass
        elif self.colon:
            self.add(line)
        elif token[0] not in "\"'":  # the second of two strings side by side has no name before it
            self.name, self.line = token, line


def _outline(text: str, path: Path) -> TextPlace:
    """The places of all fields; text that is not well-formed gives some of them, and the parser says why."""
    frames = [_Frame(TextPlace(1))]
    line, position = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position, token = match.start(), match[0]
        if token in ("{", "<"):
            if len(frames) > MAX_NESTING:
                raise InputError(f"{path}:{line}: messages nest deeper than {MAX_NESTING}; a net nests about 6 deep")
            frames.append(_Frame(frames[-1].add(line)))
        elif token in ("}", ">"):
            del frames[max(1, len(frames) - 1) :]
        elif token[0] != "#":
            frames[-1].take(token, line)
    return frames[0].place


def _unknown_fields(descriptor: Any, place: TextPlace) -> Iterator[Skipped]:
    """All fields that Caffe does not have, at any depth, in file order."""
    for name, places in place.fields.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            yield Skipped(str(descriptor.full_name.partition(".")[2]), name, places[0].line)
        elif field.message_type is not None:
            for inner in places:
                yield from _unknown_fields(field.message_type, inner)


def _unknown(name: str, message_name: str) -> str:
    fields = [field.name for field in message_class(message_name).DESCRIPTOR.fields]
    return f"unknown field '{name}' of {message_name}; {nearest(name, fields)}"


def _sentence(error: text_format.ParseError, text: str) -> str:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    quoted_line = text.split("\n")[line - 1] if line <= text.count("\n") + 1 else ""
    reason = re.sub(r"^\d+:\d+ : ", "", str(error)).removeprefix(f"'{quoted_line}': ")
    if match := _NO_FIELD.search(reason):
        reason = _unknown(match[2], match[1])
    elif match := _NO_VALUE.search(reason):
        reason = f"unknown value '{match[2]}' of {match[1]}; allowed are {', '.join(_enum_values(match[1]))}"
    return f"{line}:{column}: {reason[:500]}"


def _enum_values(name: str) -> list[str]:
    owner, _, enum_name = name.rpartition(".")
    if owner:
        return [v.name for v in message_class(owner).DESCRIPTOR.enum_types_by_name[enum_name].values]
    return [v.name for v in message_class("NetState").DESCRIPTOR.file.enum_types_by_name[enum_name].values]
