"""Which gradients are products of two factors: read from the graph that a loss hangs on, before backward runs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

Node: TypeAlias = torch.autograd.graph.Node
Edges: TypeAlias = Mapping[Node, Sequence[tuple[Node, int]]]

_FACTOR_TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Names of nodes, the operand that may be a weight, and where they keep the other one.
_PRODUCTS = {"AddmmBackward0": (2, "mat1"), "MmBackward0": (1, "self")}
_TRANSPOSED, _CONVERTED = "TBackward0", "ToCopyBackward0"
_LEAF, _REENTRANT = "torch::autograd::AccumulateGrad", "CheckpointFunctionBackward"


@dataclass(frozen=True, slots=True)
class Use:
    """output = input times weight (in, out), or times that of a weight (out, in); `node` is the graph's for it."""

    node: Node
    input: torch.Tensor
    is_transposed: bool

    @property
    def num_rows(self) -> int:
        return len(self.input)

    def factors(self, output_gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """left and right: the weight's gradient is left^T right."""
        return (output_gradient, self.input) if self.is_transposed else (self.input, output_gradient)


class Graph:
    """The nodes behind `loss`, each after those that its gradients go to."""

    def __init__(self, loss: torch.Tensor) -> None:
        self._nodes = list(_after_their_next(loss.grad_fn)) if loss.grad_fn is not None else []
        self._parents: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
        for node in self._nodes:
            for slot, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    self._parents[child].append((node, slot))
        self._leaves = {id(_variable(node)): node for node in self._nodes if node.name() == _LEAF}
        # A checkpoint of that kind runs a graph of its own inside of backward, which nobody sees before.
        self._is_whole = all(node.name() != _REENTRANT for node in self._nodes)

    def uses(self, weight: torch.Tensor) -> list[Use] | None:
        """All that the gradient of `weight` comes from, where these are products; else None."""
        if not self._is_whole or weight._backward_hooks:
            return None
        if id(weight) not in self._leaves:
            return []
        found = list(self._uses(self._leaves[id(weight)], is_transposed=False))
        return None if None in found else [use for use in found if use is not None]

    def inputs_without(self, uses: Mapping[int, Sequence[Use]]) -> list[torch.Tensor]:
        """The leaves whose gradients backward must make so that all nodes of `uses`, by weights' ids, take part.

        Those weights' gradients are left out where the nodes take part for the sake of others.
        """
        takes_part: dict[Node, bool] = {}
        for node in self._nodes:
            if node.name() == _LEAF:
                takes_part[node] = id(_variable(node)) not in uses
            else:
                takes_part[node] = any(takes_part[child] for child, _ in node.next_functions if child is not None)
        left_out = {key for key, of_weight in uses.items() if all(takes_part[use.node] for use in of_weight)}
        return [_variable(node) for key, node in self._leaves.items() if key not in left_out]

    def _uses(self, node: Node, is_transposed: bool) -> Iterator[Use | None]:
        for parent, slot in self._parents[node]:
            if parent.name() == _TRANSPOSED:
                yield from self._uses(parent, not is_transposed)
            elif parent.name() == _CONVERTED:
                yield from self._uses(parent, is_transposed)
            else:
                yield _product(parent, slot, is_transposed)


def _product(node: Node, slot: int, is_transposed: bool) -> Use | None:
    operand, name = _PRODUCTS.get(node.name(), (None, ""))
    if slot != operand or getattr(node, "_saved_alpha", 1) != 1:
        return None
    # What a hook keeps in another form (a checkpoint's) may be asked for once, and backward does.
    if getattr(getattr(node, f"_raw_saved_{name}"), "unpack_hook", node) is not None:
        return None
    other: torch.Tensor = getattr(node, f"_saved_{name}")
    return Use(node, other, is_transposed) if other.dtype in _FACTOR_TYPES else None


def _after_their_next(first: Node) -> Iterator[Node]:
    begun, todo = {first}, [(first, iter(first.next_functions))]
    while todo:
        node, children = todo[-1]
        for child, _ in children:
            if child is not None and child not in begun:
                begun.add(child)
                todo.append((child, iter(child.next_functions)))
                break
        else:
            todo.pop()
            yield node


def _variable(leaf: Node) -> torch.Tensor:
    variable: torch.Tensor = leaf.variable  # type: ignore[attr-defined]
    return variable
