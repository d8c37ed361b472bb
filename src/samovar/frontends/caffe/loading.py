"""A Caffe net from its files, as a torch module."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from samovar.core.errors import InputError
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.net import build_net
from samovar.frontends.caffe.sizes import sized
from samovar.frontends.caffe.spec import PHASES, Phase
from samovar.frontends.caffe.weights import read_into

AnyPath: TypeAlias = str | Path


def load(
    prototxt: AnyPath,
    weights: AnyPath | Sequence[AnyPath] | None = None,
    phase: Phase = "TEST",
    *,
    batch_size: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    level: int | None = None,
    stages: Sequence[str] = (),
    seed: int = 0,
) -> Net:
    """The net in `prototxt` as it is built in `phase`, with the arrays of `weights`; see `Net` for how to call it.

    `weights` is a .caffemodel (binary or HDF5), .safetensors or torch state_dict (.pt, .pth), or several of them:
    layers are matched by name, of several files the last one that has a layer counts, and layers that none has
    start from their fillers, drawn from `seed`, with a warning.

    `phase` chooses the layers (a TRAIN net has its losses) and sets `.train()` or `.eval()`. Tops of data layers are
    inputs; their shapes come from `input_shapes` (batch first), else from transform_param, else from the source.
    The batch is `batch_size`, else the file's; any other may be run as well.

    Raises InputError, naming file, line and layer, for whatever does not fit; it runs no code from a file.
    """
    if phase not in PHASES:
        raise InputError(f"phase is {phase!r}; give 'TEST' or 'TRAIN'")
    definition = load_net(Path(prototxt), level, stages)
    definition, shapes = sized(definition, phase, input_shapes or {}, batch_size)
    net = Net(build_net(definition, phase, shapes, seed), shapes, phase)
    notices = [*definition.warnings]
    if weights is not None:
        paths = [weights] if isinstance(weights, str | Path) else list(weights)
        notices += read_into(net.caffe_net, [Path(path) for path in paths])
    for text in notices:
        warnings.warn(text, stacklevel=2)
    return net
