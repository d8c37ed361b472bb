"""Synchronous SGD whose weights do not depend on the number of workers, to the last bit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.tree import Node, children, own_nodes, slice_tree_all_reduce
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.strategies.base import Reduced, Strategy
from samovar.transports.base import Array, Region


class SliceSums:
    """Adds up the gradients of a rank's slices in the order of the tree: each of its own nodes in a row of `sums`.

    `sums` is float32 (number of own nodes or more, N). Call `add` after each slice, in their order, with the
    slice's gradient in `gradient`. Memory: one further row for each level of the largest own node but the lowest.
    """

    def __init__(self, gradient: Array, sums: Array, slices: Node, num_slices: int) -> None:
        self._gradient = gradient
        self._actions: list[list[_Action]] = []
        self._rows = list(sums)
        for row, node in enumerate(own_nodes(slices, num_slices)):
            self._plan(node, row, len(sums))
        self._next = 0

    def add(self) -> None:
        """Add the next slice."""
        for action in self._actions[self._next]:
            source = self._gradient if action.source is None else self._rows[action.source]
            if action.adds:
                np.add(self._rows[action.row], source, out=self._rows[action.row])
            else:
                np.copyto(self._rows[action.row], source)
        self._next = (self._next + 1) % len(self._actions)

    def _plan(self, node: Node, row: int, free: int) -> None:
        """Row `row` = the sum of `node`, with rows from `free` on for partial sums."""
        if node[1] - node[0] == 1:
            self._actions.append([_Action(row, None, adds=False)])
            return
        left, right = children(node)
        self._plan(left, row, free)
        if right[1] - right[0] == 1:
            self._actions.append([_Action(row, None, adds=True)])
            return
        if free == len(self._rows):
            self._rows.append(np.zeros_like(self._gradient))
        self._plan(right, free, free + 1)
        self._actions[-1].append(_Action(row, free, adds=True))


@dataclass(frozen=True, slots=True)
class _Action:
    """Row = source, or row += source; no source is the slice's gradient."""

    row: int
    source: int | None
    adds: bool


class ExactSync(Strategy):
    """g = (1/K) sum over K slices of the global batch, in one binary tree over the slice's index; x -= solver(g).

    The tree does not depend on which rank computed a slice. So the weights are bitwise equal for any number of workers
    up to K. This needs a fixed number of threads per worker, and no layer that mixes samples. Rank r computes
    ranges[r]; `SliceSums` adds those up in `sums`, whose first row gets the sum of all.

    Cost per step for N floats: see `slice_tree_all_reduce`; where P and K are powers of two that of a tree.
    Reference: Gonzalez Tallada, Coarse grain parallelization of deep neural networks, 2016 (PPoPP), which adds in
    the order of threads: one order for one number of threads. Here it is one order for all.
    """

    def __init__(
        self,
        collectives: PlannedCollectives,
        buckets: Sequence[Bucket],
        sums: Region,
        ranges: Sequence[Node],
        deadline: Callable[[], Deadline],
    ) -> None:
        plan = slice_tree_all_reduce(ranges, collectives.group.rank)
        self._all_reduce = collectives.planned("slices", plan, sums)
        self._gradient_scale = 1.0 / ranges[-1][1]
        self._buckets = buckets
        self._deadline = deadline

    def reduced(self, _step: int) -> Reduced:
        self._all_reduce.run(self._deadline())
        for bucket in self._buckets:
            yield bucket, self._gradient_scale
