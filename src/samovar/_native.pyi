"""Typed stub of the native core; semantics in the headers of native/."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_Float = TypeVar("_Float", np.float32, np.float64)

class Segment:
    """Head of a shared memory file: one doorbell and one row of 8 board words a rank, and one for the launcher."""

    def __init__(self, fd: int, world_size: int) -> None: ...
    @staticmethod
    def head_bytes(world_size: int) -> int: ...
    def post(self, row: int, word: int, value: int) -> None: ...
    def read(self, row: int, word: int) -> int: ...

class Window:
    """Notification slots and `bytes_per_rank` bytes of every rank, mapped into this process."""

    def __init__(
        self,
        segment: Segment,
        rank: int,
        file_offset: int,
        num_slots: int,
        bytes_per_rank: int,
        spin_ns: int,
    ) -> None: ...
    @staticmethod
    def file_bytes(world_size: int, num_slots: int, bytes_per_rank: int) -> int: ...
    def memory(self, rank: int) -> npt.NDArray[np.uint8]: ...
    def put(self, peer: int, offset_bytes: int, source: npt.NDArray[Any]) -> None: ...
    def get(self, peer: int, offset_bytes: int, destination: npt.NDArray[Any]) -> None: ...
    def fetch_add(self, peer: int, offset_bytes: int, value: int) -> int: ...
    def compare_swap(self, peer: int, offset_bytes: int, expected: int, desired: int) -> int: ...
    def notify(self, peer: int, slot: int, value: int) -> None: ...
    def wait(self, slot: int, at_least: int, timeout_s: float) -> int | None: ...
    def wait_any(self, first: int, count: int, timeout_s: float) -> tuple[int, int] | None: ...

class Program:
    """A plan's operations of one rank on mapped memory; notifications and waits are those of `window`."""

    def __init__(self, window: Window) -> None: ...
    def add_put(self, peer: int, slot: int, destination: npt.NDArray[Any], source: npt.NDArray[Any]) -> None: ...
    def add_combine(
        self, destinations: Sequence[npt.NDArray[_Float]], sources: Sequence[npt.NDArray[_Float]]
    ) -> None: ...
    def add_notify(self, peer: int, slot: int) -> None: ...
    def add_wait(self, slot: int) -> None: ...
    def run(self, timeout_s: float) -> bool: ...
    def resume(self, timeout_s: float) -> bool: ...
    def begin(self) -> None: ...
    def perform_next(self) -> bool: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    @property
    def position(self) -> int: ...

class ProgressThread:
    """Runs submitted programs of one rank, all at once, until it is deleted."""

    def __init__(self, segment: Segment, rank: int, spin_ns: int) -> None: ...
    def submit(self, program: Program) -> None: ...
    def wait(self, program: Program, timeout_s: float) -> bool: ...

class IdleThreads:
    """While it lives, waiting compute threads sleep at once instead of spinning (see native/parallel.hpp)."""

    def __init__(self, count: int) -> None: ...

class Fenced(RuntimeError):
    """A member's row is a newer incarnation's or another process's."""

class NotFinite(RuntimeError):
    """A chunk would hold what is no finite number."""

