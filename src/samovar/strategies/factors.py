"""Gradients of matrices and kernels that travel as their factors, which are smaller if a batch has few rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.collectives.encoded import EncodedRunner, Floats
from samovar.collectives.engine import AllGather, Collectives, differing_ranks
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.strategies.traits import ALWAYS, AUTO, NONE
from samovar.transports.base import Region

# The sizes of a convolution that its parameter does not have; empty for a matrix.
Geometry: TypeAlias = tuple[int, ...]

WHOLE = -1  # rows of a gradient that is no product of factors
_MOST_SIZES = 13  # of a geometry: four for each of three dimensions, and one more
_HEADER_ELEMENTS = 16  # the number of rows, and nothing: rows start on a cache line
_MOST_MISSES = 3
# Of a matrix and a kernel. Smaller ones save too little; smaller kernels mostly belong to layers with large pictures.
LEAST_BYTES = (1 << 20, 4 << 20)
# What "auto" takes a byte that leaves a host and each of a rank's threads for; fixed, so that runs decide the same.
# A link of 10 Gbit/s takes 0.8 ns for the byte, and TCP 1 ns of a core: 8 ns where packets are Ethernet's.
BYTE_S = 1.8e-9
TCP_BYTE_S = 1e-9
_THREAD_OPERATIONS_PER_S = 1e11


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Of one row: the elements of its left and its right factor, and the multiply-adds of their product."""

    left: int
    right: int
    multiply_adds: int


class Product(Protocol):
    """How rows become a gradient: that of a matrix (m, n) is left^T right, of left (K, m), right (K, n).

    That of a convolution's kernel is bilinear in the same way. A row is then a sample, its channels last: the
    left factor has the gradient of its output, the right factor its input.
    """

    def row_sizes(self, shape: tuple[int, ...], geometry: Geometry) -> RowSizes: ...
    def multiply(self, left: Floats, right: Floats, scale: float, gradient: Floats, geometry: Geometry) -> None:
        """gradient = scale * the product of all rows."""


@dataclass(frozen=True, slots=True)
class Links:
    """Between hosts: what decides whether factors are less than the gradient.

    `messages_per_host` is how many messages leave a host in an all-gather of one from every rank. A byte takes `byte_s`
    of a host.
    """

    num_hosts: int
    messages_per_host: int
    byte_s: float = BYTE_S

    def whole_bytes(self, num_elements: int) -> float:
        """The bytes that leave a host in an all-reduce of the gradient: 2 (H-1)/H of it."""
        return 8.0 * (self.num_hosts - 1) / self.num_hosts * num_elements

    def factors_bytes(self, row: RowSizes, num_rows: int) -> float:
        """The same in an all-gather of factors of `num_rows` rows."""
        return 4.0 * self.messages_per_host * num_rows * (row.left + row.right)

    def saved_s(self, num_elements: int, row: RowSizes, num_rows: int) -> float:
        """The time of a host that factors save; negative if they cost more."""
        return self.byte_s * (self.whole_bytes(num_elements) - self.factors_bytes(row, num_rows))


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The properties that a product's last bits depend on, as words of a hash, and the threads that make one."""

    words: tuple[float, ...]
    num_threads: int


