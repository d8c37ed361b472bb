"""`samovar data`: databases in Caffe's format."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

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
    write_image_files,
)
from samovar.data.digits import write_digits
from samovar.data.published import FASHION_MNIST, write_cifar10, write_mnist

_TELL_EVERY_S = 10.0
_NUM_NAMED = 8


def images(
    out: Annotated[Path, typer.Option(help="The database's own folder, for example data/flowers_train_lmdb.")],
    list_file: Annotated[
        Path | None, typer.Option("--list", help="Lines 'path label', as Caffe's convert_imageset takes them.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where its paths start; default: here, or beside it.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Has a folder of images for each class.")] = None,
    resize: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH of every image; default: as it is.")] = None,
    gray: Annotated[bool, typer.Option("--gray", help="One channel; default: blue, green, red.")] = False,
    store: Annotated[
        str, typer.Option(help="raw: pixels; files: the files as they are; png, jpg: written anew, compressed.")
    ] = "raw",
    shuffle: Annotated[bool, typer.Option("--shuffle", help="In random order; default: as listed.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of that order.")] = 0,
    mean: Annotated[Path | None, typer.Option(help="Write the mean image to this file (.binaryproto).")] = None,
) -> None:
    """Images of your own, by a list, or in a folder for each class."""
    conversion = Conversion(None if resize is None else _size(resize), gray, store)
    found, classes = _found(list_file, root, folder)
    written = write_image_files(out, shuffled(found, seed) if shuffle else found, conversion, mean, _Copying())
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
    shown = " x ".join(map(str, shape)) if shape else "images of different sizes: a net needs crop_size for them"
    lines = [f"{database.folder}: {database.num_records:,} records, {shown}, {_state(database.already_there)}"]
    if classes:
        more = ", ..." if len(classes) > _NUM_NAMED else ""
        named = ", ".join(f"{label} {name}" for label, name in enumerate(classes[:_NUM_NAMED]))
        lines.append(f"labels, in the order of names: {named}{more}")
    if mean is not None:
        lines.append(f"{mean}: mean of the images, {_state(bool(written.mean_already_there))}")
    return lines


class _Copying:
    """Tells how far it is, now and then."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            typer.echo(f"{done:,} of {total:,} images", err=True)


data_app = typer.Typer(help="Make data sets as Caffe databases (LMDB).", no_args_is_help=True)
IdxSource = Annotated[Path, typer.Option(help="Folder with the four published IDX files (.gz or not).")]
Out = Annotated[Path, typer.Option(help="Folder to put the databases into.")]
data_app.command()(images)


@data_app.command()
def digits(out: Out) -> None:
    """scikit-learn's bundled handwritten digits, brought to 28x28: needs nothing from outside."""
    _tell(write_digits(out))


@data_app.command()
def mnist(source: IdxSource, out: Out) -> None:
    """MNIST from its published files, checksums verified."""
    _tell(write_mnist(source, out))


@data_app.command()
def fashion_mnist(source: IdxSource, out: Out) -> None:
    """Fashion-MNIST from its published files, checksums verified."""
    _tell(write_mnist(source, out, FASHION_MNIST))


@data_app.command()
def cifar10(
    source: Annotated[Path, typer.Option(help="Folder with data_batch_1.bin to data_batch_5.bin (.xz, .gz or not).")],
    out: Out,
) -> None:
    """CIFAR-10: batches 1-4 to train on, 5 held out, and the mean image; checksums verified."""
    databases, mean = write_cifar10(source, out)
    _tell(databases)
    typer.echo(f"{mean.path}: mean of the training images, {_state(mean.already_there)}")


@data_app.command()
def leveldb(
    source: Annotated[Path, typer.Option(help="The LevelDB's folder.")],
    out: Annotated[Path, typer.Option(help="The new database's own folder, for example data/flowers_lmdb.")],
) -> None:
    """The records of a LevelDB, as they are: needs `pip install 'samovar[leveldb]'`."""
    _tell([copy_leveldb(source, out)])


def _tell(databases: Sequence[WrittenDatabase]) -> None:
    for database in databases:
        typer.echo(f"{database.folder}: {database.num_records:,} records, {_state(database.already_there)}")


def _state(already_there: bool) -> str:
    return "is already there" if already_there else "written"
