"""The parts of a random case of one layer, and the drawing of its settings and values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray
Reference = Callable[..., list[Array]]
T = TypeVar("T")

_IN_PLACE = set(
    [
        "AbsVal",
        "BNLL",
        "BatchNorm",
        "Bias",
        "Clip",
        "Dropout",
        "ELU",
        "Exp",
        "LRN",
        "Log",
        "MVN",
        "PReLU",
        "Power",
        "ReLU",
        "Scale",
        "Sigmoid",
    ]
)
_IN_PLACE |= {"Softmax", "Swish", "TanH", "Threshold"}
_SAME_AGAIN = """
layer { name: "before" type: "Bias" bottom: "in0" top: "same" bias_param { axis: 0 num_axes: 0 } param { lr_mult: 0 } }
"""


@dataclass
class Case:
    """One layer: its type and settings as text, its inputs, and its definition in float64.

    `reference(*inputs, *parameters)` gives the outputs. `fixed` inputs get no gradient (labels), `fixed_tops`
    give none; with `has_gradient` False there is none at all.
    """

    type: str
    settings: str
    inputs: Sequence[Array]
    reference: Reference
    parameters: Sequence[Array] = ()
    num_tops: int = 1
    fixed: frozenset[int] = frozenset()
    has_gradient: bool = True
    phase: str = "TRAIN"
    fixed_tops: frozenset[int] = frozenset()

    @property
    def can_work_in_place(self) -> bool:
        return self.type in _IN_PLACE

    def text(self, in_place: bool = False) -> str:
        """The layer's text; in place it works on the top of a layer before it that changes nothing."""
        bottoms = " ".join(f'bottom: "in{index}"' for index in range(len(self.inputs)))
        tops = " ".join(f'top: "out{index}"' for index in range(self.num_tops))
        before = ""
        if in_place:
            before, bottoms, tops = _SAME_AGAIN, bottoms.replace('"in0"', '"same"'), 'top: "same"'
        return before + f'layer {{ name: "x" type: "{self.type}" {bottoms} {tops} {self.settings} }}'


class Draw:
    """Choices from hypothesis (so that failures shrink), values from a generator it seeds."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))

    def integer(self, least: int, most: int) -> int:
        return self._data.draw(st.integers(least, most))

    def one_of(self, *choices: T) -> T:
        return self._data.draw(st.sampled_from(choices))

    def number(self, least: float, most: float) -> float:
        """With two digits, so that its text is exact enough."""
        return round(self._data.draw(st.integers(round(least * 100), round(most * 100))) / 100, 2)

    def size(self, least: int, most: int) -> int:
        """Now and then a large one, for which fast code has paths of their own."""
        return self.integer(least, most) if self.integer(0, 5) else self.one_of(9, 16, 33, 40)

    def shape(self, least_axes: int = 1, most_axes: int = 4, most: int = 3) -> tuple[int, ...]:
        shape = [self.integer(1, most) for _ in range(self.integer(least_axes, most_axes))]
        if shape and self.integer(0, 7) == 0:
            shape[self.integer(0, len(shape) - 1)] = self.integer(9, 40)
        return tuple(shape)

    def axis(self, shape: Sequence[int]) -> int:
        """An axis as a prototxt may give it: from the front, or negative from the end."""
        return self.integer(-len(shape), len(shape) - 1)

    def values(self, *shape: int, away: Sequence[float] = (), least: float | None = None, scale: float = 1.0) -> Array:
        """Normal float32 values at least 0.05 away from each kink, or uniform above `least`."""
        if least is not None:
            return self.rng.uniform(least, least + 2 * scale, shape).astype(np.float32)
        values = self.rng.standard_normal(shape) * scale
        for kink in away:
            near = np.abs(values - kink) < 0.05
            values = np.where(near, kink + np.where(values >= kink, 0.1, -0.1), values)
        return np.asarray(values, np.float32)

    def distinct(self, *shape: int) -> Array:
        """Values that differ from each other by 0.1 at least."""
        count = int(np.prod(shape))
        return (0.1 * (self.rng.permutation(count) - count / 2)).reshape(shape).astype(np.float32)

    def labels(self, *shape: int, classes: int) -> Array:
        return self.rng.integers(0, classes, shape).astype(self.one_of(np.float32, np.int64))
