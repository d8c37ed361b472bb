"""One backward pass of a user's loss, before it is made, and the graph that the loss hangs on."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from samovar.core.layout import Bucket
from samovar.strategies.factors import Geometry

Node: TypeAlias = torch.autograd.graph.Node

_FACTOR_TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Names of nodes, the operand that may be a weight, and where they keep the other one.
_PRODUCTS = {"AddmmBackward0": (2, "mat1"), "MmBackward0": (1, "self"), "ConvolutionBackward0": (1, "input")}
_TRANSPOSED, _CONVERTED = "TBackward0", "ToCopyBackward0"
_LEAF, _REENTRANT = "torch::autograd::AccumulateGrad", "CheckpointFunctionBackward"


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """`loss.backward(gradient, retain_graph, inputs=inputs)`, when it is run.

    `inputs` are the leaves whose gradients are made; None for all. Each of `others`, and then of `around`, runs the
    rest inside its own pass. `before_final` is called before a bucket counts as final.
    """

    loss: torch.Tensor
    gradient: torch.Tensor | None = None
    retain_graph: bool | None = None
    inputs: tuple[torch.Tensor, ...] | None = None
    others: "tuple[Callable[[BackwardPass], None], ...]" = ()
    around: "tuple[Callable[[BackwardPass], None], ...]" = ()
    before_final: Callable[[Bucket], None] | None = None

    def run(self) -> None:
        if self.others:
            self.others[0](replace(self, others=self.others[1:]))
        elif self.around:
            self.around[0](replace(self, around=self.around[1:]))
        else:
            self.loss.backward(self.gradient, self.retain_graph, inputs=self.inputs)  # type: ignore[no-untyped-call]

    def inside(self, run: "Callable[[BackwardPass], None]") -> "BackwardPass":
        """The same pass, with `run` as the innermost of what runs it."""
        return replace(self, around=(*self.around, run))

    def announced(self, final: Callable[[Bucket], None]) -> Callable[[Bucket], None]:
        """`final`, behind what comes before it."""
        before = self.before_final
        if before is None:
            return final

        def both(bucket: Bucket) -> None:
            before(bucket)
            final(bucket)

        return both

    def only(self, leaves: Sequence[torch.Tensor] | None) -> "BackwardPass":
        """The same pass for those of its leaves that are in `leaves`."""
        if leaves is None:
            return self
        wanted = None if self.inputs is None else {id(leaf) for leaf in self.inputs}
        return replace(self, inputs=tuple(leaf for leaf in leaves if wanted is None or id(leaf) in wanted))


@dataclass(frozen=True, slots=True)
class Use:
    """output = input times weight (in, out), or times the transposed weight (out, in), at `node` of the graph.

    With a `geometry` the weight is the kernel of a convolution of the input.
    """

    node: Node
    saved_input: str  # the node's, which lets go of it after its turn in backward
    is_transposed: bool
    num_rows: int
    is_float32: bool
    geometry: Geometry = ()

    def factors(self, output_gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """left and right: the weight's gradient is their product. Not after the node's turn in backward."""
        own = getattr(self.node, self.saved_input)
        return (output_gradient, own) if self.is_transposed else (own, output_gradient)


class Graph:
    """The nodes behind `loss`, each after those that receive its gradients. With `inputs` no other leaf gets one."""

    def __init__(self, loss: torch.Tensor, inputs: Sequence[torch.Tensor] | None = None) -> None:
        self._nodes = list(_after_their_next(loss.grad_fn)) if loss.grad_fn is not None else []
        self._parents: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
        for node in self._nodes:
            for slot, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    self._parents[child].append((node, slot))
        # A leaf that no longer requires a gradient must not be asked for one.
        leaves = (node for node in self._nodes if node.name() == _LEAF and _variable(node).requires_grad)
        wanted = None if inputs is None else {id(leaf) for leaf in inputs}
        found = {id(_variable(node)): node for node in leaves}
        self._leaves = {key: node for key, node in found.items() if wanted is None or key in wanted}
        # A reentrant checkpoint runs a graph of its own inside backward, which is not visible before.
        self._is_whole = all(node.name() != _REENTRANT for node in self._nodes)

    def uses(self, weight: torch.Tensor) -> list[Use] | None:
        """All uses that give `weight` its gradient, if these are products; else None."""
        if not self._is_whole or weight._backward_hooks:
            return None
        if id(weight) not in self._leaves:
            return []
        found = list(self._uses(self._leaves[id(weight)], is_transposed=False))
        known = [use for use in found if use is not None]
        return known if len(known) == len(found) and len({use.geometry for use in known}) == 1 else None

    def left_out(self, uses: Mapping[int, Sequence[Use]]) -> set[int]:
        """The ids of those weights whose gradients backward can leave out.

        All nodes of their `uses` then still take part, because other leaves need them.
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
        """The leaves whose gradients backward makes; None for all."""
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
    # A tensor that a hook packs (as a checkpoint does) may be unpacked once, and backward does that.
    if getattr(getattr(node, f"_raw_saved_{name}"), "unpack_hook", node) is not None:
        return None
    saved = f"_saved_{name}"
    other: torch.Tensor = getattr(node, saved)
    if other.dtype not in _FACTOR_TYPES or other.layout != torch.strided:
        return None
    geometry = _geometry(node, other) if name == "input" else ()
    if geometry is None:
        return None
    return Use(node, saved, is_transposed or bool(geometry), len(other), other.dtype == torch.float32, geometry)


def _geometry(node: Any, own: torch.Tensor) -> Geometry | None:
    """The sizes of a convolution that its kernel does not have; None if it is transposed."""
    if node._saved_transposed:
        return None
    num = own.dim() - 2
    moves = (node._saved_stride, node._saved_padding, node._saved_dilation)  # of `num` sizes, or one for all
    return (*own.shape[2:], *(size for sizes in moves for size in sizes * (num // len(sizes))), node._saved_groups)


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
