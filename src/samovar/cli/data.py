"""`samovar data`: databases in Caffe's format."""

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli.command import OPTIONS, OUTPUT, GroupHelpLast, HelpLast, Quiet
from samovar.core.errors import InputError
from samovar.data.databases import (
    Conversion,
    ImageFile,
    WrittenDatabase,
    WrittenImages,
    class_folders,
    copy_leveldb,
    listed_images,
    shuffled,
    split_database,
    write_image_files,
)
from samovar.data.digits import write_digits
from samovar.data.published import FASHION_MNIST, WrittenMean, write_cifar10, write_mnist
from samovar.report.tables import print_json

_TELL_EVERY_S = 10.0
_NUM_NAMED = 8
_LIST = "Or a list of lines 'path label', as for convert_imageset."
_ROOT = "Where the paths of --list start. Default: here, else where the list is."
_STORE = "raw (pixels), files (unchanged files), png or jpg (compressed pixels)."

Json = Annotated[bool, OUTPUT("", "Print folders and numbers of records as JSON.", "--json")]


def images(
    out: Annotated[Path, OPTIONS("FOLDER", "The database to write, such as data/train_lmdb.")],
    folder: Annotated[Path | None, OPTIONS("FOLDER", "A folder for each class.")] = None,
    list_file: Annotated[Path | None, OPTIONS("FILE", _LIST, "--list")] = None,
    root: Annotated[Path | None, OPTIONS("FOLDER", _ROOT)] = None,
    resize: Annotated[str | None, OPTIONS("HEIGHTxWIDTH", "New size. Default: as it is.")] = None,
    gray: Annotated[bool, OPTIONS("", "One channel. Default: blue, green, red.", "--gray")] = False,
    store: Annotated[str, OPTIONS("FORM", _STORE)] = "raw",
    shuffle: Annotated[bool, OPTIONS("", "In random order.", "--shuffle")] = False,
    seed: Annotated[int, OPTIONS("N", "Seed of that order.", min=0)] = 0,
    mean: Annotated[Path | None, OPTIONS("FILE", "Also write the mean image (.binaryproto).")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a database from images of your own."""
    if mean is not None and mean.is_dir():
        raise InputError(f"--mean {mean}: is a folder; give a file's name, such as mean.binaryproto")
    conversion = Conversion(None if resize is None else _size(resize), gray, store)
    found, classes = _found(list_file, root, folder)
    progress = _Copying(quiet)
    written = write_image_files(out, shuffled(found, seed) if shuffle else found, conversion, mean, progress)
    if as_json:
        found_mean = None if mean is None else WrittenMean(mean, bool(written.mean_already_there))
        told = {"databases": [written.database], "mean": found_mean, "image_shape": written.shape, "classes": classes}
        print_json(told)
    elif not quiet:
        for line in _lines(written, classes, mean):
            typer.echo(line)


def _found(
    list_file: Path | None, root: Path | None, folder: Path | None
) -> tuple[Sequence[ImageFile], tuple[str, ...]]:
    """The images, and the names of their labels where these are folders' names."""
    if list_file is not None and folder is None:
        return listed_images(list_file, root), ()
    if folder is not None and list_file is None and root is None:
        return class_folders(folder)
    raise InputError("samovar data images: give --list FILE (and --root FOLDER), or --folder FOLDER")


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", text)
    if found is None:
        raise InputError(f"--resize: got {text!r}; give HEIGHTxWIDTH, for example 256x256")
    return int(found[1]), int(found[2])


def _lines(written: WrittenImages, classes: Sequence[str], mean: Path | None) -> list[str]:
    database, shape = written.database, written.shape
    several = "images of different shapes: a net needs crop_size for sizes, and force_color for channels"
    shown = " x ".join(map(str, shape)) if shape else several
    lines = [f"{database.folder}: {database.num_records:,} records, {shown}, {_state(database.already_there)}"]
    if classes:
        more = ", ..." if len(classes) > _NUM_NAMED else ""
        named = ", ".join(f"{label} {name}" for label, name in enumerate(classes[:_NUM_NAMED]))
        lines.append(f"labels, in the order of names: {named}{more}")
    if mean is not None:
        lines.append(f"{mean}: mean of the images, {_state(bool(written.mean_already_there))}")
    return lines


class _Copying:
    """Says now and then how far it is, unless it is to be quiet."""

    def __init__(self, quiet: bool) -> None:
        self._told_s = math.inf if quiet else time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            typer.echo(f"{done:,} of {total:,} images", err=True)


data_app = typer.Typer(cls=GroupHelpLast, help="Make data sets as Caffe databases (LMDB).", no_args_is_help=True)
IdxSource = Annotated[Path, OPTIONS("FOLDER", "Folder with the four published IDX files, .gz or not.")]
Out = Annotated[Path, OPTIONS("FOLDER", "Folder to put the databases into.")]
data_app.command(cls=HelpLast)(images)


@data_app.command(cls=HelpLast)
def digits(out: Out, as_json: Json = False) -> None:
    """Make the handwritten digits that come with scikit-learn, 28x28, without a download."""
    _tell(write_digits(out), as_json)


@data_app.command(cls=HelpLast)
def mnist(source: IdxSource, out: Out, as_json: Json = False) -> None:
    """Make MNIST from its published files; checksums are verified."""
    _tell(write_mnist(source, out), as_json)


@data_app.command(cls=HelpLast)
def fashion_mnist(source: IdxSource, out: Out, as_json: Json = False) -> None:
    """Make Fashion-MNIST from its published files; checksums are verified."""
    _tell(write_mnist(source, out, FASHION_MNIST), as_json)


@data_app.command(cls=HelpLast)
def cifar10(
    source: Annotated[Path, OPTIONS("FOLDER", "Folder with data_batch_1.bin to data_batch_5.bin (.xz, .gz or not).")],
    out: Out,
    as_json: Json = False,
) -> None:
    """Make CIFAR-10: batches 1 to 4 to train on, 5 held out, and the mean image; checksums are verified."""
    databases, mean = write_cifar10(source, out)
    _tell(databases, as_json, mean)


@data_app.command(cls=HelpLast)
def leveldb(
    source: Annotated[Path, OPTIONS("FOLDER", "The LevelDB's folder.")],
    out: Annotated[Path, OPTIONS("FOLDER", "The database to write, such as data/flowers_lmdb.")],
    as_json: Json = False,
) -> None:
    """Copy the records of a LevelDB, unchanged. It needs the package rocksdict."""
    _tell([copy_leveldb(source, out)], as_json)


@data_app.command(cls=HelpLast)
def split(
    source: Annotated[Path, OPTIONS("FOLDER", "The database to split, such as data/train_lmdb.")],
    nodes: Annotated[int, OPTIONS("N", "Number of hosts.", min=1)],
    out: Annotated[Path, OPTIONS("FOLDER", "Folder to put host0/NAME, host1/NAME, ... into.")],
    as_json: Json = False,
) -> None:
    """Write one database for each host, with its share of the records, for --hold-data."""
    _tell(split_database(source, out, nodes), as_json)


def _tell(databases: Sequence[WrittenDatabase], as_json: bool, mean: WrittenMean | None = None) -> None:
    if as_json:
        print_json({"databases": databases, "mean": mean})
        return
    for database in databases:
        typer.echo(f"{database.folder}: {database.num_records:,} records, {_state(database.already_there)}")
    if mean is not None:
        typer.echo(f"{mean.path}: mean of the training images, {_state(mean.already_there)}")


def _state(already_there: bool) -> str:
    return "is already there" if already_there else "written"
