"""From layers in file order to steps over named blobs, with a check of every name, count and shape.

Then the order of images in memory, and the layers that do the work of the one before. Convolutions, LRN and pooling are
fastest on images whose channels are next to each other (channels-last, N H W C). Layers that work value by value keep
the order that they get. Others take and give Caffe's order (N C H W). So an image becomes channels-last once, before
the first layer that wants it, and stays so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from samovar.core.errors import nearest
from samovar.frontends.caffe.layers.activations import ReLU
from samovar.frontends.caffe.layers.base import CHANNELS_LAST, KEPT, Layer
from samovar.frontends.caffe.layers.ends import input_shapes
from samovar.frontends.caffe.layers.normalization import LRN
from samovar.frontends.caffe.layers.pooling import Pooling
from samovar.frontends.caffe.layers.registry import DATA_TYPES, INPUT_TYPES, layer_class
from samovar.frontends.caffe.parameters import Footprint, ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape
from samovar.model.half import keep_full

_AUTOMATIC = "(automatic)"
_MANY = 1 << 16
_NUM_TOPS = {"Data": (1, 2), "ImageData": (2, 2), "MemoryData": (2, 2), "WindowData": (2, 2)}


@dataclass(frozen=True, slots=True)
class LayerOutline:
    """A layer as a `.caffemodel` lists it; `parameter_names` in Caffe's order, as in `ParameterInfo`.
    `parameter_shapes` are this layer's; the owner of a shared array may have another shape."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    parameter_names: tuple[str, ...]
    parameter_shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One layer's turn: the blobs it takes and gives.

    `detached` says for each bottom whether its gradient stops here. `loss_weights` are the tops that count as loss,
    `detached_losses` those of them that send no gradient of their own, `last_uses` the blobs that no later step and no
    output needs. Before it, the blobs `channels_last` are brought to that order in memory.
    """

    layer: Layer
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    detached: tuple[bool, ...]
    loss_weights: tuple[tuple[str, float], ...]
    detached_losses: tuple[str, ...] = ()
    last_uses: tuple[str, ...] = ()
    channels_last: tuple[str, ...] = ()


class Wiring:
    """Takes a phase's layers one by one (`add`), then gives the finished net (`finish`)."""

    def __init__(self, data_shapes: Mapping[str, Shape], seed: int, footprint: Footprint) -> None:
        self.input_names: list[str] = []
        self.input_shapes: dict[str, Shape] = {}
        self.outlines: list[LayerOutline] = []
        self.store = ParameterStore(seed, footprint)
        self._footprint = footprint
        self._data_shapes = data_shapes
        self._steps: list[Step] = []
        self._shapes: dict[str, Shape] = {}
        self._writers: dict[str, Layer | None] = {}  # of each blob's present content
        self._num_readers: dict[str, int] = {}  # of each blob's present content
        self._layer_names: set[str] = set()

    def add(self, spec: LayerSpec) -> None:
        """Build the layer and connect it; InputError, with its line, if it does not fit."""
        if spec.name in self._layer_names and spec.name:
            raise spec.error("another layer of this phase has the same name; rename one", "name")
        self._layer_names.add(spec.name)
        if spec.type in (*DATA_TYPES, *INPUT_TYPES):
            self._add_inputs(spec)
        else:
            self._add_layer(spec)

    def output_shapes(self) -> dict[str, Shape]:
        """Blobs that no layer takes, in Caffe's order."""
        return {name: self._shapes[name] for name in sorted(self._shapes) if self._num_readers[name] == 0}

    def finish(self) -> tuple[Step, ...]:
        """The steps, once all layers are added; parameters get their values."""
        self.store.fill()
        shared = self.store.shared_names()
        needed = set(self.output_shapes())
        under_loss: set[str] = set()
        steps = []
        for step in reversed(self._steps):
            step.layer.is_shared = not shared.isdisjoint(step.layer.parameter_names)
            last_uses = set(step.bottoms + step.tops) - needed
            needed |= last_uses
            # Caffe keeps a weight that is not written as the top's gradient, and a layer under a loss overwrites that.
            is_written = bool(step.layer.spec.message.loss_weight)
            detached = () if is_written else tuple(top for top, _ in step.loss_weights if top in under_loss)
            if step.loss_weights or not under_loss.isdisjoint(step.tops):
                under_loss.update(step.bottoms)
            steps.append(replace(step, detached_losses=detached, last_uses=tuple(sorted(last_uses))))
        return tuple(reversed(steps))

    def _add_inputs(self, spec: LayerSpec) -> None:
        if spec.bottoms:
            found = f"number of bottoms is {len(spec.bottoms)}"
            raise spec.error(f"{found}; a layer of type {spec.type} takes no bottom", "bottom")
        _check_count(spec, "top", len(spec.tops), _NUM_TOPS.get(spec.type, (1, _MANY)))
        shapes = input_shapes(spec) if spec.type in INPUT_TYPES else [self._data_shape(spec, top) for top in spec.tops]
        for top, shape in zip(spec.tops, shapes, strict=True):
            self._write(spec, top, shape, None)
            self.input_names.append(top)
            self.input_shapes[top] = shape
        self.outlines.append(LayerOutline(spec.name, spec.type, (), spec.tops, (), ()))

    def _data_shape(self, spec: LayerSpec, top: str) -> Shape:
        if top not in self._data_shapes:
            raise spec.error(f"the shape of top '{top}' is not known: it depends on the layer's data", "top")
        return self._data_shapes[top]

    def _add_layer(self, spec: LayerSpec) -> None:
        kind = layer_class(spec)
        _check_count(spec, "bottom", len(spec.bottoms), kind.num_bottoms)
        least, most = kind.num_tops
        _check_count(spec, "top", len(spec.tops), (0 if kind.makes_own_top else least, most))
        tops = spec.tops or (self._automatic_top(),) * kind.makes_own_top
        bottom_shapes = [self._shape(spec, bottom) for bottom in spec.bottoms]
        layer = kind(spec, bottom_shapes, self.store)
        if not spec.name and (layer.parameter_names or layer.is_random):
            raise spec.error("has no name, which its weights and draws need; give it one", "type")
        if len(spec.message.param) > len(layer.parameter_names):
            raise spec.error(
                f"param is given {len(spec.message.param)} times, but the layer has "
                f"{len(layer.parameter_names)} parameters; remove the rest",
                "param",
            )
        layer.overwrites_bottom = tops[:1] == spec.bottoms[:1] != () and self._is_free(tops[0])
        for bottom in spec.bottoms:
            self._num_readers[bottom] += 1
        for index, (top, shape) in enumerate(zip(tops, layer.top_shapes, strict=True)):
            in_place = spec.bottoms[index : index + 1] == (top,)
            self._write(spec, top, shape, layer, may_exist=in_place)
        weights = _loss_weights(spec, kind, tops)
        self._steps.append(Step(layer, spec.bottoms, tops, _detached(spec), weights))
        names, shapes = tuple(layer.parameter_names), tuple(layer.parameter_shapes)
        self.outlines.append(LayerOutline(spec.name, spec.type, spec.bottoms, tops, names, shapes))

    def _automatic_top(self) -> str:
        """A name for a loss without a top: Caffe's, with a number from the second on."""
        count = sum(name.startswith(_AUTOMATIC) for name in self._shapes)
        return f"{_AUTOMATIC} {count + 1}" if count else _AUTOMATIC

    def _shape(self, spec: LayerSpec, bottom: str) -> Shape:
        if bottom not in self._shapes:
            advice = nearest(bottom, self._shapes) if self._shapes else f"nothing is above it in phase {spec.phase}"
            raise spec.error(f"bottom '{bottom}' is not the top of a layer above; {advice}", "bottom")
        return self._shapes[bottom]

    def _is_free(self, blob: str) -> bool:
        """True if nothing else needs the blob's content, not even the backward pass of its writer."""
        writer = self._writers[blob]
        return writer is not None and writer.forgets_output and self._num_readers[blob] == 0

    def _write(self, spec: LayerSpec, top: str, shape: Shape, layer: Layer | None, may_exist: bool = False) -> None:
        if top in self._shapes and not may_exist:
            raise spec.error(
                f"top '{top}' is already the top of a layer above; choose another name, or make it the "
                "bottom at the same position to work in place",
                "top",
            )
        if top not in self._shapes:
            self._footprint.add_top(spec, top, shape)
        self._shapes[top], self._writers[top], self._num_readers[top] = shape, layer, 0