class Center:
    """A center in a mapped file; arrays hold whole chunks from `first_chunk` on, `versions` a number for each.

    Operations return whether they ended before `timeout_s`.
    """

    def __init__(self, fd: int) -> None: ...
    @staticmethod
    def create(
        fd: int,
        num_elements: int,
        chunk_elements: int,
        max_members: int,
        has_velocity: bool,
        has_locks: bool,
        takes_any: bool = False,
    ) -> None: ...
    @property
    def num_elements(self) -> int: ...
    @property
    def chunk_elements(self) -> int: ...
    @property
    def num_chunks(self) -> int: ...
    @property
    def max_members(self) -> int: ...
    @property
    def has_velocity(self) -> bool: ...
    @property
    def has_locks(self) -> bool: ...
    @property
    def takes_any(self) -> bool: ...
    @property
    def lost_s(self) -> float: ...
    def attach(self, member: int, incarnation: int) -> None: ...
    def close(self) -> None: ...
    def write(
        self, first_chunk: int, values: npt.NDArray[np.float32], is_velocity: bool, timeout_s: float = 60.0
    ) -> bool: ...
    def read(
        self,
        first_chunk: int,
        destination: npt.NDArray[np.float32],
        is_velocity: bool,
        versions: npt.NDArray[np.int64],
        timeout_s: float,
    ) -> bool: ...
    def accumulate(
        self,
        first_chunk: int,
        sequence: int,
        difference: npt.NDArray[np.float32],
        momentum: float,
        versions: npt.NDArray[np.int64],
        timeout_s: float,
    ) -> bool: ...
    def exchange(
        self,
        first_chunk: int,
        sequence: int,
        weights: npt.NDArray[np.float32],
        rate: float,
        versions: npt.NDArray[np.int64],
        timeout_s: float,
    ) -> bool: ...
    def exchange_into(
        self,
        first_chunk: int,
        sequence: int,
        weights: npt.NDArray[np.float32],
        moved: npt.NDArray[np.float32],
        rate: float,
        versions: npt.NDArray[np.int64],
        timeout_s: float,
    ) -> bool: ...
    def submit(self, sequence: int, difference: npt.NDArray[np.float32], momentum: float) -> int: ...
    def wait(self, ticket: int, versions: npt.NDArray[np.int64], timeout_s: float) -> bool: ...
    def entry(self, chunk: int, member: int) -> tuple[int, int, int]: ...

class CenterBoard:
    """Rows of a box's members: an owner, and 16 words that are read whole; and 16 words that all share."""

    def __init__(self, fd: int) -> None: ...
    @staticmethod
    def create(fd: int, max_members: int) -> None: ...
    @property
    def max_members(self) -> int: ...
    def seen(self, index: int) -> tuple[int, int, bool]: ...
    def join(self, index: int) -> int: ...
    def resume(self, index: int, incarnation: int) -> bool: ...
    def leave(self, index: int, incarnation: int) -> None: ...
    def post(self, index: int, incarnation: int, words: Sequence[int]) -> bool: ...
    def read(self, index: int) -> list[int]: ...
    def word(self, word: int) -> int: ...
    def set_word(self, word: int, value: int) -> None: ...
    def claim_word(self, word: int, value: int) -> int: ...

def reduce(destination: npt.NDArray[_Float], sources: Sequence[npt.NDArray[_Float]]) -> None: ...
def all_finite(values: npt.NDArray[np.float32]) -> bool: ...
def elastic_pull(
    weights: npt.NDArray[np.float32],
    center: npt.NDArray[np.float32],
    difference: npt.NDArray[np.float32],
    rate: float,
) -> None: ...
def elastic_exchange(
    weights: npt.NDArray[np.float32],
    center: npt.NDArray[np.float32],
    difference: npt.NDArray[np.float32],
    rate: float,
) -> None: ...
def outer_step(
    weights: npt.NDArray[np.float32],
    center: npt.NDArray[np.float32],
    velocity: npt.NDArray[np.float32],
    sum: npt.NDArray[np.float32],
    count: float,
    rate: float,
    momentum: float,
) -> None: ...
def adopt_orphans(adopts: bool) -> bool: ...
def die_with_parent() -> None: ...

class SolverRows:
    """Parameters as runs of a buffer of `num_elements`, each with its weight decay."""

    def __init__(
        self,
        num_elements: int,
        starts: npt.NDArray[np.uint64],
        sizes: npt.NDArray[np.uint64],
        l2_decays: npt.NDArray[np.float32],
        l1_decays: npt.NDArray[np.float32],
    ) -> None: ...

