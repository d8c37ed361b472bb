"""How each kind of input is read: by what the commands call, as far as it goes without starting processes."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.data.published import parse_idx, read_unpacked
from samovar.data.reader import BatchReader
from samovar.files.conversion import read_mean_file
from samovar.files.inspection import Wanted, describe
from samovar.formats.caffe.blob import read_mean
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.caffe.text import parse_text
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net, net_from_message
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.solver import load_solver, solver_config
from samovar.frontends.caffe.spec import Phase
from samovar.frontends.caffe.weight_files import read_stored
from samovar.frontends.caffe.weights import match_weights, read_weights
from samovar.training.resume import resume_from
from tests.fuzz import material

_PHASES: tuple[Phase, ...] = ("TRAIN", "TEST")
_MOST_VALUES_TO_RUN = 100_000
_MOST_LAYERS_TO_RUN = 10_000


def read_net(path: Path) -> None:
    """Both phases, built, and run where they are small."""
    inspect(path)
    definition = load_net(path)
    for phase in _PHASES:
        net = build_net(definition, phase, {}, seed=0)
        shapes = definition.input_shapes(phase)
        sizes = [torch.Size(shape).numel() for layer in net.layers for shape in layer.top_shapes]
        if sum(sizes) <= _MOST_VALUES_TO_RUN and len(sizes) <= _MOST_LAYERS_TO_RUN:
            loss = net({name: torch.zeros(shape) for name, shape in shapes.items()}).loss
            if loss is not None and loss.requires_grad:
                loss.backward()


def read_solver(path: Path) -> None:
    inspect(path)
    solver = load_solver(path)
    solver_config(solver)
    read_net(solver.net.path)


def inspect(path: Path) -> None:
    """Inspect a file as `samovar inspect`, which refuses other files than the commands that use one."""
    with suppress(InputError):
        describe(path, Wanted(values=True))


def read_any_weights(path: Path) -> None:
    inspect(path)
    with suppress(InputError):
        read_stored(path, _definition())
    match_weights(_net(), read_weights(path, _net()), path)


def read_state(path: Path) -> None:
    inspect(path)
    resume_from(path, _net(), RunConfig("train", path), rank=0)


def read_data(path: Path) -> None:
    """The net for its data, and 24 samples of it."""
    definition = load_net(path)
    with BatchReader(definition.data_layers("TRAIN"), training=True) as reader:
        build_net(definition, "TRAIN", reader.top_shapes, seed=0)
        tensors = reader.read(0, 24)
    assert all(len(tensor) == 24 for tensor in tensors.values())


def read_datum(path: Path) -> None:
    image, _ = decode_datum(path.read_bytes())
    assert image.ndim == 3
    assert image.size > 0


def read_idx(path: Path) -> None:
    parse_idx(read_unpacked(path, 1 << 20), path.name, 3)


READERS: dict[str, Callable[[Path], object]] = {
    "net": read_net,
    "solver": read_solver,
    "caffemodel": read_any_weights,
    "tensors": read_any_weights,
    "solverstate": read_state,
    "mean": read_mean,
    "mean_npy": read_mean_file,
    "datum": read_datum,
    "idx": read_idx,
    "data": read_data,
}


def _definition() -> CaffeNetDefinition:
    """That of the sound weights."""
    return net_from_message(parse_text(material.NET, Path("sound.prototxt"), "NetParameter"))


@cache
def _net() -> CaffeNet:
    return build_net(_definition(), "TRAIN", {}, seed=0)
