"""`samovar convert`: one file as another that holds the same."""

import importlib
from pathlib import Path
from typing import Annotated

import typer


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
