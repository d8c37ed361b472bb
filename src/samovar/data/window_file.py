"""Caffe's window file: images, and in each of them windows with a class and their overlap with an object.

    # <number>            one block an image, by rising numbers from 0
    <path>
    <channels> <height> <width>        (3 channels; any white space between)
    <number of windows>
    <class> <overlap> <x1> <y1> <x2> <y2>        one line a window; corners are pixels, both inside

Source: the format of Girshick et al., Rich feature hierarchies for accurate object detection, 2014 (R-CNN), as
Caffe's WindowData reads it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.formats.caffe.files import read_file

MAX_BYTES = 1 << 30
_NUM_COLUMNS = 6
_MAX_SHOWN = 80
_LARGEST = 1 << 24  # of the numbers in the file: whole in float32, as Caffe keeps them


@dataclass(frozen=True, slots=True)
class WindowFile:
    """`paths` of the images as written; `windows` int64 (n, 6): image, class, x1, y1, x2, y2; `overlaps` (n,)."""

    paths: tuple[str, ...]
    windows: npt.NDArray[np.int64]
    overlaps: npt.NDArray[np.float32]


def read_windows(source: Path) -> WindowFile:
    """The file; InputError with its line where it is not of this form, or a window does not lie in its image."""
    lines = _Lines(source)
    paths: list[str] = []
    tables = [np.empty((0, _NUM_COLUMNS))]
    images = [np.empty(0, np.int64)]
    while (head := lines.next_words()) is not None:
        if head != [b"#", str(len(paths)).encode()]:
            raise lines.error(f"should begin image '# {len(paths)}'; images are numbered from 0, one after the other")
        (path,) = lines.words_of("the path of an image, without spaces", 1)
        table = _table_of(lines)
        paths.append(path.decode("utf-8", "surrogateescape"))
        tables.append(table)
        images.append(np.full(len(table), len(paths) - 1))
    if not paths:
        raise InputError(f"{source}: lists no image; write '# 0', and behind it a path, its shape and its windows")
    values = np.concatenate(tables)
    whole = values[:, [0, 2, 3, 4, 5]].astype(np.int64)
    return WindowFile(tuple(paths), np.column_stack([np.concatenate(images), whole]), values[:, 1].astype(np.float32))


def _table_of(lines: "_Lines") -> npt.NDArray[np.float64]:
    """An image's windows, (n, 6) as written."""
    channels, height, width = (lines.number(what) for what in ("channels", "height", "width"))
    if channels != 3:
        raise lines.error(f"{channels} channels; windows are cut out of colour images, write 3")
    count, first = lines.number("windows"), lines.line + 1
    rows = [lines.words_of("class overlap x1 y1 x2 y2", _NUM_COLUMNS) for _ in range(count)]
    try:
        table = np.array(rows, np.float64).reshape(-1, _NUM_COLUMNS)
    except ValueError as error:
        reason = str(error)[:_MAX_SHOWN]
        raise InputError(
            f"{lines.source}:{first}: the {count} windows from here on: {reason}; write numbers"
        ) from error
    label, overlap, x1, y1, x2, y2 = table.T
    whole = table[:, [0, 2, 3, 4, 5]]
    is_whole = (np.trunc(whole) == whole).all(axis=1) & (np.abs(label) < _LARGEST) & np.isfinite(overlap)
    is_inside = (x1 >= 0) & (x1 <= x2) & (x2 < width) & (y1 >= 0) & (y1 <= y2) & (y2 < height)
    if not (is_whole & is_inside).all():
        place = int((~(is_whole & is_inside)).argmax())
        shown = b" ".join(rows[place])[:_MAX_SHOWN].decode("utf-8", "backslashreplace")
        raise InputError(
            f"{lines.source}:{first}: window {place} of the {count} from here on: {shown}; "
            f"write 'class overlap x1 y1 x2 y2' with x1 <= x2 < {width} and y1 <= y2 < {height}"
        )
    return table


class _Lines:
    """The words of the file, line by line; `line` is the number of the last one read."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.line = 0
        self._lines = read_file(source, "window file", MAX_BYTES).split(b"\n")
        self._numbers: list[bytes] = []

    def next_words(self) -> list[bytes] | None:
        """Those of the next line that has any; None behind the last one."""
        while self.line < len(self._lines):
            words = self._lines[self.line].split()
            self.line += 1
            if words:
                return words
        return None

    def words_of(self, what: str, count: int) -> list[bytes]:
        """The next line's, so many of them."""
        words = self.next_words()
        if words is None or len(words) != count:
            raise self.error(f"should be {what}")
        return words

    def number(self, what: str) -> int:
        """The next number of at least 0, wherever lines end."""
        if not self._numbers:
            self._numbers = self.next_words() or []
        text = self._numbers.pop(0) if self._numbers else b""
        if not (text.isdigit() and int(text[:10]) < _LARGEST and len(text) <= 8):
            raise self.error(f"should be the number of {what}, less than {_LARGEST:,}")
        return int(text)

    def error(self, what: str) -> InputError:
        return InputError(f"{self.source}:{self.line}: {what}")
