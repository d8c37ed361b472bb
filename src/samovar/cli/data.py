"""`samovar data`: databases in Caffe's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli.data_images import images
from samovar.data.cifar10 import write_cifar10
from samovar.data.digits import write_digits
from samovar.data.image_database import WrittenDatabase
from samovar.data.leveldb import copy_leveldb
from samovar.data.mnist import FASHION_MNIST, write_mnist

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
