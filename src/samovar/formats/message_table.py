"""Protobuf messages from a table of text: classes are made at run time, without generated code."""

import re
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message: TypeAlias = Any  # protobuf's classes are made at run time and carry no types

MessageClass: TypeAlias = Any

_FIELD = re.compile(r"(\d+) (\w+) (\w+)([*+!]?)(?: = (\S+))?")

_Field = descriptor_pb2.FieldDescriptorProto

_SCALAR_NAMES = ("double", "float", "int64", "int32", "uint32", "bool", "string", "bytes")

_SCALARS = {name: getattr(_Field, f"TYPE_{name.upper()}") for name in _SCALAR_NAMES}

_LABELS = {
    "": _Field.LABEL_OPTIONAL,
    "!": _Field.LABEL_REQUIRED,
    "*": _Field.LABEL_REPEATED,
    "+": _Field.LABEL_REPEATED,
}


class MessageTable:
    """The messages of one table, in a pool of their own.

    A line `message NAME: ENTRY; ...` begins a message, and the next lines continue its entries. An entry is a field,
    `NUMBER NAME TYPE [= DEFAULT]`, or `enum NAME VALUE=N ...`. An enum before all messages is global. A type ends with
    `*` (repeated), `+` (repeated and packed) or `!` (required).

    With `packed_as_bytes`, packed float and double fields are lists of raw little-endian byte runs.
    """

    def __init__(self, package: str, table: str, packed_as_bytes: bool = False) -> None:
        self._package = package
        self._packed_as_bytes = packed_as_bytes
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
        for line in filter(None, table.splitlines()):
            self._add_line(file, line)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        # protobuf itself keeps a class only while messages of it live. Another thread could get one that the garbage
        # collector is clearing, and use it without its descriptor.
        self._classes = {
            message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message.name}"))
            for message in file.message_type
        }

    def message_class(self, name: str) -> MessageClass:
        """The class of message `name`; KeyError for a name that the table does not have."""
        return self._classes[name]

    def _add_line(self, file: Any, line: str) -> None:
        entries = line
        if line.startswith("message "):
            name, _, entries = line.removeprefix("message ").partition(":")
            file.message_type.add(name=name)
        for entry in filter(None, entries.strip().split("; ")):
            if entry.startswith("enum "):
                _add_enum(file.message_type[-1] if file.message_type else file, entry)
            else:
                self._add_field(file, entry)

    def _add_field(self, file: Any, text: str) -> None:
        match = _FIELD.fullmatch(text)
        assert match is not None, text
        number, name, type_name, cardinality, default = match.groups()
        message = file.message_type[-1]
        field = message.field.add(name=name, number=int(number), label=_LABELS[cardinality])
        if self._packed_as_bytes and cardinality == "+" and type_name in ("float", "double"):
            field.type = _Field.TYPE_BYTES
            return
        if cardinality == "+":
            field.options.packed = True
        if default is not None:
            field.default_value = default
        self._set_type(file, message, field, type_name)

    def _set_type(self, file: Any, message: Any, field: Any, type_name: str) -> None:
        if type_name in _SCALARS:
            field.type = _SCALARS[type_name]
        elif type_name in [enum.name for enum in message.enum_type]:
            field.type, field.type_name = _Field.TYPE_ENUM, f".{self._package}.{message.name}.{type_name}"
        elif type_name in [enum.name for enum in file.enum_type]:
            field.type, field.type_name = _Field.TYPE_ENUM, f".{self._package}.{type_name}"
        else:
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{self._package}.{type_name}"


def _add_enum(owner: Any, line: str) -> None:
    _, name, *values = line.split()
    enum = owner.enum_type.add(name=name)
    for value in values:
        value_name, number = value.split("=")
        enum.value.add(name=value_name, number=int(number))
