"""LMDBs as Caffe's converters write them, of arrays, a LevelDB's records and image files, and their shares."""

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from PIL import Image

from samovar.core.errors import InputError, require_choice
from samovar.core.files import read_file
from samovar.data.datasets import MAX_LIST_BYTES, ListedFiles, parse_list
from samovar.data.order import permutation
from samovar.data.shares import RUN_RECORDS, SHARE_FILE, Share, read_share
from samovar.formats.caffe.blob import require_place_for_mean, require_room_for_mean, write_mean
from samovar.formats.caffe.datum import encode_compressed_datum, encode_datum
from samovar.formats.image import MAX_FILE_BYTES, MAX_PIXELS, Pixels, decode_image, read_image, resized
from samovar.formats.leveldb_folder import leveldb_records
from samovar.formats.lmdb_file import LmdbFile, write_lmdb

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WrittenDatabase:
    """A database that has been written."""

    folder: Path
    num_records: int
    already_there: bool  # the folder held the same records before, and was left as it was


def write_images(
    folder: Path, images_NCHW: Bytes, labels_N: npt.NDArray[np.integer], num_key_digits: int = 8
) -> WrittenDatabase:
    """Images uint8 (N, C, H, W) and their labels (N,), in this order, keys 00000000, 00000001, ...
    Cost: about 6 us per 28x28 record. Raises: InputError if the folder holds something else or cannot be written."""
    assert len(images_NCHW) == len(labels_N) <= 10**num_key_digits, (len(images_NCHW), len(labels_N))
    pairs = enumerate(zip(images_NCHW, labels_N.tolist(), strict=True))
    records = ((b"%0*d" % (num_key_digits, index), encode_datum(image, label)) for index, (image, label) in pairs)
    return WrittenDatabase(folder, len(images_NCHW), not write_lmdb(folder, records))


def copy_leveldb(source: Path, out: Path) -> WrittenDatabase:
    """The same keys and values, in the same order; both databases' records are Caffe's Datum messages.
    Raises: InputError for what cannot be read or written, and for a database without records."""
    num_records = 0

    def counted() -> Iterator[tuple[bytes, bytes]]:
        nonlocal num_records
        for record in leveldb_records(source):
            num_records += 1
            yield record
        if num_records == 0:
            raise InputError(f"{source}: a LevelDB without records. Check that it was copied completely.")

    written = write_lmdb(out, counted())
    return WrittenDatabase(out, num_records, not written)