class FactoredSum(PlanRunner):
    """gradient = scale * sum over ranks i of left_i^T right_i, of factors from all ranks.

        left_i (K_i, m), right_i (K_i, n), gradient (m, n), all float32

    Kernels have a product of their own (`Product`). Their messages cost the same, for m and n elements of a row.
    Every rank makes one product of all rows in the order of ranks. So the sum has the same bits on ranks that make
    products in the same way. Up to `capacity` rows of a rank fit into its message. A rank may have more rows, or a
    gradient that is not such a product. It says so in the message, and all add whole gradients: `scale` times each.

    Cost: a rank sends (P-1) messages of 64 + 4 K (m+n) bytes, K the capacity; an all-reduce sends 2 (P-1)/P 4 m n.
    It makes 2 P K m n operations in place of 2 K m n; `RowSizes.multiply_adds` stands for m n with a kernel.
    Sources: Xie et al. 2014 (sufficient factor broadcasting); Zhang et al. 2017 (Poseidon: the smaller for each layer).
    """

    def __init__(
        self, name: str, gradient: Floats, whole: PlanRunner, collectives: Collectives, product: Product, scale: float
    ) -> None:
        self.last_steps = 0
        self.name = name
        self.gradient = gradient
        self.capacity = 0
        self.is_settled = False
        self.most_rows = 0  # of any rank in the last run
        self.rows = 0
        self.geometry: Geometry = ()  # of this rank's rows
        self.opened: Geometry = ()  # of the rows that messages have room for
        self._whole = whole
        self._collectives = collectives
        self._product = product
        self._scale = scale
        self._gather: AllGather | None = None
        self._num_misses = 0

    def row_sizes(self, geometry: Geometry) -> RowSizes:
        return self._product.row_sizes(self.gradient.shape, geometry)

    @property
    def is_whole(self) -> bool:
        """Whether the next run is an all-reduce of gradients, on all ranks."""
        return self.capacity == 0

    def expect(self, rows: int, geometry: Geometry = ()) -> bool:
        """Before a run: this rank has factors of `rows` rows, or WHOLE. Whether it must write them to `places`."""
        is_other = rows > 0 and not self.is_whole and geometry != self.opened
        self.rows, self.geometry = WHOLE if is_other else rows, geometry
        return 0 <= self.rows <= self.capacity and not self.is_whole

    def expect_whole(self) -> None:
        """Before a run: this rank has no factors, unless it says so yet."""
        self.rows = WHOLE

    def places(self, start: int, stop: int) -> tuple[Floats, Floats]:
        """The places for rows [start, stop) of the left and the right factor."""
        assert self._gather is not None
        left, right = self._factors(self._gather.own)
        return left[start:stop], right[start:stop]

    def open(self, capacity: int, geometry: Geometry = ()) -> None:
        """Runs are of factors from now on (0 rows: never); all ranks call this with the same arguments."""
        self.is_settled = True
        self._num_misses = 0
        self.capacity, self.opened = capacity, geometry
        self._gather = None
        if capacity:
            row = self.row_sizes(geometry)
            num_elements = _HEADER_ELEMENTS + capacity * (row.left + row.right)
            self._gather = self._collectives.all_gather(f"factors of {self.name} in {num_elements}", num_elements)

    def start(self) -> None:
        if self._gather is None:
            self._whole.start()
        else:
            self._gather.own[0] = self.rows
            self._gather.runner.start()

    def finish(self, deadline: Deadline) -> None:
        if self._gather is None:
            self._whole.finish(deadline)
            self.last_steps = self._whole.last_steps
            return
        self._gather.runner.finish(deadline)
        self.last_steps = self._gather.runner.last_steps
        rows = [int(part[0]) for part in self._gather.parts]
        self.most_rows = max(rows)
        if min(rows) >= 0 and self.most_rows <= self.capacity:
            self._num_misses = 0
            self._multiply(self._gather.parts, rows)
        else:
            self._num_misses += 1
            self._add_whole(deadline)

    def settle(self, is_less: Callable[[int], bool]) -> None:
        """After a run: more room if a rank had more rows; none if factors stopped coming."""
        if self.is_whole or not self._num_misses:
            return
        if self.most_rows > self.capacity and is_less(self.most_rows):
            doubled = max(self.most_rows, 2 * self.capacity)
            self.open(doubled if is_less(doubled) else self.most_rows, self.opened)
        elif self._num_misses == _MOST_MISSES:
            self.open(0)

    def _add_whole(self, deadline: Deadline) -> None:
        if 0 <= self.rows <= self.capacity:
            assert self._gather is not None
            self._multiply([self._gather.own], [self.rows])
        self._whole.run(deadline)

    def _multiply(self, parts: Sequence[Floats], rows: Sequence[int]) -> None:
        factors = [self._factors(part) for part in parts]
        left = np.concatenate([left[:count] for (left, _), count in zip(factors, rows, strict=True)])
        right = np.concatenate([right[:count] for (_, right), count in zip(factors, rows, strict=True)])
        self._product.multiply(left, right, self._scale, self.gradient, self.opened)

    def _factors(self, message: Floats) -> tuple[Floats, Floats]:
        row = self.row_sizes(self.opened)
        middle = _HEADER_ELEMENTS + self.capacity * row.left
        return message[_HEADER_ELEMENTS:middle].reshape(-1, row.left), message[middle:].reshape(-1, row.right)


