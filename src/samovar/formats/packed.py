"""Files as published: plain, gzip or xz, told apart by their first bytes."""

import gzip
import lzma
import re
import zlib
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from samovar.core.errors import InputError

SUFFIXES = ("", ".gz", ".xz")
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_MAX_XZ_MEMORY_BYTES = 256 << 20  # `xz -9` asks for 65 MB; a header may declare 4 GB


def read_unpacked(path: Path, max_bytes: int) -> bytes:
    """The content of a file, unpacked where it is a gzip or xz file, whatever its name.

    Raises: InputError where it cannot be read or unpacked, or holds more than `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            content = _unpacked(file, max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise InputError(f"{path}: the packed file is damaged ({error}). Download it again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from error
    if len(content) > max_bytes:
        raise InputError(f"{path}: holds more than the {max_bytes} bytes expected. Download it again.")
    return content


def _unpacked(file: BinaryIO, limit: int) -> bytes:
    """At most `limit` bytes of what is in the file."""
    magic = file.read(len(_XZ_MAGIC))
    file.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=file).read(limit)
    if magic == _XZ_MAGIC:
        return _unpacked_xz(file, limit)
    return file.read(limit)


def _unpacked_xz(file: BinaryIO, limit: int) -> bytes:
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY_BYTES)
    content = bytearray()
    while not unpacker.eof and len(content) < limit:
        packed = file.read(1 << 20) if unpacker.needs_input else b""
        if unpacker.needs_input and not packed:
            raise EOFError("it ends before its content does")
        content += unpacker.decompress(packed, limit - len(content))
    return bytes(content)


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
        # protobuf itself holds a class no longer than its messages live. One that the garbage collector is clearing can
        # still be handed to another thread, as clearing a tensor lets others run, and is used without its descriptor.
        self._classes = {
            message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message.name}"))
            for message in file.message_type
        }

    def message_class(self, name: str) -> MessageClass:
        """The class of message `name`; KeyError for a name that the table does not have."""
        return self._classes[name]

    def _add_line(self, file: Any, line: str) -> None:
        if line.startswith("message "):
            file.message_type.add(name=line.split()[1])
        elif line.startswith("enum "):
            _add_enum(file.message_type[-1] if file.message_type else file, line)
        else:
            for text in line.split("; "):
                self._add_field(file, text)

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
