"""Caffe's recorded training runs, repeated in this process: net, data and solver, without workers."""

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
from samovar.solver.base import Multipliers, history_key
from samovar.solver.build import build_solver

# What a maximum decides on (a pooling window's two largest, ReLU's zero) differs by less than rounding may move it.
TIE = 1e-6
_SAME = 1e-12  # windows over one background: whichever is taken, the gradient is the same


class SolverRun:
    """A recorded run of `folder`, from its `weights`; `bucket_size_bytes` cuts the net into buckets.

    `tied_steps` are those in which some maximum of the net (c1 and c2 go through max pooling, f1 through ReLU) was
    decided by rounding: two right implementations may differ from the next step on.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        weights: Path,
        bucket_size_bytes: int | None = None,
        finds_ties: bool = True,
    ) -> None:
        self._finds_ties = finds_ties
        self.caffe = load_solver(folder / f"{name}.solver.prototxt")
        definition = load_net(self.caffe.net_path)
        self.reader = BatchReader(definition.data_layers("TRAIN"), training=True)
        self.batch_size = self.reader.batch_size
        self.net = build_net(definition, "TRAIN", self.reader.top_shapes, seed=0)
        self._load(weights)
        self.tied_steps: list[int] = []
        self._inputs: dict[str, torch.Tensor] = {}
        for layer in self.net.layers:
            layer.register_forward_hook(self._keep_input)
        parameters = {info.name: info.parameter for info in self.net.parameter_infos}
        layout = layout_of(parameters)
        self.buckets = layout.buckets(bucket_size_bytes)
        buffers = FlatBuffer.zeros(layout), FlatBuffer.zeros(layout)
        self.model = Model(self.net, parameters, *buffers, self.buckets)
        multipliers = {info.name: Multipliers(info.lr_mult, info.decay_mult) for info in self.net.parameter_infos}
        self.solver = build_solver(solver_config(self.caffe), *buffers, multipliers)

    def __enter__(self) -> "SolverRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def _load(self, weights: Path) -> None:
        for name, array in match_weights(self.net, read_caffemodel(weights), weights).arrays.items():
            (parameter,) = [info.parameter for info in self.net.parameter_infos if info.name == name]
            parameter.data.numpy()[...] = array

    def _keep_input(self, layer: Any, inputs: tuple[torch.Tensor, ...], _outputs: object) -> None:
        if layer.spec.name in ("c1", "c2", "f1"):
            self._inputs[layer.spec.name] = inputs[0].detach().double()

    def _has_tie(self) -> bool:
        """Of this step's values, in double precision."""
        values = {info.name: info.parameter.detach().double() for info in self.net.parameter_infos}
        gaps = []
        for name in ("c1", "c2"):
            outputs = functional.conv2d(self._inputs[name], values[f"{name}/0"], values[f"{name}/1"])
            windows = outputs.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
            largest = windows.topk(2).values
            gaps.append((largest[..., 0] - largest[..., 1]).flatten())
        gaps.append(functional.linear(self._inputs["f1"].flatten(1), values["f1/0"], values["f1/1"]).abs().flatten())
        gap = torch.cat(gaps)
        return bool(((gap > _SAME) & (gap < TIE)).any())

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
                loss = self.model.forward_backward(
                    tensors,
                    loss_scale=1.0,
                    first_part=part == 0,
                    last_part=part == self.caffe.iter_size - 1,
                    before_forward=lambda _bucket: None,
                    gradient_final=lambda _bucket: None,
                )
                if self._finds_ties and step not in self.tied_steps and self._has_tie():
                    self.tied_steps.append(step)
            losses.append(loss)
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
