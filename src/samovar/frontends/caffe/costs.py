"""Costs of a net's layers: shapes, parameters, multiply-adds and memory are counted, seconds are measured."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from samovar.core.buffer import FlatBuffer, StagedBuffer
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.convolution import Convolution, Deconvolution
from samovar.frontends.caffe.layers.inner_product import InnerProduct
from samovar.frontends.caffe.layers.recurrent import LSTM, RNN
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.spec import Shape
from samovar.frontends.caffe.wiring import Step
from samovar.model.direct import GradientSink
from samovar.model.model import layout_of

_BYTES_PER_VALUE = 4


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer for the batch that the net was built for.

    `tops` are blobs with their shapes. `num_parameters` counts a shared array at its first layer alone. `multiply_adds`
    counts products with weights in one forward pass. `activation_bytes` is the size of its tops, 0 in place.
    """

    name: str
    type: str
    tops: tuple[tuple[str, Shape], ...]
    is_in_place: bool
    num_parameters: int
    multiply_adds: int
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class NetCost:
    """All layers in file order, inputs first, and the sum of each column."""

    layers: tuple[LayerCost, ...]
    num_parameters: int
    parameter_bytes: int
    multiply_adds: int
    activation_bytes: int


def costs(net: Net) -> NetCost:
    """Shapes, parameters, multiply-adds and memory of every layer."""
    caffe_net = net.caffe_net
    products = _by_layer(caffe_net)
    sizes = {info.name: info.parameter.numel() for info in caffe_net.parameter_infos}
    found = [
        LayerCost(name, "(input)", ((name, shape),), False, 0, 0, _BYTES_PER_VALUE * prod(shape))
        for name, shape in net.input_shapes.items()
    ]
    for step in caffe_net.steps:
        layer = step.layer
        tops = tuple(zip(step.tops, (tuple(shape) for shape in layer.top_shapes), strict=True))
        new = [shape for name, shape in tops if name not in step.bottoms]
        found.append(
            LayerCost(
                layer.spec.name,
                layer.spec.type,
                tops,
                is_in_place=bool(tops) and not new,
                num_parameters=sum(sizes.pop(name, 0) for name in layer.parameter_names),
                multiply_adds=products[layer.spec.name],
                activation_bytes=_BYTES_PER_VALUE * sum(map(prod, new)),
            )
        )
    num_parameters, multiply_adds, activation_bytes = (
        sum(getattr(layer, column) for layer in found)
        for column in ("num_parameters", "multiply_adds", "activation_bytes")
    )
    parameter_bytes = _BYTES_PER_VALUE * num_parameters
    return NetCost(tuple(found), num_parameters, parameter_bytes, multiply_adds, activation_bytes)


def multiply_adds_of(layer: Layer, inputs: list[Shape]) -> int:
    """A filter uses each weight once at every place, a product once in every row or time step.
    The static values of a recurrent layer are multiplied once for all steps of a sequence."""
    if isinstance(layer, Convolution):
        places = inputs if isinstance(layer, Deconvolution) else layer.top_shapes
        return sum(map(prod, places)) * prod(layer.weight.shape[1:])
    if isinstance(layer, InnerProduct):
        return prod(layer.top_shapes[0]) // int(layer.num_output) * layer.weight.numel()
    if isinstance(layer, RNN | LSTM):
        weights = {name: p.numel() for name, p in layer.named_parameters() if name.endswith("weight")}
        once = weights.pop("static_weight", 0)
        num_steps, num_sequences = inputs[0][:2]
        return num_sequences * (num_steps * sum(weights.values()) + once)
    return 0


def num_sequences(net: CaffeNet) -> int | None:
    """How many sequences a batch has, if the net has a recurrent layer: there axis 0 is time."""
    return next((layer.top_shapes[0][1] for layer in net.layers if isinstance(layer, RNN | LSTM)), None)


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """The counts of one layer, as in `LayerCost`; `num_parameters` are learned."""

    num_parameters: int = 0
    multiply_adds: int = 0
    activation_bytes: int = 0
    num_unlearned: int = 0


def layer_counts(net: CaffeNet) -> dict[str, LayerCounts]:
    """The counts of every layer by its name, in file order, for the batch that the net was built for."""
    sizes: Counter[tuple[str, bool]] = Counter()
    for info in net.parameter_infos:
        sizes[info.layer, info.parameter.requires_grad] += info.parameter.numel()
    products, found = _by_layer(net), {}
    for step in net.steps:
        name, tops = step.layer.spec.name, zip(step.tops, step.layer.top_shapes, strict=True)
        new_bytes = _BYTES_PER_VALUE * sum(prod(shape) for top, shape in tops if top not in step.bottoms)
        found[name] = LayerCounts(sizes[name, True], products[name], new_bytes, sizes[name, False])
    return found


def backward_multiply_adds(net: CaffeNet) -> dict[str, int]:
    """Multiply-adds of the backward pass up to each learned parameter's gradient since the one before, by name.

    In the order in which backward finishes them (the reverse of the file's), for the batch that the net was built for.
    A layer's products count twice, for the gradients of its weights and of its input, and belong to the first of its
    parameters. The last layer that backward reaches has no input gradient. A frozen layer's count adds to the next
    layer's. Only products with weights count (`samovar inspect` shows them).
    """
    learned = [info for info in net.parameter_infos if info.parameter.requires_grad]
    counts: dict[str, int] = {}
    forward, pending = _by_layer(net), 0
    for layer in reversed(forward):
        is_last = bool(learned) and layer == learned[0].layer
        pending += forward[layer] * (1 if is_last else 2)
        for info in reversed([info for info in learned if info.layer == layer]):
            counts[info.name] = pending
            pending = 0
    return counts


