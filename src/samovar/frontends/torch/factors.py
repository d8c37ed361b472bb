"""Gradients that are products of two factors: found in the graph that a loss hangs on, taken on the way of backward.

Backward then need not make these gradients.
"""

import hashlib
import platform
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import nn

from samovar.collectives.encoded import Floats
from samovar.collectives.engine import Collectives, PlannedCollectives, digest_record
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.host import models
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import BYTE_S, WHOLE, Arithmetic, FactoredSum, Factoring, Links
from samovar.strategies.traits import NONE
from samovar.transports.torch_dist import NearCollectives

Node: TypeAlias = torch.autograd.graph.Node

_FACTOR_TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Names of nodes, the operand that may be a weight, and where they keep the other one.
_PRODUCTS = {"AddmmBackward0": (2, "mat1"), "MmBackward0": (1, "self")}
_TRANSPOSED, _CONVERTED = "TBackward0", "ToCopyBackward0"
_LEAF, _REENTRANT = "torch::autograd::AccumulateGrad", "CheckpointFunctionBackward"


@dataclass(frozen=True, slots=True)
class Use:
    """output = input times weight (in, out), or times the transposed weight (out, in), at `node` of the graph."""

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
        return None if None in found else [use for use in found if use is not None]

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


def matrices(parameters: Mapping[str, nn.Parameter], least_bytes: int) -> tuple[str, ...]:
    """The parameters whose gradients may be products: float32 (m, n) on the CPU, of `least_bytes` or more."""
    return tuple(name for name, p in parameters.items() if _is_matrix(p) and p.numel() * 4 >= least_bytes)


def _is_matrix(parameter: nn.Parameter) -> bool:
    is_plain = parameter.dtype == torch.float32 and parameter.device.type == "cpu"
    return is_plain and parameter.dim() == 2 and parameter.is_contiguous()


def scaled_product(left: Floats, right: Floats, scale: float, gradient: Floats) -> None:
    """gradient (m, n) = scale * left^T right, of left (K, m), right (K, n)."""
    out = torch.from_numpy(gradient)
    factors = (torch.from_numpy(left).t(), torch.from_numpy(right))
    torch.addmm(out, *factors, beta=0, alpha=scale, out=out)


def own_arithmetic() -> Arithmetic:
    """The arithmetic of this process: processor, PyTorch and its libraries, threads."""
    num_threads = torch.get_num_threads()
    libraries = (torch.__config__.show(), torch.backends.cpu.get_cpu_capability())
    described = repr((platform.machine(), sorted(set(models())), libraries, num_threads))
    digest = hashlib.sha256(described.encode()).digest()
    return Arithmetic(tuple(digest_record(digest)), num_threads)


def factoring_of(
    collectives: Collectives,
    config: StrategyConfig,
    deadline: Callable[[], Deadline],
    tell: Callable[[str], None],
    byte_s: float = BYTE_S,
) -> Factoring:
    """The choice of factors for ranks with these collectives; a byte between hosts takes `byte_s` of a host."""
    links = _links(collectives, byte_s)
    return Factoring(collectives, config.factors or NONE, links, own_arithmetic(), deadline, tell)


def _links(collectives: Collectives | NearCollectives, byte_s: float) -> Links:
    world_size = collectives.group.world_size
    if isinstance(collectives, HierarchicalCollectives):
        num_ranks = max(len(host.ranks) for host in collectives.hosts)
        return Links(len(collectives.hosts), (len(collectives.hosts) - 1) * num_ranks, byte_s)
    if isinstance(collectives, NearCollectives):
        return Links(1, world_size - 1, byte_s)
    assert isinstance(collectives, PlannedCollectives), collectives
    return Links(collectives.num_hosts, world_size - 1, byte_s)


class Gradients(Protocol):
    """The place for the gradients of one backward pass; see `frontends.torch.gradients.FlatGradients`."""

    def await_products(self, name: str, num_products: int) -> None: ...
    def add_product(self, name: str, factors: tuple[torch.Tensor, torch.Tensor] | None) -> None: ...
    def factors_complete(self, name: str) -> None: ...


@dataclass(slots=True)
class _Matrix:
    """A weight. In this pass: the products whose factors have yet to travel, and the rows that came."""

    name: str
    weight: nn.Parameter
    factored: FactoredSum | None
    num_uses: int = 0
    num_rows: int = 0


_Found = list[tuple[_Matrix, list[Use]]]


