"""The order of a net's images in memory, and the layers that do the work of the one before.

Convolutions, LRN and pooling are fastest on images whose channels are next to each other (channels-last, N H W C).
Layers that work value by value keep the order that they get. Others take and give Caffe's order (N C H W). So an
image becomes channels-last once, before the first layer that wants it, and stays so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from samovar.frontends.caffe.layers.activations import ReLU
from samovar.frontends.caffe.layers.base import CHANNELS_LAST, KEPT, Layer
from samovar.frontends.caffe.layers.normalization import LRN
from samovar.frontends.caffe.layers.pooling import Pooling
from samovar.frontends.caffe.spec import Shape
from samovar.frontends.caffe.wiring import Step
from samovar.model.half import keep_full


def planned(steps: Sequence[Step], input_shapes: Mapping[str, Shape], outputs: Sequence[str]) -> tuple[Step, ...]:
    """`steps` with the fewest blobs that each of them must make channels-last (`Step.channels_last`).
    Also merges ReLUs into the LRN or maximum next to them, and keeps scores exact."""
    keep_scores(steps)
    merge_rectifiers(steps, outputs)
    shapes = dict(input_shapes)
    last: set[str] = set()
    result = []
    for step in steps:
        images = [name for name in dict.fromkeys(step.bottoms) if len(shapes[name]) == 4]
        order = step.layer.memory_order
        is_last = order == CHANNELS_LAST or (order == KEPT and any(name in last for name in images))
        converted = tuple(name for name in images if is_last and name not in last)
        shapes.update(zip(step.tops, step.layer.top_shapes, strict=True))
        last = (last | set(converted)) - set(step.tops)
        last |= {name for name in step.tops if is_last and len(shapes[name]) == 4}
        result.append(replace(step, channels_last=converted))
    return tuple(result)


def merge_rectifiers(steps: Sequence[Step], outputs: Sequence[str]) -> None:
    """Let LRN and maxima do the work of a ReLU right before them, and maxima also of one right after.

    Right before: no other layer takes the ReLU's top. Right after: max(pool(x), 0) is pool(max(x, 0)), and no other
    layer takes the pool's top.
    """
    for index, step in enumerate(steps):
        top = step.tops[0] if step.tops else ""
        readers = [later.layer for later in _readers(steps[index + 1 :], top)]
        if len(readers) != 1 or top in outputs or step.loss_weights:
            continue
        before, after = step.layer, readers[0]
        if _is_plain_relu(before) and (isinstance(after, LRN) or _is_maximum(after)):
            before.is_merged = after.rectifies_bottom = True
        elif _is_maximum(before) and _is_plain_relu(after):
            after.is_merged = before.rectifies_bottom = True


def keep_scores(steps: Sequence[Step]) -> None:
    """Let layers whose tops are scores, for a loss or a softmax, compute in float32 at any precision.
    A score's rounding enters the loss and every gradient, and these layers are small."""
    for index, step in enumerate(steps):
        later = [reader.layer for top in step.tops for reader in _readers(steps[index + 1 :], top)]
        if any(layer.takes_scores for layer in later):
            for parameter in step.layer.caffe_parameters():
                keep_full(parameter)


def separate_rectifiers(steps: Sequence[Step]) -> None:
    """Let every ReLU do its own work again."""
    for step in steps:
        if isinstance(step.layer, ReLU):
            step.layer.is_merged = False
        elif isinstance(step.layer, LRN | Pooling):
            step.layer.rectifies_bottom = False


def _readers(later: Sequence[Step], blob: str) -> list[Step]:
    """The steps that take what `blob` holds now."""
    found = []
    for step in later:
        if blob in step.bottoms:
            found.append(step)
        if blob in step.tops:
            break
    return found


def _is_plain_relu(layer: Layer) -> TypeGuard[ReLU]:
    return isinstance(layer, ReLU) and layer.negative_slope == 0


def _is_maximum(layer: Layer) -> TypeGuard[Pooling]:
    return isinstance(layer, Pooling) and layer.is_max and not layer.with_index