def _by_layer(net: CaffeNet) -> dict[str, int]:
    """Of one forward pass, by layer in file order."""
    shapes: dict[str, Shape] = dict(net.input_shapes)
    found: dict[str, int] = {}
    for step in net.steps:
        found[step.layer.spec.name] = multiply_adds_of(step.layer, [shapes[blob] for blob in step.bottoms])
        shapes.update(zip(step.tops, (tuple(shape) for shape in step.layer.top_shapes), strict=True))
    return found


Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class LayerSeconds:
    """Seconds of one layer, of all passes together."""

    name: str
    type: str
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(slots=True)
class NetSeconds:
    """The layers in file order; `passes_s` are whole forward and backward passes, one by one."""

    layers: list[LayerSeconds]
    passes_s: list[float] = field(default_factory=list)

    @property
    def forward_s(self) -> float:
        return sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        return sum(layer.backward_s for layer in self.layers)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The inputs and outputs of one layer: `leaves` are its bottoms, cut off from the layers before."""

    step: Step
    leaves: list[torch.Tensor]
    tops: tuple[torch.Tensor, ...]


class NetTimer:
    """Times passes of `net`, whose parameters are laid out as training lays them out.

    Each layer runs on bottoms without history, and its backward runs by itself, so its time is its own. Gradients are
    the right ones if the net has a loss, else ones. A bottom gets a gradient if training computes one. `computed`
    waits until a device has finished its work.
    """

    def __init__(self, net: CaffeNet, computed: Callable[[], None] = lambda: None) -> None:
        self._net = net
        self._computed = computed
        self._parameters = [info.parameter for info in net.parameter_infos]
        _lay_out(net)
        self.seconds = NetSeconds([LayerSeconds(step.layer.spec.name, step.layer.spec.type) for step in net.steps])

    def warm_up(self, batch: Mapping[str, torch.Tensor]) -> float | None:
        """One pass that does not count; the loss, None for a net without one."""
        loss = self._net(batch).loss
        passes = self.seconds
        self.seconds = NetSeconds([LayerSeconds("", "") for _ in passes.layers])
        self.run(batch)
        self.seconds = passes
        return None if loss is None else float(loss.detach())

    def run(self, batch: Mapping[str, torch.Tensor]) -> None:
        """One pass forward and backward, added to `seconds`."""
        for parameter in self._parameters:
            parameter.grad = None
        before_s = self.seconds.forward_s + self.seconds.backward_s
        self._backward(self._forward(batch))
        self.seconds.passes_s.append(self.seconds.forward_s + self.seconds.backward_s - before_s)

    def _forward(self, batch: Mapping[str, torch.Tensor]) -> list[_Turn]:
        blobs: Tensors = self._net.inputs(batch)
        turns = []
        for step, seconds in zip(self._net.steps, self.seconds.layers, strict=True):
            bottoms = zip(
                [blobs[name] for name in step.bottoms], step.detached or (False,) * len(step.bottoms), strict=True
            )
            leaves = [blob.detach().requires_grad_(blob.requires_grad and not stop) for blob, stop in bottoms]
            given = [leaf.clone() if step.layer.overwrites_bottom else leaf for leaf in leaves]
            started_s = self._now_s()
            tops = step.layer.tops(*(step.layer.taken(bottom) for bottom in given))
            seconds.forward_s += self._now_s() - started_s
            blobs.update(zip(step.tops, tops, strict=True))
            turns.append(_Turn(step, leaves, tops))
        return turns

    def _backward(self, turns: list[_Turn]) -> None:
        gradients: Tensors = {}
        for turn, seconds in reversed(list(zip(turns, self.seconds.layers, strict=True))):
            weights = dict(turn.step.loss_weights)
            pairs = []
            for name, top in zip(turn.step.tops, turn.tops, strict=True):
                gradient = gradients.pop(name, None)
                if name in weights:
                    gradient = torch.full_like(top, weights[name])
                if top.requires_grad:
                    pairs.append((top, torch.ones_like(top) if gradient is None else gradient))
            if pairs:
                started_s = self._now_s()
                torch.autograd.backward([top for top, _ in pairs], [gradient for _, gradient in pairs])
                seconds.backward_s += self._now_s() - started_s
            for name, leaf in zip(turn.step.bottoms, turn.leaves, strict=True):
                if leaf.grad is not None:
                    gradients[name] = gradients[name] + leaf.grad if name in gradients else leaf.grad

    def _now_s(self) -> float:
        self._computed()
        return time.perf_counter()


def _lay_out(net: CaffeNet) -> None:
    """Put the parameters into flat buffers, where layers that can write their gradients themselves."""
    parameters = {info.name: info.parameter for info in net.parameter_infos}
    layout = layout_of(parameters)
    weights, gradients = (StagedBuffer(FlatBuffer.zeros(layout), net.device).near for _ in range(2))
    for name, parameter in parameters.items():
        view = weights.view(name)
        view.copy_(parameter.data)
        parameter.data = view
        parameter.gradient_sink = GradientSink(  # type: ignore[attr-defined]
            view=gradients.view(name), accumulate=False, written=lambda: None
        )
