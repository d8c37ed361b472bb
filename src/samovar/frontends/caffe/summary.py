"""What a net's layers give, hold and cost."""

from dataclasses import dataclass
from math import prod

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.convolution import Convolution, Deconvolution
from samovar.frontends.caffe.layers.inner_product import InnerProduct
from samovar.frontends.caffe.layers.recurrent import LSTM, RNN
from samovar.frontends.caffe.module import Net
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.spec import Shape

_BYTES_PER_VALUE = 4


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer for the batch that the net was built for.

    `tops` are blobs with their shapes; `num_parameters` counts arrays where they stand first, also when several layers
    share them; `multiply_adds` are those of one forward pass through products with weights (nothing else is counted);
    `activation_bytes` is what its tops take, 0 in place.
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

    @property
    def num_parameters(self) -> int:
        return sum(layer.num_parameters for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        return _BYTES_PER_VALUE * self.num_parameters

    @property
    def multiply_adds(self) -> int:
        return sum(layer.multiply_adds for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        return sum(layer.activation_bytes for layer in self.layers)


def costs(net: Net) -> NetCost:
    """Shapes, parameters, multiply-adds and memory of every layer."""
    caffe_net = net.caffe_net
    shapes: dict[str, Shape] = dict(net.input_shapes)
    sizes = {info.name: info.parameter.numel() for info in caffe_net.parameter_infos}
    found = [_input(name, shape) for name, shape in shapes.items()]
    for step in caffe_net.steps:
        layer, inputs = step.layer, [shapes[blob] for blob in step.bottoms]
        tops = tuple(zip(step.tops, (tuple(shape) for shape in layer.top_shapes), strict=True))
        new = [shape for name, shape in tops if name not in step.bottoms]
        shapes.update(tops)
        found.append(
            LayerCost(
                layer.spec.name,
                layer.spec.type,
                tops,
                is_in_place=bool(tops) and not new,
                num_parameters=sum(sizes.pop(name, 0) for name in layer.parameter_names),
                multiply_adds=multiply_adds_of(layer, inputs),
                activation_bytes=_BYTES_PER_VALUE * sum(map(prod, new)),
            )
        )
    return NetCost(tuple(found))


def _input(name: str, shape: Shape) -> LayerCost:
    return LayerCost(name, "(input)", ((name, shape),), False, 0, 0, _BYTES_PER_VALUE * prod(shape))


def multiply_adds_of(layer: Layer, inputs: list[Shape]) -> int:
    """Each weight of a filter is used once at every place, of a product once in every row or time step."""
    if isinstance(layer, Convolution):
        places = inputs if isinstance(layer, Deconvolution) else layer.top_shapes
        return sum(map(prod, places)) * prod(layer.weight.shape[1:])
    if isinstance(layer, InnerProduct):
        return prod(layer.top_shapes[0]) // int(layer.num_output) * layer.weight.numel()
    if isinstance(layer, RNN | LSTM):
        weights = [p.numel() for name, p in layer.named_parameters() if name.endswith("weight")]
        return prod(inputs[0][:2]) * sum(weights)
    return 0


def backward_multiply_adds(net: CaffeNet) -> dict[str, int]:
    """Multiply-adds of the backward pass up to each learned parameter's gradient since the one before, by name.

    In the order in which backward finishes them (the reverse of the file's), for the batch that the net was built for.
    A layer's products are counted twice, for the gradient of its weights and that of its input (the last layer that
    backward comes to has none), and stand with the first of its parameters; those of a layer with frozen ones stand
    with the next layer's. Products with weights are all that is counted (`samovar inspect` shows them).
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
    shapes: dict[str, Shape] = {}
    found: dict[str, int] = {}
    for step in net.steps:
        inputs = [shapes.get(blob, (0,)) for blob in step.bottoms]
        found[step.layer.spec.name] = multiply_adds_of(step.layer, inputs)
        shapes.update(zip(step.tops, (tuple(shape) for shape in step.layer.top_shapes), strict=True))
    return found
