"""Batches of a whole net: all its data layers read side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import TracebackType

import torch

from samovar.core.errors import InputError
from samovar.data.cache import Holding, held_bytes
from samovar.data.config import LayerConfig
from samovar.data.order import SAMPLE_NUMBERS
from samovar.data.sources import Source, Tensors, open_source

Shape = tuple[int, ...]
MAX_VALUES = (1 << 31) - 1  # of one blob, as in Caffe


@dataclass(frozen=True, slots=True)
class WithoutData:
    """What a net is given beside, or instead of, data from files."""

    batch_size: int = 1
    """Samples in one batch, where no data layer says it."""
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Blobs that a program would fill (batch first); here they are zeros, as Caffe leaves them."""


class BatchReader:
    """Any run of global samples of a net's data layers, transformed; holds no position.

    All layers read the same global samples. In a shuffled order, layers with equally many records keep them in
    step (an image and its mask), and draw the same crops and flips for one sample.
    `top_shapes` are the shapes of all that `read` gives, batch first; `sources` are the layers' own.
    Raises: InputError where a source, its records and the transform do not fit together, or batch sizes differ.
    """

    def __init__(
        self,
        layers: Sequence[LayerConfig],
        training: bool,
        seed: int = 0,
        shuffled: bool = False,
        without: WithoutData | None = None,
    ) -> None:
        without = without or WithoutData()
        self.training = training
        self.sources = tuple(layer.source for layer in layers)
        self.batch_size = _common_batch_size(layers) if layers else without.batch_size
        self._inputs = dict(without.input_shapes)
        self._open: list[Source] = []
        try:
            for layer in layers:
                self._open.append(open_source(layer, seed, shuffled))
            self.top_shapes = self._shapes_of_tops() | self._inputs
        except BaseException:
            self.close()
            raise

    def _shapes_of_tops(self) -> dict[str, Shape]:
        samples = {top: shape for source in self._open for top, shape in source.sample_shapes.items()}
        shapes = {top: (self.batch_size, *shape) for top, shape in samples.items()}
        for top, shape in shapes.items():
            if prod(shape) > MAX_VALUES:
                text = " x ".join(map(str, shape))
                raise InputError(
                    f"{self.described}: top '{top}' would have shape {text}, more than {MAX_VALUES} values; give a "
                    "smaller batch_size."
                )
        return shapes

    def __len__(self) -> int:
        """The number of records of the first source; 0 without one."""
        return len(self._open[0]) if self._open else 0

    @property
    def described(self) -> str:
        """The sources, for messages."""
        return ", ".join(map(str, self.sources)) or "a net without data layers"

    def read(self, first_sample: int, count: int) -> Tensors:
        """The global samples [first_sample, first_sample + count), by top, and SAMPLE_NUMBERS.

        Raises: InputError where a record is damaged or the file no longer holds it.
        """
        tensors: Tensors = {}
        for source in self._open:
            tensors |= source.read(first_sample, count)
        for name, shape in self._inputs.items():
            whole = shape[:1] == (self.batch_size,)
            tensors[name] = torch.zeros((count, *shape[1:]) if whole else shape)
        tensors[SAMPLE_NUMBERS] = torch.arange(first_sample, first_sample + count)
        return tensors

    @property
    def bytes_to_hold(self) -> int:
        """What all ranks together would `hold`, as far as the first record of each source tells."""
        return sum(held_bytes(source.loaded()) for source in self._open)

    def hold(self, holding: Holding) -> None:
        """Read all records once, into the memory of all ranks, and take them from there from now on: the same batches.

        All ranks must call it together. Raises: InputError where a record is damaged or memory is short.
        """
        for source in self._open:
            source.hold(holding)

    @property
    def held_bytes(self) -> int:
        """What this rank holds."""
        return sum(source.held.held_bytes for source in self._open if source.held is not None)

    @property
    def fetched_bytes(self) -> int:
        """What this rank has read from other ranks' memory so far."""
        return sum(source.held.fetched_bytes for source in self._open if source.held is not None)

    def close(self) -> None:
        """Give the files back; may be called again."""
        for source in self._open:
            source.close()

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _common_batch_size(layers: Sequence[LayerConfig]) -> int:
    first = layers[0]
    for other in layers[1:]:
        if other.batch_size != first.batch_size:
            raise InputError(
                f"the data layers of one net have batch_size {first.batch_size} ({first.source}) and "
                f"{other.batch_size} ({other.source}); give them one."
            )
    return first.batch_size