def _check_count(spec: LayerSpec, what: str, count: int, allowed: tuple[int, int]) -> None:
    least, most = allowed
    if not least <= count <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        raise spec.error(f"number of {what}s is {count}; a layer of type {spec.type} has {expected}", what)


def _loss_weights(spec: LayerSpec, kind: type[Layer], tops: Sequence[str]) -> tuple[tuple[str, float], ...]:
    given = list(spec.message.loss_weight)
    if given and len(given) != len(tops):
        raise spec.error(f"loss_weight is given {len(given)} times for {len(tops)} tops", "loss_weight")
    if not all(map(math.isfinite, given)):
        raise spec.error("loss_weight must be a finite number", "loss_weight")
    if any(given) and not kind.has_gradient:
        raise spec.error(
            f"a layer of type {spec.type} has no gradient and takes no loss_weight; remove it", "loss_weight"
        )
    weights = given or [kind.default_loss_weight]
    return tuple((top, weight) for top, weight in zip(tops, weights, strict=False) if weight != 0)


def _detached(spec: LayerSpec) -> tuple[bool, ...]:
    given = list(spec.message.propagate_down)
    if given and len(given) != len(spec.bottoms):
        raise spec.error(
            f"propagate_down is given {len(given)} times for {len(spec.bottoms)} bottoms", "propagate_down"
        )
    return tuple(not propagates for propagates in given)


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
