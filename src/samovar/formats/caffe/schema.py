"""Caffe's protobuf schema: the tables of schema_nets.py and schema_layers.py as message classes.

Descriptors are made when the module is loaded, in pools of our own; there is no protoc and no generated file.
"""

import re
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from samovar.formats.caffe.schema_layers import LAYERS, OLD_LAYERS
from samovar.formats.caffe.schema_nets import NETS

Message: TypeAlias = Any  # protobuf's classes are made at run time and carry no types
MessageClass: TypeAlias = Any

PACKAGE = "caffe"
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


def message_class(name: str) -> MessageClass:
    """The class of Caffe's message `name` ("NetParameter"); KeyError for a name that Caffe does not have."""
    return _class(_POOL, name)


def packed_message_class(name: str) -> MessageClass:
    """As `message_class`, but packed float and double fields are lists of raw little-endian byte runs.

    On the wire both are the same. It reads and writes arrays without a Python object for each number.
    """
    return _class(_PACKED_POOL, name)


def _class(pool: Any, name: str) -> MessageClass:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _build_pool(table: str, packed_as_bytes: bool) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package=PACKAGE, syntax="proto2")
    for line in filter(None, table.splitlines()):
        if line.startswith("message "):
            file.message_type.add(name=line.split()[1])
        elif line.startswith("enum "):
            _add_enum(file.message_type[-1] if file.message_type else file, line)
        else:
            for text in line.split("; "):
                _add_field(file, text, packed_as_bytes)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_enum(owner: Any, line: str) -> None:
    _, name, *values = line.split()
    enum = owner.enum_type.add(name=name)
    for value in values:
        value_name, number = value.split("=")
        enum.value.add(name=value_name, number=int(number))


def _add_field(file: Any, text: str, packed_as_bytes: bool) -> None:
    match = _FIELD.fullmatch(text)
    assert match is not None, text
    number, name, type_name, cardinality, default = match.groups()
    message = file.message_type[-1]
    field = message.field.add(name=name, number=int(number), label=_LABELS[cardinality])
    if packed_as_bytes and cardinality == "+" and type_name in ("float", "double"):
        field.type = _Field.TYPE_BYTES
        return
    if cardinality == "+":
        field.options.packed = True
    if default is not None:
        field.default_value = default
    _set_type(file, message, field, type_name)


def _set_type(file: Any, message: Any, field: Any, type_name: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    elif type_name in [enum.name for enum in message.enum_type]:
        field.type, field.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{message.name}.{type_name}"
    elif type_name in [enum.name for enum in file.enum_type]:
        field.type, field.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{type_name}"
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{type_name}"


_TABLE = NETS + LAYERS + OLD_LAYERS
_POOL = _build_pool(_TABLE, packed_as_bytes=False)
_PACKED_POOL = _build_pool(_TABLE, packed_as_bytes=True)
