"""Caffe's recorded training runs, repeated in this process: net, data and solver, without workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from samovar.core.buffer import FlatBuffer
from samovar.data.reader import BatchReader
from samovar.formats.caffe.caffemodel import Weights, read_caffemodel
from samovar.formats.caffe.solverstate import read_solverstate
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import build_net
from samovar.frontends.caffe.solver import load_solver, solver_config
from samovar.frontends.caffe.weights import match_weights
from samovar.model.model import Model, layout_of
from samovar.solver.flat import Multipliers, Solver, history_key

# What a maximum decides on (a pooling window's two largest, ReLU's zero) differs by less than rounding may move it.
# More so by solvers that divide by small roots: their weights move 1e-6, and sums of 20 and more inputs with them.
TIE, DIVIDING_TIE = 1e-6, 2e-5
DIVIDING = ("adagrad", "rmsprop", "adadelta", "adam")
_SAME = 1e-12  # windows over one background: whichever is taken, the gradient is the same
_BEYOND = 5e-7  # how far over the other value a choice puts one: more than the last digit of those here


@dataclass(frozen=True, slots=True)
class Maxima:
    """The choices on a layer's top: max pooling's windows, (size, stride), and whether ReLU comes then."""

    pooling: tuple[int, int] | None = None
    then_relu: bool = False


# Of the narrow LeNet, and of CIFAR-10 quick.
_MAXIMA = {
    "c1": Maxima((2, 2)),
    "c2": Maxima((2, 2)),
    "f1": Maxima(then_relu=True),
    "conv1": Maxima((3, 2), then_relu=True),
    "conv2": Maxima(then_relu=True),
    "conv3": Maxima(then_relu=True),
}


@dataclass(frozen=True, slots=True)
class Tie:
    """A maximum that was decided by rounding, and a decision: `shift`, added to value `index` of a layer's top.

    Two right implementations may choose differently, and train differently from the next step on.
    """

    step: int
    part: int
    layer: str
    index: int
    shift: float


class SolverRun:
    """A recorded run of `folder`, from its `weights`; `bucket_size_bytes` cuts the net into buckets.

    `ties` are those of the net's maxima. Those of `choices` are decided so, whatever this machine's rounding says.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        weights: Path,
        bucket_size_bytes: int | None = None,
        finds_ties: bool = True,
        choices: tuple[Tie, ...] = (),
    ) -> None:
        self._finds_ties = finds_ties
        self._choices = choices
        self._tie = DIVIDING_TIE if name.startswith(DIVIDING) else TIE
        self._turn = (0, 0)  # step and part
        self.caffe = load_solver(folder / f"{name}.solver.prototxt")
        definition = load_net(self.caffe.net.path)
        self.reader = BatchReader(definition.data_layers("TRAIN"), training=True)
        self.batch_size = self.reader.batch_size
        self.net = build_net(definition, "TRAIN", self.reader.top_shapes, seed=0)
        self._load(weights)
        self.ties: list[Tie] = []
        self._inputs: dict[str, torch.Tensor] = {}
        for layer in self.net.layers:
            layer.register_forward_hook(self._choose)
        parameters = {info.name: info.parameter for info in self.net.parameter_infos}
        layout = layout_of(parameters)
        self.buckets = layout.buckets(bucket_size_bytes)
        buffers = FlatBuffer.zeros(layout), FlatBuffer.zeros(layout)
        self.model = Model(self.net, parameters, *buffers, self.buckets)
        multipliers = {info.name: Multipliers(info.lr_mult, info.decay_mult) for info in self.net.parameter_infos}
        self.solver = Solver(solver_config(self.caffe), *buffers, multipliers)

    def __enter__(self) -> "SolverRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def _load(self, weights: Path) -> None:
        for name, array in match_weights(self.net, read_caffemodel(weights), weights).arrays.items():
            (parameter,) = [info.parameter for info in self.net.parameter_infos if info.name == name]
            parameter.data.numpy()[...] = array

    def _choose(
        self, layer: Any, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        name = layer.spec.name
        if name in _MAXIMA:
            self._inputs[name] = inputs[0].detach().double()
        for choice in self._choices:
            if (choice.step, choice.part, choice.layer) == (*self._turn, name):
                shift = torch.zeros(outputs[0].shape)
                shift.view(-1)[choice.index] = choice.shift
                outputs = (outputs[0] + shift, *outputs[1:])
        return outputs

    def _find_ties(self) -> None:
        """Of this step's values, in double precision; each with both decisions, since float32 may have made either."""
        values = {info.name: info.parameter.detach().double() for info in self.net.parameter_infos}
        for name, inputs in self._inputs.items():
            weight, bias = values[f"{name}/0"], values[f"{name}/1"]
            if weight.dim() == 2:
                top = functional.linear(inputs.flatten(1), weight, bias)
            else:
                padding = 0 if name in ("c1", "c2") else weight.shape[-1] // 2
                top = functional.conv2d(inputs, weight, bias, padding=padding)
            self._find_ties_of(name, top)

    def _find_ties_of(self, name: str, top: torch.Tensor) -> None:
        maxima, numbers = _MAXIMA[name], torch.arange(top.numel()).view(top.shape)
        if maxima.pooling:
            windows, numbers = (_windows(x, *maxima.pooling) for x in (top, numbers))
            largest = windows.topk(2)
            gaps = largest.values[:, 0] - largest.values[:, 1]
            firsts, seconds = numbers.gather(1, largest.indices).unbind(1)
            self._keep_ties(name, gaps, seconds, gaps + _BEYOND)
            self._keep_ties(name, gaps, firsts, torch.full_like(gaps, _BEYOND))
            top, numbers = largest.values[:, 0], firsts
        if maxima.then_relu:
            for beyond in (_BEYOND, -_BEYOND):
                self._keep_ties(name, top.abs().flatten(), numbers.flatten(), beyond - top.flatten())

    def _keep_ties(self, layer: str, gaps: torch.Tensor, numbers: torch.Tensor, shifts: torch.Tensor) -> None:
        for place in ((gaps > _SAME) & (gaps < self._tie)).nonzero().flatten().tolist():
            self.ties.append(Tie(*self._turn, layer, int(numbers[place]), float(shifts[place])))

    def resume(self, path: Path) -> None:
        """Take the histories of a solverstate by Caffe."""
        state, names = read_solverstate(path), [info.name for info in self.net.parameter_infos]
        shapes = [tuple(info.parameter.shape) for info in self.net.parameter_infos]
        keys = [history_key(name, index) for index in range(len(self.solver.histories)) for name in names]
        arrays = [array.reshape(shapes[k % len(names)]) for k, array in enumerate(state.history)]
        self.solver.load_state_dict(dict(zip(keys, arrays, strict=True)))

    def train(self, steps: range, first_sample: int) -> list[float]:
        """The loss of each step's last part; the first step reads the records from `first_sample` on."""
        losses = []
        for step in steps:
            for part in range(self.caffe.iter_size):
                tensors = self.reader.read(first_sample, self.batch_size)
                first_sample += self.batch_size
                self._turn = (step, part)
                loss = self.model.forward_backward(
                    tensors,
                    loss_scale=1.0,
                    first_part=part == 0,
                    last_part=part == self.caffe.iter_size - 1,
                    before_forward=lambda _bucket: None,
                    gradient_final=lambda _bucket: None,
                )
                if self._finds_ties:
                    self._find_ties()
            losses.append(float(loss))
            for bucket in self.buckets:
                self.solver.update(step, bucket, 1.0 / self.caffe.iter_size)
        return losses

    def distance_of_weights(self, caffemodel: Path) -> float:
        """The largest absolute difference from Caffe's."""
        recorded: Weights = read_caffemodel(caffemodel)
        return max(
            float(np.abs(info.parameter.detach().numpy() - _of(recorded, info.name, info.parameter.shape)).max())
            for info in self.net.parameter_infos
        )

    def histories(self) -> list[np.ndarray]:
        """In the order of a solverstate."""
        return [history.logical(info.name) for history in self.solver.histories for info in self.net.parameter_infos]


def _of(weights: Weights, name: str, shape: tuple[int, ...]) -> np.ndarray:
    layer, _, index = name.rpartition("/")
    return weights[layer][int(index)].reshape(tuple(shape))


def _windows(top: torch.Tensor, size: int, stride: int) -> torch.Tensor:
    """(windows, size * size); Caffe's last ones reach beyond the edge, where nothing is the largest."""
    over = (size - stride) % stride if size > stride else 0
    lowest = torch.finfo(top.dtype).min if top.is_floating_point() else 0
    padded = functional.pad(top, (0, over, 0, over), value=lowest)
    return padded.unfold(2, size, stride).unfold(3, size, stride).flatten(4).flatten(0, 3)
