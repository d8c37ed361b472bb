"""`samovar init`: a commented example to start from."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import numpy as np
import typer

from samovar.cli.command import OPTIONS
from samovar.core.errors import InputError
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.lmdb_file import LmdbFile

_MOST_LOOKED_AT = 10_000  # records, for their labels
_BATCH, _TEST_BATCH = 64, 60
_EPOCHS, _FEWEST_STEPS, _MOST_STEPS = 26, 100, 5_000
_POOLED = 7  # pixels that are left of a side, or less


class Start(StrEnum):
    """The kind of example."""

    CAFFE = "caffe"
    TORCH = "torch"


@dataclass(frozen=True)
class _Images:
    """An LMDB: (C, H, W) of its images, how many images there are, and how many classes those looked at have."""

    source: str
    shape: tuple[int, int, int]
    num_classes: int
    num_records: int
    num_looked_at: int

    def notes(self) -> list[str]:
        """A sentence if a class may be missed."""
        if self.num_looked_at == self.num_records:
            return []
        looked_at = f"{self.num_looked_at:,} of {self.num_records:,} records"
        return [f"{self.source}: {self.num_classes} classes, counted in {looked_at}; if it has more, raise num_output"]


_DIGITS = (
    _Images("data/digits_train_lmdb", (1, 28, 28), 10, 1437, 1437),
    _Images("data/digits_test_lmdb", (1, 28, 28), 10, 360, 360),
)
_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Default: here.", show_default=False)]
_Lmdb = Annotated[Path | None, OPTIONS("LMDB", "caffe: your training images. Default: digits.")]
_TestLmdb = Annotated[Path | None, OPTIONS("LMDB", "caffe: your test images. Default: as --data.")]


def init(
    kind: Annotated[Start, typer.Argument(help="A Caffe solver and its net, or a PyTorch script.")],
    folder: _Folder = Path(),
    data: _Lmdb = None,
    test_data: _TestLmdb = None,
) -> None:
    """Write a commented example to start from, and print the next command. If a file exists, nothing is written."""
    given = "--data" if data is not None else "--test-data" if test_data is not None else ""
    notes: list[str] = []
    if kind is Start.TORCH:
        if given:
            raise InputError(f"{given}: the PyTorch example makes its own data; leave it out")
        values, next_steps = {}, [f"samovar run -n 2 {_quoted(folder / 'train.py')}"]
    elif data is None:
        if given:
            raise InputError("--test-data: give --data with the training images too")
        values = _values(*_DIGITS)
        next_steps = [f"samovar data digits --out {_quoted(folder / 'data')}", _train(folder)]
    else:
        images = [_looked_at(each) for each in (data, test_data) if each is not None]
        values, notes = _values(images[0], images[-1]), [note for each in images for note in each.notes()]
        next_steps = [f"{_train(folder)} --shuffle"]  # they may lie class by class
    for path in _written(kind, folder, values):
        typer.echo(f"wrote {path}")
    for note in notes:
        typer.echo(note)
    typer.echo("next:")
    for command in next_steps:
        typer.echo(f"  {command}")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _train(folder: Path) -> str:
    solver, enter = folder / "solver.prototxt", ""
    if Path("net.prototxt").exists():  # from here the solver would train this one, as in Caffe
        solver, enter = Path("solver.prototxt"), f"cd {_quoted(folder)} && "
    return f"{enter}samovar train --solver {_quoted(solver)} --workers 2"


def _written(kind: Start, folder: Path, values: Mapping[str, object]) -> list[Path]:
    """The example's files in `folder`, all or none. Raises InputError if one exists."""
    parts = sorted((part.name, part.read_text("utf-8")) for part in (files(__package__) / "starts" / kind).iterdir())
    texts = {folder / name: Template(text).substitute(values) if values else text for name, text in parts}
    for path in texts:
        if path.exists() or path.is_symlink():
            raise InputError(f"{path}: exists already, and is not overwritten; give another folder, or move it away")
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise InputError(f"{folder}: cannot be written: {error.strerror}; give a folder elsewhere") from error
    return made


def _values(train: _Images, test: _Images) -> dict[str, object]:
    if train.shape != test.shape:
        raise InputError(f"{test.source}: its images are {_text(test.shape)}, those to train on {_text(train.shape)}")
    test_iter = -(-test.num_records // _TEST_BATCH)
    steps = _EPOCHS * train.num_records // _BATCH
    return {
        "shape": _text(train.shape),
        "classes": max(train.num_classes, test.num_classes),
        "train": train.source,
        "test": test.source,
        "batch": min(_BATCH, train.num_records),
        "test_batch": test.num_records // test_iter,
        "test_iter": test_iter,
        "max_iter": max(_FEWEST_STEPS, min(_MOST_STEPS, round(steps, -2))),
        "pool": max(2, -(-min(train.shape[1:]) // 2 // _POOLED)),
    }


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _looked_at(folder: Path) -> _Images:
    """Raises InputError unless these are images of one shape."""
    if not str(folder.resolve()).isprintable():
        raise InputError(f"{folder}: its path has characters that a prototxt cannot hold; rename a folder of it")
    with LmdbFile(folder) as file:
        if len(file) == 0:
            raise InputError(f"{folder}: has no records; give an LMDB of images")
        places = np.unique(np.linspace(0, len(file) - 1, min(len(file), _MOST_LOOKED_AT)).astype(np.int64))
        found = [decode_datum(file.values(places[number : number + 1])[0]) for number in range(len(places))]
        num_records = len(file)
    shapes, labels = {image.shape for image, _ in found}, {label for _, label in found}
    if len(shapes) > 1:
        raise InputError(
            f"{folder}: its images have different shapes; make them the same with samovar data images --resize"
        )
    if min(labels) < 0:
        raise InputError(f"{folder}: has the label {min(labels)}; classes are counted from 0")
    (shape,) = shapes
    channels, height, width = shape
    written = str(folder.resolve()).replace("\\", "\\\\").replace('"', '\\"')  # as a prototxt has it
    return _Images(written, (channels, height, width), max(labels) + 1, num_records, len(places))
