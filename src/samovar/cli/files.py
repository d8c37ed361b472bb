"""`samovar inspect` and `samovar convert`: what a file holds, and the same in another file."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

_DRAW_HELP = "Of a net: draw its graph into this file, .dot (text), or .svg or .png by Graphviz's program dot."


def inspect(
    file: Annotated[Path, typer.Argument(help="A net, solver, weights, solver state, mean, LMDB, snapshot or run.")],
    phase: Annotated[str, typer.Option(help="Of a net: the layers of TEST or TRAIN.")] = "TEST",
    shape: Annotated[
        list[str] | None, typer.Option(help="Of a net: an input's shape, NAME=N,C,H,W; may be repeated.")
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Of arrays: mean, deviation, least, largest.")] = False,
    records: Annotated[int, typer.Option(help="Of an LMDB: how many records to look into.")] = 1000,
    draw: Annotated[Path | None, typer.Option(help=_DRAW_HELP)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a drawing that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Tell what a file is and what it holds."""
    # What needs torch is imported when it is asked for: other commands do without.
    inspection = importlib.import_module("samovar.files.inspection")
    wanted = inspection.Wanted(phase, tuple(shape or ()), values, records, draw, force)
    inspection.inspect(file, wanted, as_json)


def convert(
    source: Annotated[Path, typer.Argument(help="What to read; what it is shows in its content.")],
    target: Annotated[Path, typer.Argument(help="What to write; what it becomes shows in its suffix.")],
    model: Annotated[
        Path | None, typer.Option(help="The net (prototxt): for ONNX, and for files that name no layer types.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a target that is there.")] = False,
) -> None:
    """Convert weights, solver states and mean images.

    Weights: .caffemodel, .caffemodel.h5, .safetensors, .pt or .pth (torch state_dict), and to .onnx; solver states:
    .solverstate, .solverstate.h5; mean images: .binaryproto, .npy.
    """
    # What needs torch is imported when it is asked for: other commands do without.
    conversion = importlib.import_module("samovar.files.conversion")
    for line in conversion.convert(source, target, model, force):
        typer.echo(line)
