"""Frozen dataclasses to JSON objects and back, checked field by field.

JSON has no word for NaN and the infinities: they travel as "NaN", "Infinity" and "-Infinity", as in protobuf.
"""

import dataclasses
import json
import math
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import PurePath
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


_SPELLINGS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_plain(value: object) -> Any:
    """`value` as JSON can hold it: dataclasses and mappings as objects, tuples and lists as arrays."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_plain(kind: type[T], data: object) -> T:
    """The dataclass `kind` that `data` holds; raises ValueError naming the field that does not fit."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} is {_shown(data)}, not an object")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(fields))
    missing = sorted(name for name in set(fields) - set(data) if _is_required(fields[name]))
    wrong = {"lacks": missing, "has unknown fields:": unknown}
    if found := [f"{what} {', '.join(map(str, names))}" for what, names in wrong.items() if names]:
        raise ValueError(f"{kind.__name__} {' and '.join(found)}")
    return kind(**{name: _value(hints[name], item, f"{kind.__name__}.{name}") for name, item in data.items()})


def as_number(value: object) -> object:
    """A spelled-out NaN or infinity as the float it stands for; anything else as it is."""
    return _SPELLINGS.get(value, value) if isinstance(value, str) else value


def json_line(data: Mapping[str, object]) -> bytes:
    """One line of JSON; values that JSON does not know raise TypeError."""
    return json.dumps(to_plain(data), separators=(", ", ": "), allow_nan=False).encode() + b"\n"


def json_document(value: object) -> str:
    """`value` as an indented JSON document, for a command's --json."""
    return json.dumps(to_plain(value), indent=2, allow_nan=False)


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(hint: Any, value: object, where: str) -> Any:
    origin = get_origin(hint)
    if origin is types.UnionType:
        return _member(get_args(hint), value, where)
    if origin is tuple:
        return _items(get_args(hint), value, where)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(get_args(hint)[1], value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    return value if hint in (object, Any) else _scalar(hint, value, where)


def _scalar(hint: type, value: object, where: str) -> object:
    if issubclass(hint, StrEnum) and isinstance(value, str) and value in list(hint):
        return hint(value)
    if hint is float:
        value = as_number(value)
        if type(value) in (int, float):
            with suppress(OverflowError):
                return float(value)  # type: ignore[arg-type]
    if issubclass(hint, PurePath) and isinstance(value, str):
        return hint(value)
    if type(value) is not hint:
        raise ValueError(f"{where} is {_shown(value)}, not {hint.__name__}")
    return value


def _member(hints: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    others = [hint for hint in hints if hint is not type(None)]
    return _value(next((hint for hint in others if type(value) is hint), others[0]), value, where)


def _items(hints: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{where} is {_shown(value)}, not an array")
    kinds = hints[:1] * len(value) if hints[-1] is ... else hints
    if len(kinds) != len(value):
        raise ValueError(f"{where} is {_shown(value)}, not {len(kinds)} values")
    return tuple(_value(*one, f"{where}[{index}]") for index, one in enumerate(zip(kinds, value, strict=True)))


def _mapping(hint: Any, value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {_shown(value)}, not an object")
    return {str(key): _value(hint, item, f"{where}.{key}") for key, item in value.items()}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
