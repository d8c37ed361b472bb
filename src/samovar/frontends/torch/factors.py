"""Factors of gradients, taken from a backward pass, which then need not make these gradients."""

import hashlib
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from samovar.collectives.codecs import Floats
from samovar.collectives.records import digest_record
from samovar.core.errors import SamovarError
from samovar.frontends.torch.products import Graph, Use
from samovar.strategies.factors import LEAST_BYTES, WHOLE, Arithmetic, FactoredSum

_PROCESSORS = Path("/proc/cpuinfo")


def matrices(parameters: Mapping[str, nn.Parameter], least_bytes: int = LEAST_BYTES) -> tuple[str, ...]:
    """The names of those whose gradients may be products: float32 (m, n) on the CPU, not smaller than that."""
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
    """That of this process: processor, PyTorch and its libraries, threads."""
    names = re.findall(r"^model name\s*:\s*(.+)$", _PROCESSORS.read_text(), re.MULTILINE)
    num_threads = torch.get_num_threads()
    libraries = (torch.__config__.show(), torch.backends.cpu.get_cpu_capability())
    described = repr((platform.machine(), sorted(set(names)), libraries, num_threads))
    digest = hashlib.sha256(described.encode()).digest()
    return Arithmetic(tuple(digest_record(digest)), num_threads)


@dataclass(slots=True)
class _Matrix:
    """A weight, and in the pass under way its uses, the products in which it stands, and how much of them came."""

    name: str
    weight: nn.Parameter
    factored: FactoredSum
    num_uses: int = 0
    num_rows: int = 0


class Factors:
    """The matrices of a model that may travel as factors. `sums` by names."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], sums: Mapping[str, FactoredSum]) -> None:
        self._matrices = [_Matrix(name, parameters[name], factored) for name, factored in sums.items()]
        self._left_out: dict[str, bool] = {}  # of the pass under way: whose factors are taken

    @contextmanager
    def taken(self, loss: torch.Tensor, complete: Callable[[str], None]) -> Iterator[Sequence[torch.Tensor] | None]:
        """For one backward pass; gives the leaves whose gradients it is to make, None for all.

        `complete` is called with a name when all factors of that matrix are there.
        """
        self._left_out = {}
        if all(matrix.factored.is_settled and matrix.factored.is_whole for matrix in self._matrices):
            yield None
            return
        graph = Graph(loss)
        taken = [(matrix, uses) for matrix in self._matrices if (uses := _expected(graph, matrix)) is not None]
        if not any(uses for _, uses in taken):
            self._left_out = {matrix.name: True for matrix, _ in taken}
            yield None
            return
        inputs = graph.inputs_without({id(matrix.weight): uses for matrix, uses in taken})
        made = {id(leaf) for leaf in inputs}
        self._left_out = {matrix.name: id(matrix.weight) not in made for matrix, _ in taken}
        with ExitStack() as hooks:
            for matrix, uses in taken:
                matrix.num_uses, matrix.num_rows = len(uses), 0
                for use in uses:
                    hooks.callback(use.node.register_prehook(partial(_take, matrix, use, complete)).remove)
            yield inputs
        for matrix, _ in taken:
            _complete(matrix, complete)

    def stand_for(self, name: str) -> bool:
        """Whether factors travel in place of a gradient that came in this pass."""
        if self._left_out.get(name):
            raise SamovarError(
                f"a gradient of {name!r} came by a way that the loss's graph did not show: a function of your own "
                "that calls backward() itself; give factors='none'"
            )
        return name in self._left_out

    def expect_nothing(self) -> None:
        """Of a rank that has no data in this step."""
        for matrix in self._matrices:
            matrix.factored.expect(0)


def _expected(graph: Graph, matrix: _Matrix) -> list[Use] | None:
    """The uses whose factors travel in place of a gradient, None where it travels whole; ranks are told of the rows."""
    uses = _uses(graph, matrix.weight)
    rows = WHOLE if uses is None else sum(use.num_rows for use in uses)
    return uses if matrix.factored.expect(rows) else None


def _uses(graph: Graph, weight: nn.Parameter) -> list[Use] | None:
    """None where the gradient is to be made whole: it is no product, others look at it, or it adds to what is there."""
    hooks = weight._post_accumulate_grad_hooks
    if weight.grad is not None or (hooks is not None and len(hooks) > 1):  # one is ours
        return None
    return graph.uses(weight)


def _complete(matrix: _Matrix, complete: Callable[[str], None]) -> None:
    """After a pass: no gradient came to what is still awaited."""
    if matrix.num_uses:
        for factor in matrix.factored.places(matrix.num_rows, matrix.factored.rows):
            factor[:] = 0.0
        complete(matrix.name)


@torch.no_grad()
def _take(
    matrix: _Matrix, use: Use, complete: Callable[[str], None], gradients: tuple[torch.Tensor | None, ...]
) -> None:
    stop = matrix.num_rows + use.num_rows
    places = matrix.factored.places(matrix.num_rows, stop)
    (gradient,) = gradients
    if gradient is None:
        for place in places:
            place[:] = 0.0
    else:
        for place, factor in zip(places, use.factors(gradient), strict=True):
            torch.from_numpy(place).copy_(factor)
    matrix.num_rows = stop
    matrix.num_uses -= 1
    if not matrix.num_uses:
        complete(matrix.name)
