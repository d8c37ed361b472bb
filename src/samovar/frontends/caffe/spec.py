"""A layer as a prototxt describes it, with its place for error messages, and the files it names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from samovar.core.errors import InputError
from samovar.formats.caffe.schema import Message
from samovar.formats.caffe.text import TextPlace

Shape: TypeAlias = tuple[int, ...]
Phase: TypeAlias = Literal["TRAIN", "TEST"]
_Value = TypeVar("_Value")
PHASES: dict[Phase, int] = {"TRAIN": 0, "TEST": 1}

MAX_VALUES = (1 << 31) - 1  # Caffe's limit for one blob


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Caffe's LayerParameter, its place, and the phase of the net it is built for."""

    path: Path
    message: Message
    place: TextPlace
    phase: Phase = "TRAIN"

    @property
    def name(self) -> str:
        return str(self.message.name)

    @property
    def type(self) -> str:
        return str(self.message.type)

    @property
    def bottoms(self) -> tuple[str, ...]:
        return tuple(self.message.bottom)

    @property
    def tops(self) -> tuple[str, ...]:
        return tuple(self.message.top)

    @property
    def is_training(self) -> bool:
        """Whether the layer works as in training: by its own `phase` if it has one, else by the net's."""
        if self.message.HasField("phase"):
            return bool(self.message.phase == PHASES["TRAIN"])
        return self.phase == "TRAIN"

    def error(self, reason: str, *fields: str) -> InputError:
        """An error `file:line: layer 'name': reason`, at the line of `fields` ("data_param.source")."""
        return InputError(f"{self.where(*fields)}: {reason}")

    def where(self, *fields: str) -> str:
        names = [name for field in fields for name in field.split(".")]
        return f"{self.path}:{self.place.line_of(*names)}: layer '{self.name}'"

    def finite(self, owner: str, field: str) -> float:
        """The number `field` of the settings `owner`; InputError for NaN and infinity."""
        value = float(getattr(getattr(self.message, owner), field))
        if not math.isfinite(value):
            raise self.error(f"{field}: {value}; it must be a finite number", owner, field)
        return value

    def one_each(self, values: Sequence[_Value], count: int, what: str, each: str, *fields: str) -> list[_Value]:
        """`values`, given once for all, or once for each of `count`; InputError for another number of them."""
        if len(values) not in (1, count):
            or_each = f" for all, or {count} times, once for each {each}" if count > 1 else ""
            raise self.error(f"{what} is given {len(values)} times; give it once{or_each}", *fields)
        return [*values] * count if len(values) == 1 else [*values]

    def axis(self, shape: Shape, axis: int, *fields: str) -> int:
        """`axis` from 0; negative ones count from the end. InputError if `shape` has no such axis."""
        if not -len(shape) <= axis < len(shape):
            raise self.error(
                f"axis {axis} of an input of shape {text(shape)}; allowed are {-len(shape)} to {len(shape) - 1}",
                *fields,
            )
        return axis % len(shape)


def checked(spec: LayerSpec, shape: Shape, what: str) -> Shape:
    """`shape`; InputError unless each size is at least 1 and the array is at most as large as Caffe allows."""
    if any(size < 1 for size in shape):
        raise spec.error(f"{what} would have shape {text(shape)}; each size must be at least 1")
    if prod(shape) > MAX_VALUES:
        raise spec.error(f"{what} would have shape {text(shape)}, more than {MAX_VALUES} values; make it smaller")
    return shape


def text(shape: Shape) -> str:
    """`64 x 20 x 12 x 12`, for messages."""
    return " x ".join(map(str, shape)) or "()"


def find_named(written: str, prototxt: Path, where: str) -> Path:
    """The file or folder `written` in `prototxt`; `where` ("file:line: field") starts the error's message.
    Raises InputError, naming both places, if neither has it."""
    if not written:
        raise InputError(f"{where} is empty; give a path")
    beside = prototxt.parent / written
    for candidate in (Path(written), beside):
        if is_there(candidate):
            return candidate
    places = dict.fromkeys(str(path.absolute()) for path in (Path(written), beside))
    raise InputError(f"{where}: '{written}' does not exist; looked for {' and '.join(places)}")


def is_there(path: Path) -> bool:
    """Whether a file or folder exists; False also for a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
