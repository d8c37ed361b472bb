"""Which gradients are products of two factors: read from the graph that a loss hangs on, before backward runs."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    saved_input: str  # the node's, which lets go of it after its turn in backward
    is_transposed: bool
    num_rows: int
    is_float32: bool

    def factors(self, output_gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """left and right: the weight's gradient is left^T right. Not after the node's turn in backward."""
        own = getattr(self.node, self.saved_input)
        return (output_gradient, own) if self.is_transposed else (own, output_gradient)


class Graph:
    """The nodes behind `loss`, each after those that its gradients go to."""

    def __init__(self, loss: torch.Tensor) -> None:
        self._nodes = list(_after_their_next(loss.grad_fn)) if loss.grad_fn is not None else []
        self._parents: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
        for node in self._nodes:
            for slot, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    self._parents[child].append((node, slot))
        # Who wants no gradient any more gets none, and must not be asked for one.
        leaves = (node for node in self._nodes if node.name() == _LEAF and _variable(node).requires_grad)
        self._leaves = {id(_variable(node)): node for node in leaves}
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

    def left_out(self, uses: Mapping[int, Sequence[Use]]) -> set[int]:
        """Of these weights, by their ids, those whose gradients backward can leave out.

        All nodes of their `uses` take part then, for the sake of leaves that are not among these weights.
        """
        if not uses:
            return set()
        wanted = {node for key, node in self._leaves.items() if key not in uses}
        takes_part: set[Node] = set()
        for node in self._nodes:
            if node in wanted or any(child in takes_part for child, _ in node.next_functions):
                takes_part.add(node)
        return {key for key, of_weight in uses.items() if all(use.node in takes_part for use in of_weight)}

    def leaves_without(self, left_out: Collection[int]) -> list[torch.Tensor] | None:
        """Those whose gradients backward is to make; None for all."""
        if self._leaves.keys().isdisjoint(left_out):
            return None
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
    saved = f"_saved_{name}"
    other: torch.Tensor = getattr(node, saved)
    if other.dtype not in _FACTOR_TYPES or other.layout != torch.strided:
        return None
    return Use(node, saved, is_transposed, len(other), other.dtype == torch.float32)


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