def split_database(source: Path, out: Path, num_shares: int) -> list[WrittenDatabase]:
    """Write the shares of the LMDB `source` as `out`/host0/NAME, `out`/host1/NAME, ..., under the same keys.

    Cost: two passes over the records. Raises: InputError for a database that is a share itself or has fewer records
    than shares, and for folders that hold something else or cannot be written.
    """
    with LmdbFile(source) as file:
        if read_share(source, len(file)) is not None:
            raise InputError(f"{source}: is a share of a database already; give the whole database")
        if not 1 <= num_shares <= len(file):
            raise InputError(f"{source}: {len(file):,} records cannot make {num_shares:,} shares; give fewer hosts")
        run_records, sha256 = min(RUN_RECORDS, len(file) // num_shares), _sha256(file)
        written = []
        for number in range(num_shares):
            share = Share(number, num_shares, len(file), run_records, sha256)
            folder = out / f"host{number}" / source.resolve().name
            is_new = write_lmdb(folder, file.records(share.records()), {SHARE_FILE: share.to_json()})
            written.append(WrittenDatabase(folder, share.num_own_records, not is_new))
        return written


def _sha256(file: LmdbFile) -> str:
    """The hash of all keys and values."""
    digest = hashlib.sha256()
    for key, value in file.records(np.arange(len(file))):
        digest.update(b"%d %d " % (len(key), len(value)) + key)
        digest.update(value)
    return digest.hexdigest()


FORMS = ("raw", "files", "png", "jpg")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm")
_JPEG_QUALITY = 95  # OpenCV's, and with it convert_imageset's
_MOST_JPEG_PIXELS = 65_500  # a side, of libjpeg
_MAX_KEY_BYTES = 511  # LMDB's
_FILES_AT_ONCE = 64
_NUM_NAMED = 4


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file, what it is called in keys and messages, and its label."""

    path: Path
    name: str
    label: int


@dataclass(frozen=True, slots=True)
class Conversion:
    """How to store images: (height, width), None for their own, and one of FORMS."""

    size: tuple[int, int] | None = None
    is_gray: bool = False
    form: str = "raw"

    def __post_init__(self) -> None:
        require_choice("--store", self.form, FORMS)
        if self.size is not None and prod(self.size) > MAX_PIXELS:
            raise InputError(f"--resize: an image may have {MAX_PIXELS:,} pixels, got {prod(self.size):,}; give less")
        if self.form == "files" and (self.size is not None or self.is_gray):
            raise InputError("--store files: keeps the files as they are; leave --resize and --gray out, or store png")


@dataclass(frozen=True, slots=True)
class WrittenImages:
    """The database, (C, H, W) of its images (None if they differ), and whether the mean image existed before."""

    database: WrittenDatabase
    shape: tuple[int, ...] | None
    mean_already_there: bool | None


def listed_images(source: Path, root: Path | None) -> list[ImageFile]:
    """The files of a list of "path label". `ListedFiles` says where paths start.
    Raises: InputError for a line that cannot be read, or naming the files that are missing."""
    files = ListedFiles(source, root, "check the list, or give the folder that holds all the images as --root")
    content = read_file(source, "image list", MAX_LIST_BYTES)
    starts, ends, labels = parse_list(content, source)
    names = [os.fsdecode(content[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    found: list[ImageFile] = []
    failures: list[str] = []
    for name, label in zip(names, labels.tolist(), strict=True):
        try:
            found.append(ImageFile(files.find(name), name, label))
        except InputError as error:
            failures.append(str(error))
    _require_none(failures, f"{source}: {len(failures):,} of {len(names):,} images cannot be found")
    return found


def class_folders(folder: Path) -> tuple[list[ImageFile], tuple[str, ...]]:
    """The images in the folders of `folder`, at any depth, and the names of the folders. Folder i has label i.

    It leaves out files without one of SUFFIXES, and names that start with a dot.
    Raises: InputError if there are no folders, if one has no images, or as `_files_in`.
    """
    try:
        classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}. Give the folder that has a folder for each class.") from error
    if not classes:
        raise InputError(f"{folder}: has no folders in it; it needs one for each class.")
    images: list[ImageFile] = []
    for label, name in enumerate(classes):
        found = sorted(path for path in _files_in(folder / name) if path.suffix.lower() in SUFFIXES)
        if not found:
            raise InputError(f"{folder / name}: has no image ({', '.join(SUFFIXES)}); remove the folder, or fill it.")
        images += [ImageFile(path, str(path.relative_to(folder)), label) for path in found]
    return images, tuple(classes)


def shuffled(images: Sequence[ImageFile], seed: int) -> list[ImageFile]:
    """The items in an order that depends on `seed` alone."""
    return [images[index] for index in permutation(len(images), seed, 0).tolist()]


def write_image_files(
    folder: Path,
    images: Sequence[ImageFile],
    conversion: Conversion,
    mean: Path | None = None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> WrittenImages:
    """Write the images in this order as the LMDB `folder`, and the mean of their pixels as the file `mean`.

    Keys are 00000000_NAME, as convert_imageset writes them. The folder appears only when every image is in it.
    Cost: one decoding each, on all cores of this process; a few images in memory.
    Raises: InputError naming the unusable images, for a mean of different shapes, or if `mean` has another one. Then
    nothing was written.
    """
    if mean is not None:
        require_place_for_mean(mean)
        if folder.resolve().is_relative_to(mean.resolve()):
            raise InputError(f"--mean {mean}: is the place of the database {folder}; give a file elsewhere")
    measured = _Measured(mean)
    written = write_lmdb(folder, _converted_records(images, conversion, measured, told))
    database = WrittenDatabase(folder, len(images), not written)
    already_there = None if mean is None else not write_mean(mean, measured.mean())
    return WrittenImages(database, measured.shape, already_there)


class _Measured:
    """Shapes and sum of the converted images. Threads may call `take`, in any order."""

    def __init__(self, mean: Path | None) -> None:
        self._mean = mean
        self._lock = threading.Lock()
        self._shapes: set[tuple[int, ...]] = set()
        self._sums = np.zeros((), np.int64)
        self._num_images = 0

    @property
    def shape(self) -> tuple[int, ...] | None:
        return next(iter(self._shapes)) if len(self._shapes) == 1 else None

    def take(self, pixels: Pixels) -> None:
        with self._lock:
            self._shapes.add(pixels.shape)
            self._num_images += 1
            if self._mean is not None and len(self._shapes) == 1:
                self._sums = self._sums + pixels

    def require_room_for_mean(self) -> None:
        """Raise InputError for a mean of several shapes, or if its file has another one."""
        if self._mean is None:
            return
        if len(self._shapes) > 1:
            first, second = sorted(self._shapes)[:2]
            raise InputError(
                f"--mean: images have {len(self._shapes)} shapes, such as {first} and {second}; nothing was written. "
                "A mean needs one: give --resize."
            )
        require_room_for_mean(self._mean, self.mean())

    def mean(self) -> npt.NDArray[np.float32]:
        mean: npt.NDArray[np.float32] = self._sums.astype(np.float32) / np.float32(self._num_images)
        return mean


def _converted_records(
    images: Sequence[ImageFile], conversion: Conversion, measured: _Measured, told: Callable[[int, int], None]
) -> Iterator[tuple[bytes, bytes]]:
    """The first unusable image ends the records. The others are still checked, so that the error names all."""
    failures: list[str] = []
    num_threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(num_threads) as pool:
        at_once = min(_FILES_AT_ONCE, 2 * num_threads)  # converted records wait in memory
        for start in range(0, len(images), at_once):
            part = images[start : start + at_once]
            converted = pool.map(lambda image: _converted(image, conversion, measured), part)
            for index, (image, found) in enumerate(zip(part, converted, strict=True), start):
                if isinstance(found, InputError):
                    failures.append(f"{image.path}: {str(found).removeprefix(f'{image.path}: ')}")
                elif not failures:
                    yield (b"%08d_" % index + os.fsencode(image.name))[:_MAX_KEY_BYTES], found
            told(start + len(part), len(images))
    _require_none(failures, f"{len(failures):,} of {len(images):,} images cannot be used")
    measured.require_room_for_mean()


def _converted(image: ImageFile, conversion: Conversion, measured: _Measured) -> bytes | InputError:
    try:
        record, pixels = _record(image, conversion)
        measured.take(pixels)
    except InputError as error:
        return error
    return record


def _record(image: ImageFile, conversion: Conversion) -> tuple[bytes, Pixels]:
    if conversion.form == "files":
        content = read_file(image.path, "image", MAX_FILE_BYTES)
        return encode_compressed_datum(content, image.label), decode_image(content, "stored")
    pixels = read_image(image.path, "gray" if conversion.is_gray else "color")
    if conversion.size is not None:
        pixels = resized(pixels, conversion.size)
    if conversion.form == "raw":
        return encode_datum(pixels, image.label), pixels
    content = _compressed(pixels, conversion.form)
    stored = decode_image(content, "stored") if conversion.form == "jpg" else pixels
    return encode_compressed_datum(content, image.label), stored


def _compressed(pixels: Pixels, form: str) -> bytes:
    """The bytes of an image file with pixels (C, H, W): blue, green, red, or gray."""
    turned = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[::-1], 0, 2)
    content = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(turned))
    if form == "jpg":
        if max(image.size) > _MOST_JPEG_PIXELS:
            size, most = f"{image.width:,} x {image.height:,} pixels", f"{_MOST_JPEG_PIXELS:,}"
            raise InputError(f"has {size}; a JPEG has at most {most} a side. Store png.")
        image.save(content, "JPEG", quality=_JPEG_QUALITY)
    else:
        image.save(content, "PNG")
    return content.getvalue()


def _files_in(folder: Path) -> Iterator[Path]:
    """Files at any depth, no hidden ones. Raises InputError for a folder that cannot be read, or is a link."""

    def refuse(error: OSError) -> NoReturn:
        raise InputError(f"{error.filename}: {error.strerror}. Make the folder readable, or remove it.") from error

    for place, inner, names in os.walk(folder, onerror=refuse):
        inner[:] = [name for name in inner if not name.startswith(".")]
        if links := [name for name in inner if Path(place, name).is_symlink()]:
            raise InputError(f"{place}/{links[0]}: is a link to a folder, and not followed. Copy the folder there.")
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _require_none(failures: Sequence[str], what: str) -> None:
    if failures:
        more = f"; and {len(failures) - _NUM_NAMED:,} more" if len(failures) > _NUM_NAMED else ""
        raise InputError(f"{what}; nothing was written: {'; '.join(failures[:_NUM_NAMED])}{more}")
