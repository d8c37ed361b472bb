"""`samovar data`: databases in Caffe's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from samovar.data.digits import write_digits
from samovar.data.image_database import WrittenDatabase
from samovar.data.mnist import write_mnist

data_app = typer.Typer(help="Make data sets as Caffe databases (LMDB).", no_args_is_help=True)
Out = Annotated[Path, typer.Option(help="Folder to put the databases into.")]


@data_app.command()
def digits(out: Out) -> None:
    """scikit-learn's bundled handwritten digits, brought to 28x28: needs nothing from outside."""
    _tell(write_digits(out))


@data_app.command()
def mnist(
    source: Annotated[Path, typer.Option(help="Folder with the four published IDX files (.gz or not).")],
    out: Out,
) -> None:
    """MNIST from its published files, checksums verified."""
    _tell(write_mnist(source, out))


def _tell(databases: Sequence[WrittenDatabase]) -> None:
    for database in databases:
        state = "is already there" if database.already_there else "written"
        typer.echo(f"{database.folder}: {database.num_records:,} records, {state}")
