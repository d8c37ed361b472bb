"""`samovar data images`: images of one's own as a Caffe database."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from samovar.core.errors import InputError
from samovar.data.image_files import (
    Conversion,
    ImageFile,
    WrittenImages,
    class_folders,
    listed_images,
    shuffled,
    write_image_files,
)

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
    written = write_image_files(out, shuffled(found, seed) if shuffle else found, conversion, mean, _Progress())
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


def _state(already_there: bool) -> str:
    return "is already there" if already_there else "written"


class _Progress:
    """Tells how far it is, now and then."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            typer.echo(f"{done:,} of {total:,} images", err=True)
