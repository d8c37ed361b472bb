"""The layers of a Caffe net for `samovar predict`: counted, and timed on random inputs, without its data."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from samovar.core.errors import InputError
from samovar.data.order import SAMPLE_NUMBERS
from samovar.files.inspection_nets import parse_shape
from samovar.frontends.caffe.costs import NetTimer, layer_counts
from samovar.frontends.caffe.definition import load_net, load_source, sized
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.solver import CaffeSolver, load_solver
from samovar.frontends.caffe.spec import Shape
from samovar.report.records import LayerTime, Timed

_MEASURED_S, _MOST_PASSES = 1.0, 20


class Training(NamedTuple):
    """The samples of the whole training, if known, and of a step the passes (iter_size) whose gradients make it.

    With `is_adaptive` the solver divides steps by the size of gradients. With `clips` it needs whole gradients.
    """

    samples: int | None = None
    passes: int = 1
    is_adaptive: bool = False
    clips: bool = False


def net_profile(
    path: Path, is_solver: bool, batch_size: int | None, threads: int | None, is_timed: bool, shapes: Sequence[str] = ()
) -> tuple[Timed, Training]:
    """The training net's layers for its batch, or `batch_size`, and what a solver says.

    Passes are timed as `samovar time` does it, on random numbers, for about a second; without `is_timed` none is made.
    `shapes` are those of inputs whose data is not here, as `samovar inspect` takes them. Raises InputError.
    """
    solver = load_solver(path) if is_solver else None
    definition = load_net(path) if solver is None else load_source(solver.net)
    given = dict(map(parse_shape, shapes))
    definition, sizes = sized(definition, "TRAIN", given, None)
    batch = own_batch = next((shape[0] for shape in sizes.values() if shape), 0)
    if not batch:
        raise InputError(f"{path}: the training net has no input with a batch; give a net with a data or Input layer")
    if batch_size is not None:
        definition, sizes = sized(definition, "TRAIN", given, batch_size)
        batch = batch_size
    net = build_net(definition, "TRAIN", sizes, seed=0)
    if threads is not None:
        torch.set_num_threads(threads)
    timer = NetTimer(net)
    if is_timed:
        _time(timer, _random_inputs(net, sizes, batch))
    name = net.name or path.stem
    return _as_record(name, batch, net, timer), Training() if solver is None else _training(solver, own_batch)


def _training(solver: CaffeSolver, batch: int) -> Training:
    passes = solver.iter_size
    clips = solver.clip_gradients is not None
    return Training(solver.max_iter * passes * batch, passes, solver.is_adaptive, clips)


def _random_inputs(net: CaffeNet, shapes: dict[str, Shape], batch: int) -> dict[str, torch.Tensor]:
    """Numbers from 0 to 1, which as a class or a word are 0; zeros for inputs with at most one number a sample."""
    found = {
        name: torch.rand(shape) if len(shape) > 1 and shape[1:] != (1,) * (len(shape) - 1) else torch.zeros(shape)
        for name, shape in shapes.items()
    }
    return found | {SAMPLE_NUMBERS: torch.arange(batch)} if net.is_random else found


def _time(timer: NetTimer, inputs: dict[str, torch.Tensor]) -> None:
    timer.warm_up(inputs)
    until_s = time.perf_counter() + _MEASURED_S
    while len(timer.seconds.passes_s) < _MOST_PASSES:
        timer.run(inputs)
        if time.perf_counter() > until_s:
            return


def _as_record(name: str, batch: int, net: CaffeNet, timer: NetTimer) -> Timed:
    counts, num_passes = layer_counts(net), len(timer.seconds.passes_s)

    def mean_ms(total_s: float) -> float:
        return 1e3 * total_s / max(1, num_passes)

    layers = tuple(
        LayerTime(
            name=layer.name,
            type=layer.type,
            forward_ms=mean_ms(layer.forward_s),
            backward_ms=mean_ms(layer.backward_s),
            **asdict(counts[layer.name]),
        )
        for layer in timer.seconds.layers
    )
    return Timed(
        net_name=name,
        phase="TRAIN",
        batch_size=batch,
        threads=torch.get_num_threads(),
        iterations=num_passes,
        layers=layers,
        forward_ms=sum(layer.forward_ms for layer in layers),
        backward_ms=sum(layer.backward_ms for layer in layers),
        iteration_ms=tuple(1e3 * seconds for seconds in timer.seconds.passes_s),
        initial_loss=None,
    )
