"""Windows of images, as Caffe's WindowData cuts, stretches and mixes them.

A sample is a window of an object (overlap at least fg_threshold) or of background (below bg_threshold, class 0),
with its surroundings, stretched to K x K pixels. The first batch_size - floor(batch_size * fg_fraction) of a batch are
background.

Legend: n samples, K crop size.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.errors import InputError
from samovar.core.files import read_file
from samovar.data.cache import CacheSetup, CacheSource, RecordCache
from samovar.data.config import WindowDataConfig
from samovar.data.datasets import ListedFiles
from samovar.data.order import below, sample_draws
from samovar.data.shares import Share
from samovar.formats.caffe.blob import read_mean
from samovar.formats.image import Pixels, read_image, resized

MAX_BYTES = 1 << 30
_NUM_COLUMNS = 6
_MAX_SHOWN = 80
_LARGEST = 1 << 24  # of the numbers in the file: whole in float32, as Caffe keeps them


@dataclass(frozen=True, slots=True)
class WindowFile:
    """A parsed window file.

    `paths` are those of the images, as written. `windows` are int64 (n, 6): image, class, x1, y1, x2, y2.
    `overlaps` are (n,).
    """

    paths: tuple[str, ...]
    windows: npt.NDArray[np.int64]
    overlaps: npt.NDArray[np.float32]


def read_windows(source: Path) -> WindowFile:
    """Parse the file. Raise InputError with the line for another form, or a window outside of its image."""
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
        raise InputError(f"{source}: lists no image; write '# 0', then a path, its shape and its windows")
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
    """The words of the file, line by line. `line` is the number of the last line read."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.line = 0
        self._lines = read_file(source, "window file", MAX_BYTES).split(b"\n")
        self._numbers: list[bytes] = []

    def next_words(self) -> list[bytes] | None:
        """The words of the next line that has any; None at the end."""
        while self.line < len(self._lines):
            words = self._lines[self.line].split()
            self.line += 1
            if words:
                return words
        return None

    def words_of(self, what: str, count: int) -> list[bytes]:
        """The words of the next line, which must have this number of them."""
        words = self.next_words()
        if words is None or len(words) != count:
            raise self.error(f"should be {what}")
        return words

    def number(self, what: str) -> int:
        """The next number of at least 0, on this line or the next."""
        if not self._numbers:
            self._numbers = self.next_words() or []
        text = self._numbers.pop(0) if self._numbers else b""
        if not (text.isdigit() and int(text[:10]) < _LARGEST and len(text) <= 8):
            raise self.error(f"should be the number of {what}, less than {_LARGEST:,}")
        return int(text)

    def error(self, what: str) -> InputError:
        return InputError(f"{self.source}:{self.line}: {what}")


Floats = npt.NDArray[np.float32]

_MIRROR_WORD, _WINDOW_WORD = 0, 3  # of a sample's random words; the two between are those of crops
_IMAGES_KEPT = 16


