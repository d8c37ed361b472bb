"""What the backward pass of a net costs, parameter by parameter, before anything has run."""

from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.spec import Shape
from samovar.frontends.caffe.summary import multiply_adds_of


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
