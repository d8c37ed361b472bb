"""What a file says of a buffer, or of a part of one: a safetensors file, which holds its own SHA-256.

Beside `center` (float32) and, where there is one, `velocity`, a file holds the `versions` of the chunks, the `words` of
the board, the `shape` that the buffer was made with, and the `sha256` of all these. To fill a buffer, `center` will do.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from samovar.box.board import NUM_WORDS
from samovar.box.buffers import BufferShape
from samovar.box.endpoints import MOST_BOXES
from samovar.box.joining import BoxSeat
from samovar.box.shards import SHARD_WORDS, CenterShard, whole_of
from samovar.checkpoint.arrays import Array, chunks, parse
from samovar.core.clock import Deadline
from samovar.core.durable import FileMark, publish_file
from samovar.core.errors import InputError

TIMEOUT_S: Final = 120.0
_BY_PART: Final = ("center", "velocity", "versions")  # what follows one part after the other in the whole


@dataclass(frozen=True, slots=True)
class Content:
    """What a file says of a buffer. Without a shape, one is made of `center` and `velocity`; without `words`, none."""

    shape: BufferShape
    arrays: dict[str, Array]

    @classmethod
    def of(cls, shape: BufferShape, arrays: dict[str, Array]) -> "Content":
        """What `samovar.box.joining.read_buffer` gave."""
        return cls(shape, arrays | {"shape": np.array(astuple(shape), np.int64)})

    @classmethod
    def joined(cls, found: Mapping[str, "Content"]) -> "Content":
        """The center whose parts these are, in any order, by where they were found; of one alone, that one.

        Its words are those of the first part. Raises InputError where parts are missing or not of one center.
        """
        if len(found) == 1:
            return next(iter(found.values()))
        contents = [found[where] for where in _in_order(found)]
        names = [name for name in _BY_PART if all(name in content.arrays for content in contents)]
        arrays = {name: np.concatenate([content.arrays[name] for content in contents]) for name in names}
        words = contents[0].arrays["words"].copy()
        words[list(SHARD_WORDS)] = 0
        return cls.of(whole_of([content.shape for content in contents]), arrays | {"words": words})

    @classmethod
    def read_all(cls, files: Sequence[Path]) -> "Content":
        """What is in one file, or in those of the parts of one center; raises InputError as `read` and `joined`."""
        if twice := [file for file in files if files.count(file) > 1]:
            raise InputError(f"{twice[0]}: is given twice; give each part once")
        return cls.joined({str(file): cls.read(file) for file in files})

    @classmethod
    def read(cls, path: Path) -> "Content":
        """Raises InputError where the file is no snapshot of a buffer, or not as it was written."""
        try:
            arrays = parse(path.read_bytes())
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); give a file of `samovar box snapshot`"
            ) from error
        except ValueError as error:
            raise InputError(f"{path}: {error}; give a file of `samovar box snapshot`") from error
        written = arrays.pop("sha256", None)
        if written is not None and written.tobytes() != _digest(arrays):
            raise InputError(f"{path}: is damaged, its SHA-256 is another; take an earlier snapshot")
        return cls(_shape_in(path, arrays), arrays)

    def write(self, path: Path) -> FileMark:
        """Whole, or not at all; raises OSError."""
        return publish_file(path, chunks(self.arrays | {"sha256": np.frombuffer(self.digest(), np.uint8)}))

    def digest(self) -> bytes:
        return _digest(self.arrays)

    @property
    def part(self) -> CenterShard | None:
        """Which part of a center it is; None: a whole one."""
        return CenterShard.among(self.arrays["words"].tolist()) if "words" in self.arrays else None

    def __str__(self) -> str:
        part = "" if self.part is None else f"{self.part}, "
        return f"{part}{self.shape.num_elements:,} elements"

    def fill(self, seat: BoxSeat, deadline: Deadline) -> None:
        seat.center.write(self.arrays["center"], deadline)
        if seat.shape.with_velocity:
            seat.center.write_velocity(self.arrays["velocity"], deadline)
        for index, value in enumerate(self.arrays.get("words", np.zeros(0, np.uint64)).tolist()):
            if value or index not in SHARD_WORDS:  # a whole one may be cut for those who get it
                seat.board.set_word(index, value)


def _in_order(found: Mapping[str, Content]) -> list[str]:
    """Where the parts are, the first one first."""
    parts: dict[int, str] = {}
    (first, like), *_ = found.items()
    for where, content in found.items():
        part = content.part
        if part is None or like.part is None:
            raise InputError(f"{where if part is None else first} is a whole center, and no part of one; give it alone")
        if part.set_number != like.part.set_number or _cut(content.shape) != _cut(like.shape):
            raise InputError(f"{where} is {part} of another center than {first}; give those of one center")
        if part.index in parts:
            raise InputError(f"{where} is {part}, and so is {parts[part.index]}; give each part once")
        parts[part.index] = where
    assert like.part is not None
    if missing := [str(index + 1) for index in range(min(like.part.count, MOST_BOXES)) if index not in parts]:
        raise InputError(f"part {', '.join(missing)} of {like.part.count} is missing; give all parts of the center")
    return [parts[index] for index in sorted(parts)]


def _cut(shape: BufferShape) -> BufferShape:
    """What parts of one center have in common."""
    return replace(shape, num_elements=1)


def _shape_in(path: Path, arrays: dict[str, Array]) -> BufferShape:
    center, velocity, words = arrays.get("center"), arrays.get("velocity"), arrays.get("words")
    if center is None or center.dtype != np.float32 or center.ndim != 1 or not center.size:
        raise InputError(
            f"{path}: has no float32 array `center` of one dimension; give a file of `samovar box snapshot`"
        )
    if velocity is not None and (velocity.dtype, velocity.shape) != (center.dtype, center.shape):
        raise InputError(f"{path}: its `velocity` is not like its `center`; give a file of `samovar box snapshot`")
    if words is not None and (words.dtype != np.uint64 or words.shape != (NUM_WORDS,)):
        raise InputError(f"{path}: its `words` are not {NUM_WORDS} of 64 bits; use one version of Samovar")
    shape = BufferShape(center.size, with_velocity=velocity is not None)
    if "shape" not in arrays:
        return shape
    sizes = [int(size) for size in arrays["shape"].reshape(-1)]
    if len(sizes) not in (5, 6) or (sizes[0], bool(sizes[2])) != (shape.num_elements, shape.with_velocity):
        raise InputError(f"{path}: its `shape` is not that of its `center`; give a file of `samovar box snapshot`")
    return BufferShape.of_sizes(sizes)


def _digest(arrays: dict[str, Array]) -> bytes:
    """Of the arrays, by name."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()