class FactoredOrEncoded(EncodedRunner):
    """Factors, which are never encoded, or the encoded gradient where factors are not less.

    Until that is known the gradient travels as it is, so that the residual of a first step is not left behind.
    """

    def __init__(self, factored: FactoredSum, encoded: EncodedRunner) -> None:
        self.last_steps = 0
        self.residual = encoded.residual
        self._factored, self._encoded = factored, encoded

    def give_back(self) -> None:
        if self._is_encoded:
            self._encoded.give_back()

    def start(self) -> None:
        self._chosen.start()

    def finish(self, deadline: Deadline) -> None:
        self._chosen.finish(deadline)
        self.last_steps = self._chosen.last_steps

    @property
    def _is_encoded(self) -> bool:
        return self._factored.is_settled and self._factored.is_whole

    @property
    def _chosen(self) -> PlanRunner:
        return self._encoded if self._is_encoded else self._factored


class Factoring:
    """Which gradients travel as factors, decided once, after the first step, the same on all ranks.

    With `choice` "auto" those of which factors take less time than the gradient, by nominal figures; with "always" all
    that are products of factors. None do where ranks make products in different ways (other processors, other
    numbers of threads), because their weights would drift apart.
    """

    def __init__(
        self,
        collectives: Collectives,
        choice: str,
        links: Links,
        arithmetic: Arithmetic,
        deadline: Callable[[], Deadline],
        tell: Callable[[str], None],
    ) -> None:
        self.sums: dict[int, FactoredSum] = {}  # by the index of the bucket, which holds nothing else
        self._collectives = collectives
        self._choice = choice
        self._links = links
        self._arithmetic = arithmetic
        self._deadline = deadline
        self._tell = tell
        self._is_decided = False

    def add(self, bucket: Bucket, gradients: Region, product: Product, scale: float) -> FactoredSum:
        """A gradient that may travel as factors; all ranks add the same ones in the same order."""
        (entry,) = bucket.entries
        part = gradients.part(bucket.start, bucket.stop)
        whole = self._collectives.all_reduce(f"bucket {bucket.index} whole", part)
        gradient = entry.view(gradients.array)
        self.sums[bucket.index] = FactoredSum(entry.spec.name, gradient, whole, self._collectives, product, scale)
        return self.sums[bucket.index]

    @property
    def by_name(self) -> dict[str, FactoredSum]:
        """By the name of the parameter."""
        return {factored.name: factored for factored in self.sums.values()}

    @property
    def chosen(self) -> tuple[str, ...]:
        """The parameters whose gradients travel as factors now."""
        return tuple(factored.name for factored in self.sums.values() if not factored.is_whole)

    def stepped(self) -> None:
        """A step's exchanges have ended on this rank."""
        if self.sums and not self._is_decided:
            self._decide()
            return
        for factored in self.sums.values():
            factored.settle(partial(self._is_less, factored, factored.opened))

    def state_dict(self) -> State:
        """Equal on all ranks: how many rows have room in a message, by parameter, and a kernel's geometry."""
        state: State = {}
        for index, factored in self.sums.items() if self._is_decided else ():
            state[f"factors/{index}"] = factored.capacity
            if factored.opened:
                state[f"factors/{index}/geometry"] = np.array(factored.opened)
        return state

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """All ranks load the same together. The next step decides again if the state is of other parameters, or none.

        It does so, too, if ranks make products in different ways now, because the run continues on other hosts.
        """
        found = {index: state.get(f"factors/{index}") for index in self.sums}
        is_known = bool(found) and all(capacity is not None for capacity in found.values())
        self._is_decided = is_known and not differing_ranks(self._shown(self._arithmetic.words))
        for index, factored in self.sums.items():
            geometry = tuple(np.atleast_1d(state.get(f"factors/{index}/geometry", ())).astype(int).tolist())
            factored.open(int(found[index]) if self._is_decided else 0, geometry)  # type: ignore[arg-type]
            factored.is_settled = self._is_decided

    def _decide(self) -> None:
        self._is_decided = True
        own = (number for factored in self.sums.values() for number in _as_numbers(factored))
        table = self._shown([*self._arithmetic.words, *own])
        num_words = len(self._arithmetic.words)
        differing = differing_ranks(table[:, :num_words])
        rows = table[:, num_words:].reshape(len(table), len(self.sums), -1).astype(int)
        for number, factored in enumerate(self.sums.values()):
            most, geometry = _common(rows[:, number])
            fits = not differing and most > 0 and self._is_less(factored, geometry, most)
            factored.open(most if fits else 0, geometry if fits else ())
        self._say(differing)

    def _shown(self, own: Sequence[float]) -> npt.NDArray[np.float64]:
        """These numbers of each rank."""
        return self._collectives.records(len(own)).gather(own, self._deadline())

    def _is_less(self, factored: FactoredSum, geometry: Geometry, num_rows: int) -> bool:
        """By the time on the links, and of the product of all ranks' rows in place of its own."""
        if self._choice == ALWAYS:
            return True
        others = self._collectives.group.world_size - 1
        operations_per_s = self._arithmetic.num_threads * _THREAD_OPERATIONS_PER_S
        row = factored.row_sizes(geometry)
        product_s = 2.0 * others * num_rows * row.multiply_adds / operations_per_s
        return self._links.saved_s(factored.gradient.size, row, num_rows) > product_s

    def _say(self, differing: Sequence[int]) -> None:
        chosen = [factored for factored in self.sums.values() if not factored.is_whole]
        if self._choice == ALWAYS and not chosen:
            reason = "no gradient of the model is a product of two factors, of equal sizes, in every rank's first step"
            if differing:
                reason = f"ranks {differing} make products in other ways than rank 0 (processor, threads, PyTorch)"
            raise InputError(f"factors {ALWAYS!r}: {reason}; choose {AUTO!r} or {NONE!r}")
        if differing:
            self._tell(
                f"gradients travel whole: ranks {differing} make products in other ways than rank 0 (processor, "
                "threads, PyTorch), and weights would drift apart"
            )
        elif chosen:
            rows = [(factored.capacity, factored.row_sizes(factored.opened)) for factored in chosen]
            messages = sum(4 * capacity * (row.left + row.right) for capacity, row in rows)
            gradients = sum(factored.gradient.nbytes for factored in chosen)
            self._tell(
                f"{len(chosen)} of {len(self.sums)} large gradients travel as factors: {messages / 1e6:.3g} "
                f"MB a rank and step in place of {gradients / 1e6:.3g} MB"
            )


def _as_numbers(factored: FactoredSum) -> list[float]:
    """This rank's rows and their geometry."""
    unused = _MOST_SIZES - len(factored.geometry)
    return [float(factored.rows), *map(float, factored.geometry), *[-1.0] * unused]


def _common(of_ranks: npt.NDArray[np.int_]) -> tuple[int, Geometry]:
    """The most rows of a rank, and the geometry of all that have any; 0 rows if they differ, or a rank has none."""
    rows = of_ranks[:, 0]
    geometries = {tuple(size for size in sizes if size >= 0) for sizes in of_ranks[rows > 0, 1:].tolist()}
    if rows.min() < 0 or len(geometries) != 1:
        return 0, ()
    return int(rows.max()), geometries.pop()
