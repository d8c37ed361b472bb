"""The names that Caffe gives to blobs which several layers take: it puts a Split layer behind their writer."""

from samovar.frontends.caffe.layers.registry import DATA_TYPES, INPUT_TYPES
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.wiring import Step

Place = tuple[int, int]  # of a top or bottom: the layer's index among the outlines, and its own in the layer


class SplitNames:
    """Who takes which blob of a net, by the places of its layers (`outlines`, inputs included) in the file.

    `splits[layer, top]` are the names of the copies of a top that several layers take, in the order of their takers. A
    loss_weight that the prototxt gives takes the first.
    """

    def __init__(self, net: CaffeNet) -> None:
        self.outlines = net.layers_for_caffemodel()
        self._outline_of_step = [index for index in range(len(self.outlines)) if not self.is_input(index)]
        self._steps = dict(zip(self._outline_of_step, net.steps, strict=True))
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

    def outline_of(self, step_number: int) -> int:
        """The index of the layer that makes the net's step."""
        return self._outline_of_step[step_number]

    def step_of(self, index: int) -> Step | None:
        """The step of the layer; None for an input."""
        return self._steps.get(index)

    def bottom(self, index: int, place: int) -> str:
        """The name of the layer's bottom, as Caffe's net has it."""
        return self._bottoms.get((index, place), self.outlines[index].bottoms[place])

    def _takers(self) -> dict[Place, list[Place]]:
        """Of every top who takes it; (layer, -1) for its loss_weight."""
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
        step = self._steps.get(index)
        given = [] if step is None else step.layer.spec.message.loss_weight
        return place < len(given) and given[place] != 0

    def _copies(self, place: Place, count: int) -> tuple[str, ...]:
        outline = self.outlines[place[0]]
        split = f"{outline.tops[place[1]]}_{outline.name}_{place[1]}_split"
        return tuple(f"{split}_{number}" for number in range(count))
