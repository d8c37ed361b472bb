"""Caffe's `debug_info`: the mean absolute value of every blob, parameter and gradient of a pass, in Caffe's words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samovar.frontends.caffe.layers.registry import DATA_TYPES, INPUT_TYPES
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.wiring import Step

TOP, PARAMETER, BOTTOM, GRADIENT, ALL = "top", "parameter", "bottom", "gradient", "all"


@dataclass(frozen=True, slots=True)
class LayerValue:
    """One line about `kind`: a layer's TOP, PARAMETER, BOTTOM's or parameter's GRADIENT, or ALL of the net."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Sums:
    """The number of an array's values, the sum of their magnitudes and of their squares, in double precision."""

    count: int
    absolute: float
    squares: float

    @classmethod
    def of(cls, values: torch.Tensor) -> "_Sums":
        values = values.detach()
        squares = float(torch.sum(values * values, dtype=torch.float64)) if values.is_floating_point() else 0.0
        return cls(values.numel(), float(torch.sum(values.abs(), dtype=torch.float64)), squares)

    @property
    def mean(self) -> float:
        return self.absolute / max(1, self.count)


class DebugInfo:
    """Collects the lines of each pass of `net`, forward and then backward, while `is_on`.

    The net then computes layer by layer: no layer does another's work, and none overwrites its bottom. Blobs that
    several layers take have the names that Caffe's Split layers give them. Gradients of parameters are those of this
    process, before any exchange, as the `iter_size` batches add up. Cost: two reads of every array.
    """

    def __init__(self, net: CaffeNet, tell: Callable[[Sequence[LayerValue]], None]) -> None:
        self.is_on = True
        self._net = net
        self._tell = tell
        self._names = SplitNames(net)
        self._infos = {info.name: info for info in net.parameter_infos}
        self._forward: list[LayerValue] = []
        self._bottoms: dict[tuple[int, int], float] = {}
        self._splits: dict[tuple[int, int], float] = {}
        self._gradients: dict[str, _Sums] = {}
        net.be_watched(self)

    def begin(self, blobs: Mapping[str, torch.Tensor]) -> None:
        for kept in (self._forward, self._bottoms, self._splits, self._gradients):
            kept.clear()
        if not self.is_on:
            return
        for index, outline in enumerate(self._names.outlines):
            if self._names.is_input(index):
                self._tell_tops(index, [blobs[top] for top in outline.tops])

    def taken(self, number: int, bottoms: list[torch.Tensor]) -> list[torch.Tensor]:
        """The bottoms of step `number`, watched, so that each gradient is seen."""
        if not (self.is_on and torch.is_grad_enabled()):
            return bottoms
        index = self._names.outline_of_step[number]
        return [_probed(bottom, self._bottoms, (index, place)) for place, bottom in enumerate(bottoms)]

    def given(self, number: int, step: Step, tops: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if not self.is_on:
            return tops
        index = self._names.outline_of_step[number]
        self._tell_tops(index, tops, step)
        if not torch.is_grad_enabled():
            return tops
        return tuple(
            _probed(top, self._splits, (index, place)) if (index, place) in self._names.splits else top
            for place, top in enumerate(tops)
        )

    def ended(self) -> None:
        if self.is_on:
            self._tell(tuple(self._forward))

    def gradient(self, name: str, values: torch.Tensor) -> None:
        if self.is_on:
            self._gradients[name] = _Sums.of(values)

    def backward_ended(self) -> None:
        if not self.is_on:
            return
        lines: list[LayerValue] = []
        for index in reversed(range(len(self._names.outlines))):
            lines += self._backward_of(index)
        self._tell((*lines, self._all()))

    def _tell_tops(self, index: int, tops: Sequence[torch.Tensor], step: Step | None = None) -> None:
        outline = self._names.outlines[index]
        means = [_Sums.of(top).mean for top in tops]
        head = f"    [Forward] Layer {outline.name}, "
        for name, mean in zip(outline.tops, means, strict=True):
            self._forward.append(LayerValue(TOP, f"{head}top blob {name} data: {mean:g}"))
        for place, parameter in enumerate([] if step is None else step.layer.caffe_parameters()):
            text = f"{head}param blob {self._shown(step, place)} data: {_Sums.of(parameter).mean:g}"
            self._forward.append(LayerValue(PARAMETER, text))
        for place, mean in enumerate(means):
            for name in self._names.splits.get((index, place), ()):
                layer = name.rpartition("_")[0]
                self._forward.append(LayerValue(TOP, f"    [Forward] Layer {layer}, top blob {name} data: {mean:g}"))

    def _backward_of(self, index: int) -> list[LayerValue]:
        """The splits behind a layer, then the layer, as far as there are gradients."""
        outline, lines = self._names.outlines[index], []
        for place, name in reversed(list(enumerate(outline.tops))):
            if (index, place) in self._splits:
                layer = self._names.splits[index, place][0].rpartition("_")[0]
                mean = self._splits[index, place]
                lines.append(LayerValue(BOTTOM, f"    [Backward] Layer {layer}, bottom blob {name} diff: {mean:g}"))
        head = f"    [Backward] Layer {outline.name}, "
        for place in range(len(outline.bottoms)):
            if (index, place) in self._bottoms:
                name, mean = self._names.bottom(index, place), self._bottoms[index, place]
                lines.append(LayerValue(BOTTOM, f"{head}bottom blob {name} diff: {mean:g}"))
        step = self._names.steps.get(index)
        for place, name in enumerate(outline.parameter_names):
            if name in self._gradients:
                mean = self._gradients[name].mean
                lines.append(LayerValue(GRADIENT, f"{head}param blob {self._shown(step, place)} diff: {mean:g}"))
        return lines

    def _shown(self, step: Step | None, place: int) -> str:
        """The name under which the prototxt shares a parameter, else its number in the layer."""
        given = [] if step is None else step.layer.spec.message.param
        return (given[place].name if place < len(given) else "") or str(place)

    def _all(self) -> LayerValue:
        data = [_Sums.of(info.parameter) for info in self._infos.values()]
        gradients = list(self._gradients.values())
        absolute = [sum(sums.absolute for sums in found) for found in (data, gradients)]
        squares = [sum(sums.squares for sums in found) ** 0.5 for found in (data, gradients)]
        norms = f"L1 norm = ({absolute[0]:g}, {absolute[1]:g}); L2 norm = ({squares[0]:g}, {squares[1]:g})"
        return LayerValue(ALL, f"    [Backward] All net params (data, diff): {norms}")


class _Probe(torch.autograd.Function):
    """The same values; puts the mean absolute value of their gradient into `means` at `key`."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, means: dict[tuple[int, int], float], key: tuple[int, int]) -> Any:
        ctx.means, ctx.key = means, key
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.means[ctx.key] = _Sums.of(gradients[0]).mean
        return gradients[0], None, None


def _probed(values: torch.Tensor, means: dict[tuple[int, int], float], key: tuple[int, int]) -> torch.Tensor:
    if not values.requires_grad:
        return values
    probed: torch.Tensor = _Probe.apply(values, means, key)  # type: ignore[no-untyped-call]
    return probed


Place = tuple[int, int]  # of a top or bottom: the layer's index among the outlines, and its own in the layer


class SplitNames:
    """The layers that take each blob of a net, by the places of layers (`outlines`, inputs included) in the file.

    `splits[layer, top]` are the names of the copies of a top that several layers take, in the order of these layers. A
    loss_weight in the prototxt takes the first.
    """

    def __init__(self, net: CaffeNet) -> None:
        self.outlines = net.layers_for_caffemodel()
        self.outline_of_step = [index for index in range(len(self.outlines)) if not self.is_input(index)]
        self.steps = dict(zip(self.outline_of_step, net.steps, strict=True))
        takers = self._takers()
        self.splits: dict[Place, tuple[str, ...]] = {
            place: self._copies(place, len(found)) for place, found in takers.items() if len(found) > 1
        }
        self._bottoms = {
            taker: copy
            for place, copies in self.splits.items()
            for taker, copy in zip(takers[place], copies, strict=True)
        }

    def is_input(self, index: int) -> bool:
        return self.outlines[index].type in DATA_TYPES or self.outlines[index].type in INPUT_TYPES

    def bottom(self, index: int, place: int) -> str:
        """The name of the layer's bottom, as Caffe's net has it."""
        return self._bottoms.get((index, place), self.outlines[index].bottoms[place])

    def _takers(self) -> dict[Place, list[Place]]:
        """The takers of every top; (layer, -1) for its loss_weight."""
        takers: dict[Place, list[Place]] = {}
        writers: dict[str, Place] = {}
        for index, outline in enumerate(self.outlines):
            for place, bottom in enumerate(outline.bottoms):
                takers[writers[bottom]].append((index, place))
            for place, top in enumerate(outline.tops):
                writers[top] = (index, place)
                takers[index, place] = [(index, -1)] if self._counts(index, place) else []
        return takers

    def _counts(self, index: int, place: int) -> bool:
        step = self.steps.get(index)
        given = [] if step is None else step.layer.spec.message.loss_weight
        return place < len(given) and given[place] != 0

    def _copies(self, place: Place, count: int) -> tuple[str, ...]:
        outline = self.outlines[place[0]]
        split = f"{outline.tops[place[1]]}_{outline.name}_{place[1]}_split"
        return tuple(f"{split}_{number}" for number in range(count))
