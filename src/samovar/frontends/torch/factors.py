"""Gradients that are products of two factors: found in the graph of a loss, taken on the way of backward.

Backward then need not make these gradients.
"""

import hashlib
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from samovar.collectives.encoded import Floats
from samovar.collectives.engine import Collectives, PlannedCollectives, digest_record
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.host import models
from samovar.frontends.torch.backward_pass import BackwardPass, Graph, Use
from samovar.model.direct import product, put_factors
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import BYTE_S, LEAST_BYTES, WHOLE, Arithmetic, FactoredSum, Factoring, Links, RowSizes
from samovar.strategies.traits import ALWAYS, NONE
from samovar.transports.torch_dist import NearCollectives

_MOST_DIMENSIONS = 5  # of a kernel: outputs, inputs, and three of space
_COLUMNS_BYTES = 32 << 20  # of inputs on their way into a kernel's gradient


def apart(parameters: Mapping[str, nn.Parameter], choice: str | None) -> tuple[str, ...]:
    """The matrices and kernels whose gradients may travel as factors by this `choice`: all of some size, or all."""
    if choice in (None, NONE):
        return ()
    return _of_size(parameters, (0, 0) if choice == ALWAYS else LEAST_BYTES)


def matrices(parameters: Mapping[str, nn.Parameter], least_bytes: int) -> tuple[str, ...]:
    """The matrices whose gradients may be products: float32 (m, n) on the CPU, of `least_bytes` or more."""
    return _of_size(parameters, (least_bytes, math.inf))


def _of_size(parameters: Mapping[str, nn.Parameter], least_bytes: tuple[float, float]) -> tuple[str, ...]:
    """Those that have `least_bytes`, of a matrix or of a kernel."""
    return tuple(name for name, p in parameters.items() if _is_plain(p) and p.numel() * 4 >= least_bytes[p.dim() > 2])


def _is_plain(parameter: nn.Parameter) -> bool:
    """Whether it is a matrix, or as a kernel, of float32 on the CPU."""
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
        return False
    return parameter.is_contiguous() if parameter.dim() == 2 else 2 < parameter.dim() <= _MOST_DIMENSIONS


class ScaledProduct:
    """The `Product` of a matrix's rows, and with a geometry that of a kernel's samples, which are channels-last.

    geometry: the input's size, strides, paddings, dilations (each of as many dimensions as the kernel), and groups.
    A kernel's gradient is made as a product of matrices: oneDNN's own (torch 2.13) takes 1.8 times as long for 8 images
    of 512 x 7 x 7. Memory: the gradient again, and `_COLUMNS_BYTES`, or as much as one sample needs.
    """

    def row_sizes(self, shape: tuple[int, ...], geometry: tuple[int, ...]) -> RowSizes:
        if not geometry:
            m, n = shape[0], math.prod(shape[1:])
            return RowSizes(m, n, m * n)
        size, *moves = _divided(geometry)
        num_inputs = geometry[-1] * shape[1] * math.prod(size)
        each = zip(size, shape[2:], *moves, strict=True)
        num_places = math.prod(
            (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k, stride, padding, dilation in each
        )
        return RowSizes(shape[0] * num_places, num_inputs, math.prod(shape) * num_places)

    def multiply(self, left: Floats, right: Floats, scale: float, gradient: Floats, geometry: tuple[int, ...]) -> None:
        out, output_gradients, inputs = (torch.from_numpy(values) for values in (gradient, left, right))
        if not geometry:
            out = out.view(len(out), -1)
            torch.addmm(out, output_gradients.t(), inputs, beta=0, alpha=scale, out=out)
            return
        groups, num_places = geometry[-1], left.shape[1] // len(out)
        at_once = max(1, _COLUMNS_BYTES // (4 * num_places * math.prod(out.shape[1:])))
        inputs = inputs.view(-1, *_divided(geometry)[0], groups * out.shape[1])
        if not len(left):
            out.zero_()
        for first in range(0, len(left), at_once):
            dy_MO = output_gradients[first : first + at_once].reshape(-1, len(out))
            x = inputs[first : first + at_once]
            for of_group in zip(out.chunk(groups), dy_MO.chunk(groups, 1), x.chunk(groups, -1), strict=True):
                _put_kernel(of_group, scale, geometry, accumulate=first > 0)


def _put_kernel(
    of_group: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
    geometry: tuple[int, ...],
    *,
    accumulate: bool,
) -> None:
    """Make the gradient of one group's kernel, by M pixels of O outputs, and samples with the channels last."""
    out, dy_MO, x = of_group
    kernel = out.shape[2:]
    size, strides, paddings, dilations = _divided(geometry)
    windows = F.pad(x, (0, 0, *(both for padding in reversed(paddings) for both in (padding, padding))))
    for dimension, (extent, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True), 1):
        windows = windows.unfold(dimension, dilation * (extent - 1) + 1, stride)[..., ::dilation]
    columns_MK = windows.movedim(1 + len(size), -1).reshape(len(dy_MO), -1).contiguous()  # no rows that overlap
    with torch.autocast("cpu", enabled=False):  # the user's, around the backward pass, would round factors
        made = product(dy_MO.t(), columns_MK.t()).view(len(out), *kernel, -1).movedim(-1, 1)
    if accumulate:
        out.add_(made, alpha=scale)
    else:
        torch.mul(made, scale, out=out)


def _divided(geometry: tuple[int, ...]) -> list[tuple[int, ...]]:
    num = len(geometry) // 4
    return [geometry[start : start + num] for start in range(0, 4 * num, num)]


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
            geometry = uses[0].geometry if uses else ()
            travel = matrix.factored is not None and matrix.factored.expect(rows, geometry)
            if uses is not None and travel:
                sent.append((matrix, uses))
            elif uses and _are_made_in_place(uses):  # others autograd multiplies, and rounds, as they are
                made.append((matrix, uses))
        return sent, made


def rows_in_place(backward: BackwardPass, weights: Mapping[str, nn.Parameter]) -> dict[str, list[int]]:
    """The rows of all products that `Factors` would make in place in this pass, if nobody else watches gradients."""
    graph = Graph(backward.loss, backward.inputs)
    found = {name: graph.uses(weight) or [] for name, weight in weights.items() if weight.grad is None}
    made = {name: uses for name, uses in found.items() if uses and _are_made_in_place(uses)}
    left_out = graph.left_out({id(weights[name]): uses for name, uses in made.items()})
    return {name: [use.num_rows for use in uses] for name, uses in made.items() if id(weights[name]) in left_out}


def _are_made_in_place(uses: Sequence[Use]) -> bool:
    return all(use.is_float32 and not use.geometry for use in uses)


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
        put_factors(places, use.factors(output_gradient))
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