class Factors:
    """The matrices of a model whose gradients backward does not make if they are products.

    Their factors are taken during backward. If `sums` has the matrix and wants factors, they travel. Otherwise they are
    multiplied at once into the place of the gradient.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], sums: Mapping[str, FactoredSum]) -> None:
        self._matrices = [_Matrix(name, weight, sums.get(name)) for name, weight in weights.items()]
        self._left_out: dict[str, bool] = {}  # in this pass: whether factors travel

    @contextmanager
    def taken(self, backward: BackwardPass, gradients: Gradients) -> Iterator[BackwardPass]:
        """A context for one backward pass. Gives the pass with the gradients that autograd still has to make."""
        graph = Graph(backward.loss, backward.inputs)
        sent, made = self._found(graph)
        left_out = graph.left_out({id(matrix.weight): uses for matrix, uses in (*sent, *made)})
        self._left_out = {matrix.name: id(matrix.weight) in left_out for matrix, _ in sent}
        with ExitStack() as hooks:
            for matrix, uses in sent:
                matrix.num_uses, matrix.num_rows = len(uses), 0
                _hook(hooks, uses, partial(_send, matrix, gradients))
            for matrix, uses in made:
                if id(matrix.weight) in left_out:
                    gradients.await_products(matrix.name, len(uses))
                    _hook(hooks, uses, partial(_make, matrix.name, gradients))
            yield backward.only(graph.leaves_without(left_out))
        for matrix, _ in sent:
            _complete(matrix, gradients)

    def stand_for(self, name: str) -> bool:
        """Whether factors travel instead of a gradient that came in this pass."""
        if self._left_out.get(name):
            raise SamovarError(
                f"a gradient of {name!r} came from a place that the loss's graph did not show, such as a function of "
                "yours that calls backward() itself; give factors='none'"
            )
        return name in self._left_out

    def expect_nothing(self) -> None:
        for matrix in self._matrices:
            if matrix.factored is not None:
                matrix.factored.expect(0)

    def _found(self, graph: Graph) -> tuple[_Found, _Found]:
        """The matrices whose factors travel, and those multiplied here. Other ranks get the number of rows."""
        sent, made = _Found(), _Found()
        for matrix in self._matrices:
            uses = _uses(graph, matrix.weight)
            rows = WHOLE if uses is None else sum(use.num_rows for use in uses)
            travel = matrix.factored is not None and matrix.factored.expect(rows)
            if uses is not None and travel:
                sent.append((matrix, uses))
            elif uses and all(use.is_float32 for use in uses):  # others autograd multiplies, and rounds, as they are
                made.append((matrix, uses))
        return sent, made


def rows_in_place(backward: BackwardPass, weights: Mapping[str, nn.Parameter]) -> dict[str, list[int]]:
    """The rows of all products that `Factors` would make in place in this pass, if nobody else watches gradients."""
    graph = Graph(backward.loss, backward.inputs)
    found = {name: graph.uses(weight) or [] for name, weight in weights.items() if weight.grad is None}
    made = {name: uses for name, uses in found.items() if uses and all(use.is_float32 for use in uses)}
    left_out = graph.left_out({id(weights[name]): uses for name, uses in made.items()})
    return {name: [use.num_rows for use in uses] for name, uses in made.items() if id(weights[name]) in left_out}


def _uses(graph: Graph, weight: nn.Parameter) -> list[Use] | None:
    """The products of a gradient. None if autograd makes it: a hook sees it, or it adds to an earlier gradient."""
    hooks = weight._post_accumulate_grad_hooks
    if weight.grad is not None or (hooks is not None and len(hooks) > 1):  # one is ours
        return None
    return graph.uses(weight)


def _hook(hooks: ExitStack, uses: Sequence[Use], take: Callable[[Use, torch.Tensor | None], None]) -> None:
    """Call `take` with each use and the gradient of its output, before its turn in backward."""
    for use in uses:
        hooks.callback(use.node.register_prehook(partial(_take, take, use)).remove)


@torch.no_grad()
def _take(
    take: Callable[[Use, torch.Tensor | None], None], use: Use, gradients: tuple[torch.Tensor | None, ...]
) -> None:
    (gradient,) = gradients
    take(use, gradient)


def _make(name: str, gradients: Gradients, use: Use, output_gradient: torch.Tensor | None) -> None:
    gradients.add_product(name, None if output_gradient is None else use.factors(output_gradient))


def _send(matrix: _Matrix, gradients: Gradients, use: Use, output_gradient: torch.Tensor | None) -> None:
    assert matrix.factored is not None
    stop = matrix.num_rows + use.num_rows
    places = matrix.factored.places(matrix.num_rows, stop)
    if output_gradient is None:
        for place in places:
            place[:] = 0.0
    else:
        for place, factor in zip(places, use.factors(output_gradient), strict=True):
            torch.from_numpy(place).copy_(factor)
    matrix.num_rows = stop
    matrix.num_uses -= 1
    if not matrix.num_uses:
        gradients.factors_complete(matrix.name)


def _complete(matrix: _Matrix, gradients: Gradients) -> None:
    """After a pass: complete products that no gradient reached."""
    if matrix.num_uses:
        assert matrix.factored is not None
        for factor in matrix.factored.places(matrix.num_rows, matrix.factored.rows):
            factor[:] = 0.0
        gradients.factors_complete(matrix.name)