def sgd_step(
    weights: npt.NDArray[np.float32],
    gradients: npt.NDArray[np.float32],
    history: npt.NDArray[np.float32],
    rows: SolverRows,
    rates: npt.NDArray[np.float32],
    gradient_scale: float,
    momentum: float,
) -> None: ...
def nesterov_step(
    weights: npt.NDArray[np.float32],
    gradients: npt.NDArray[np.float32],
    history: npt.NDArray[np.float32],
    rows: SolverRows,
    rates: npt.NDArray[np.float32],
    gradient_scale: float,
    momentum: float,
) -> None: ...
def adagrad_step(
    weights: npt.NDArray[np.float32],
    gradients: npt.NDArray[np.float32],
    history: npt.NDArray[np.float32],
    rows: SolverRows,
    rates: npt.NDArray[np.float32],
    gradient_scale: float,
    delta: float,
) -> None: ...
def rmsprop_step(
    weights: npt.NDArray[np.float32],
    gradients: npt.NDArray[np.float32],
    history: npt.NDArray[np.float32],
    rows: SolverRows,
    rates: npt.NDArray[np.float32],
    gradient_scale: float,
    rms_decay: float,
    delta: float,
) -> None: ...
def adadelta_step(
    weights: npt.NDArray[np.float32],
    gradients: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
    moves: npt.NDArray[np.float32],
    rows: SolverRows,
    rates: npt.NDArray[np.float32],
    gradient_scale: float,
    momentum: float,
    delta: float,
) -> None: ...
def adam_step(
    weights: npt.NDArray[np.float32],
    gradients: npt.NDArray[np.float32],
    means: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
    rows: SolverRows,
    rates: npt.NDArray[np.float32],
    gradient_scale: float,
    momentum: float,
    momentum2: float,
    delta: float,
) -> None: ...
def sum_of_squares(values: npt.NDArray[np.float32]) -> float: ...

class Response:
    """Local response normalization; tensors as addresses, `sizes` as they follow each other in memory."""

    def __init__(self, size: int, factor: float, beta: float, k: float, rectifies: bool) -> None: ...
    def across(self, x: int, y: int, sizes: tuple[int, int, int], threads: int) -> None: ...
    def across_backward(self, x: int, dy: int, dx: int, sizes: tuple[int, int, int], threads: int) -> None: ...
    def within(self, x: int, y: int, outer: int, sizes: tuple[int, int, int], threads: int) -> None: ...
    def within_backward(
        self, x: int, dy: int, dx: int, outer: int, sizes: tuple[int, int, int], threads: int
    ) -> None: ...

class MaxPool:
    """Maximum pooling; an axis is (size, outputs, kernel, stride, pad), tensors come as addresses."""

    def __init__(
        self, rows: tuple[int, int, int, int, int], columns: tuple[int, int, int, int, int], rectifies: bool
    ) -> None: ...
    def forward(self, x: int, y: int, where: int, images: int, channels: int, threads: int) -> None: ...
    def backward(self, dy: int, where: int, dx: int, images: int, channels: int, threads: int) -> None: ...

def softmax_loss(
    scores: int, labels: int, gradient: int, rows: int, classes: int, ignored: int | None, least_log: float
) -> tuple[float, int, bool]: ...
def column_moments(
    a: int, b: int, a_shift: int, b_shift: int, sums: int, products: int, rows: int, channels: int, threads: int
) -> None: ...
def standardize(x: int, mean: int, deviation: int, y: int, rows: int, channels: int, threads: int) -> None: ...
def standardize_backward(
    dy: int, y: int, dy_mean: int, product_mean: int, deviation: int, dx: int, rows: int, channels: int, threads: int
) -> None: ...

class Codec:
    """A lossy form of float32 values: "bf16", "int8", "int4", "top-k" or "1-bit"; see `samovar.collectives.encoded`."""

    def __init__(self, name: str) -> None: ...
    def message_bytes(self, num_elements: int) -> int: ...
    def encode(
        self, source: npt.NDArray[np.float32], residual: npt.NDArray[np.float32], message: npt.NDArray[np.uint8]
    ) -> None: ...
    def decode(
        self, messages: Sequence[npt.NDArray[np.uint8]], values: npt.NDArray[np.float32], adds: bool
    ) -> None: ...
