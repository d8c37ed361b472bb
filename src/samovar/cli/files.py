"""`samovar inspect` and `samovar convert`: what a file holds, and the same in another file."""

from pathlib import Path
from typing import Annotated

import typer

from samovar.cli.command import OPTIONS, OUTPUT, load


def inspect(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A net, solver, weights, solver state, mean image, LMDB, snapshot or run."),
    ],
    phase: Annotated[str, OPTIONS("TRAIN|TEST", "For a net: the layers of this phase.")] = "TEST",
    shape: Annotated[
        list[str] | None, OPTIONS("NAME=N,C,H,W", "For a net: the shape of an input. May be repeated.")
    ] = None,
    values: Annotated[bool, OPTIONS("", "For arrays: mean, standard deviation, minimum, maximum.", "--values")] = False,
    records: Annotated[int, OPTIONS("N", "For an LMDB: how many records to read.")] = 1000,
    draw: Annotated[
        Path | None, OPTIONS("FILE", "For a net: draw its graph as .dot, or as .svg or .png (needs Graphviz).")
    ] = None,
    force: Annotated[bool, OPTIONS("", "Replace an existing drawing.", "--force")] = False,
    as_json: Annotated[bool, OUTPUT("", "Print kind, facts, tables and notes as JSON.", "--json")] = False,
) -> None:
    """Show what a file is and what it contains."""
    # What needs torch is imported when it is asked for: other commands do without.
    inspection = load("samovar.files.inspection")
    wanted = inspection.Wanted(phase, tuple(shape or ()), values, records, draw, force)
    inspection.inspect(file, wanted, as_json)


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The file to read.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The file to write. Its suffix says the format.")],
    model: Annotated[Path | None, OPTIONS("FILE", "The net (prototxt). ONNX targets and HDF5 sources need it.")] = None,
    force: Annotated[bool, OPTIONS("", "Replace an existing target.", "--force")] = False,
) -> None:
    """Convert weights, solver states and mean images.

    Weights: .caffemodel, .caffemodel.h5, .safetensors, .pt or .pth (torch state_dict), and to .onnx.
    Solver states: .solverstate, .solverstate.h5. Mean images: .binaryproto, .npy.
    """
    # What needs torch is imported when it is asked for: other commands do without.
    conversion = load("samovar.files.conversion")
    for line in conversion.convert(source, target, model, force):
        typer.echo(line)