class WindowSource:
    """Images float32 (n, 3, K, K), blue first, and classes int64 (n,), of a window file.

    The window of global sample s, and its mirroring, are a function of (seed, s). `shuffled` changes nothing.
    Raises: InputError for a window file that cannot be used, and for a mean of another shape.
    """

    share: Share | None = None

    def __init__(self, config: WindowDataConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        advice = 'check the window file, or give the folder that holds all images as root_folder ("/" for any)'
        self._files = ListedFiles(config.source, config.root, advice)
        listed = read_windows(config.source)
        self._paths, self._windows = listed.paths, listed.windows.copy()
        is_object = listed.overlaps >= np.float32(config.fg_threshold)
        is_background = ~is_object & (listed.overlaps < np.float32(config.bg_threshold))
        self._kinds = np.flatnonzero(is_background), np.flatnonzero(is_object)
        self._num_objects = int(np.float32(config.batch_size) * np.float32(config.fg_fraction))
        self._check()
        self._windows[is_background, 1] = 0
        self._mean = _mean_of(config)
        self.cache: RecordCache | None = None
        size = config.transform.crop_size
        self.sample_shapes: dict[str, tuple[int, ...]] = dict(zip(config.tops, ((3, size, size), ()), strict=True))
        self._image = lru_cache(_IMAGES_KEPT)(self._read_image)
        self._image(int(self._windows[self._kinds[1 if len(self._kinds[1]) else 0][0], 0]))

    def __len__(self) -> int:
        return sum(map(len, self._kinds))

    def read(self, first_sample: int, count: int) -> dict[str, torch.Tensor]:
        """The global samples [first_sample, first_sample + count), by top; cost: up to one decoding each."""
        words = sample_draws(self._seed, first_sample, count)
        size = self._config.transform.crop_size
        images, labels = np.zeros((count, 3, size, size), np.float32), np.empty(count, np.int64)
        for place in range(count):
            is_object = (first_sample + place) % self._config.batch_size >= self._config.batch_size - self._num_objects
            windows = self._kinds[is_object]
            index = int(windows[below(words[place, _WINDOW_WORD:], len(windows))[0]])
            is_mirrored = self._config.transform.mirror and int(below(words[place, _MIRROR_WORD:], 2)[0]) == 1
            self._put(images[place], index, is_mirrored)
            labels[place] = self._windows[index, 1]
        tensors = torch.from_numpy(images), torch.from_numpy(labels)
        return dict(zip(self._config.tops, tensors, strict=True))

    def records(self) -> CacheSource:
        """Raise InputError: a window's pixels depend on the sample that draws it."""
        raise InputError(
            f"{self._config.source}: windows cannot be held in memory, because each sample has its own cut. Train "
            "without --hold-data"
        )

    def fill_cache(self, _setup: CacheSetup) -> None:
        self.records()

    def close(self) -> None:
        """Do nothing: no file is open between reads."""

    def _check(self) -> None:
        config, (background, objects) = self._config, self._kinds
        for kind, windows, number in (
            ("background", background, config.batch_size - self._num_objects),
            ("objects", objects, self._num_objects),
        ):
            if number and not len(windows):
                raise InputError(
                    f"{config.source}: has no window of {kind}, of which a batch takes {number}; change fg_threshold, "
                    "bg_threshold or fg_fraction"
                )
        if (self._windows[objects, 1] <= 0).any():
            raise InputError(f"{config.source}: a window with an overlap of fg_threshold or more has a class below 1")

    def _put(self, target: Floats, index: int, is_mirrored: bool) -> None:
        """The window's pixels, less their mean, into (3, K, K) zeros."""
        number, _, *corners = self._windows[index].tolist()
        image, config = self._image(number), self._config
        cut = cut_of(corners, (image.shape[2], image.shape[1]), config)
        if cut.x2 >= image.shape[2] or cut.y2 >= image.shape[1]:
            raise InputError(
                f"{config.source}: image {number}: '{self._paths[number]}' is {image.shape[2]} x {image.shape[1]}, and "
                f"a window ends at {tuple(corners[2:])}; correct the file"
            )
        left = cut.right if is_mirrored else cut.left
        width = min(cut.width, config.transform.crop_size - left)
        if width < 1 or cut.height < 1:
            return  # nothing of it is left in this size
        pixels = resized(image[:, cut.y1 : cut.y2 + 1, cut.x1 : cut.x2 + 1], (cut.height, width))
        place = np.s_[:, cut.top : cut.top + cut.height, left : left + width]
        values = (pixels[..., ::-1] if is_mirrored else pixels).astype(np.float32)
        target[place] = (values if self._mean is None else values - self._mean[place]) * np.float32(config.scale)

    def _read_image(self, number: int) -> Pixels:
        try:
            return read_image(self._files.find(self._paths[number]), "color")
        except InputError as error:
            raise InputError(f"{self._config.source}: image {number}: {error}") from error


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of an image: x1 .. x2 by y1 .. y2, both ends included, the size it is stretched to, and its margins.
    Before it are `top` rows and `left` columns of zeros, or `right` columns if it is mirrored; by rounding `width` may
    then be a column too many."""

    x1: int
    y1: int
    x2: int
    y2: int
    width: int
    height: int
    left: int = 0
    right: int = 0
    top: int = 0


def cut_of(corners: list[int], image_size: tuple[int, int], config: WindowDataConfig) -> Cut:
    """The cut for the window of these corners (x1, y1, x2, y2) in an image of (width, height).

    With context the window grows by a factor of K / (K - 2 context_pad): after stretching, the context is
    `context_pad` wide. Pixels outside of the image are zero. Rounding is Caffe's, in float32.
    """
    size = config.transform.crop_size
    x1, y1, x2, y2 = corners
    if not (config.context_pad or config.is_square):
        return Cut(x1, y1, x2, y2, size, size)
    half_width, half_height = np.float32(x2 - x1 + 1) / 2, np.float32(y2 - y1 + 1) / 2
    longer = max(half_width, half_height)
    if config.is_square:
        half_width = half_height = longer
    factor = np.float32(size) / np.float32(size - 2 * config.context_pad)
    first, last, width, left, right = _along(x1, np.float32(x2 - x1 + 1) / 2, half_width * factor, image_size[0], size)
    upper, lower, height, top, _ = _along(y1, np.float32(y2 - y1 + 1) / 2, half_height * factor, image_size[1], size)
    return Cut(first, upper, last, lower, width, min(height, size - top), left, right, top)


def _along(
    start: int, half: np.float32, grown: np.float32, image_size: int, size: int
) -> tuple[int, int, int, int, int]:
    """Along one axis: first and last pixel, the length after stretching, zeros before and after."""
    centre = np.float32(start) + half
    first, last = _rounded(centre - grown), _rounded(centre + grown)
    scale = np.float32(size) / np.float32(last - first + 1)
    before, behind = max(0, -first), max(0, last - image_size + 1)
    first, last = first + before, last - behind
    lengths = (last - first + 1, before, behind)
    length, before, behind = (_rounded(np.float32(number) * scale) for number in lengths)
    return first, last, length, before, behind


def _rounded(value: np.float32) -> int:
    """Round to the nearest whole number, halves away from zero, as C does."""
    return int(np.trunc(value + np.copysign(np.float32(0.5), value)))


def _mean_of(config: WindowDataConfig) -> Floats | None:
    """The middle K x K of a mean image, or a mean for each channel, as (3, K, K)."""
    values, file, size = config.transform.mean_values, config.transform.mean_file, config.transform.crop_size
    if file is None:
        if len(values) not in (0, 1, 3):
            raise InputError(f"{config.source}: transform_param gives {len(values)} mean_value; give one, or three.")
        means = np.array(values, np.float32).reshape(-1, 1, 1)
        return np.broadcast_to(means, (3, size, size)) if values else None
    mean: Floats = read_mean(file)
    channels, height, width = mean.shape
    if channels != 3 or height != width or width < size:
        raise InputError(
            f"{file}: the mean image has shape {mean.shape} (channels, height, width); windows of crop_size {size} "
            "need three channels, and a square of at least that size."
        )
    start = (width - size) // 2
    return mean[:, start : start + size, start : start + size]
