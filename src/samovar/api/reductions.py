"""Values over all ranks, for example the mean of a loss, all predictions, or a model's mean buffers; and a barrier."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from samovar.api.process_group import Announcer, ProcessGroup, by_windows, lasting_ranks
from samovar.api.uneven_inputs import Event
from samovar.collectives.engine import float32_region
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.frontends.torch.state import BufferMean
from samovar.membership.statistics import NUM_MARKS, ShownStatistics, SummedStatistics

_WORDS = 256  # of float64 in a record
_BYTES_PER_WORD = 6  # which float64 holds exactly
Value = TypeVar("Value", float, torch.Tensor)
Rows = npt.NDArray[np.float64]
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def untraced(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """A function that `torch.compile` of a whole training step calls as it is, and does not look into."""
    made: Callable[_Given, _Made] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return made


class RankReduction(IntEnum):
    """An operation of all ranks. Records hold its value."""

    MEAN = 0
    SUM = 1
    MAX = 2
    GATHER = 3
    BARRIER = 4


_FUNCTIONS: dict[RankReduction, Callable[..., Any]] = {
    RankReduction.MEAN: np.mean,
    RankReduction.SUM: np.sum,
    RankReduction.MAX: np.max,
}


class Reductions:
    """Numbers, tensors and plain objects of all ranks, in float64 and in rank order: the same bits on every rank.

    Ranks whose data ended are left out, so a mean is over those that have data. Cost: each rank sends its value to each
    other rank, 2 KiB at a time.
    """

    def __init__(self, processes: ProcessGroup, announcer: Announcer) -> None:
        self._group, self._announcer = processes.group, announcer
        self._records = processes.collectives.records(_WORDS + 1) if processes.group.world_size > 1 else None

    @untraced
    def reduce(self, operation: RankReduction, value: Value) -> Value:
        """The mean, sum or maximum over ranks. Raises InputError unless `value` is a number or a tensor of numbers."""
        own = _numbers(value)
        rows = np.stack([row for row in self._rows(operation, own) if row is not None])
        reduce = _FUNCTIONS[operation]
        total = np.asarray(reduce(rows, axis=0))
        if not isinstance(value, torch.Tensor):
            return float(total[0])
        of_integers = {RankReduction.MEAN: None, RankReduction.SUM: torch.int64}  # as torch.sum
        kind = value.dtype if value.is_floating_point() else of_integers.get(operation, value.dtype)
        return torch.from_numpy(total).reshape(value.shape).to(value.device, kind)

    @untraced
    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order; None of a rank whose data ended. Numbers, strings, None, lists, dicts."""
        own = _packed(value)
        lengths = self._rows(RankReduction.GATHER, np.array([float(len(own))]))
        padded = np.zeros(max(int(row[0]) for row in lengths if row is not None))
        padded[: len(own)] = own
        return [None if row is None else _unpacked(row) for row in self._rows(RankReduction.GATHER, padded)]

    def broadcast(self, value: Any, source: int) -> Any:
        """The value of rank `source`, on every rank. The values of the others are ignored."""
        world_size = self._group.world_size
        if not 0 <= source < world_size:
            raise InputError(f"broadcast: source is {source}; ranks are 0 to {world_size - 1}")
        return self.gather(value if self._group.rank == source else None)[source]

    @untraced
    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._announcer.agree(Event.REDUCING, RankReduction.BARRIER)

    def take_part(self, operation: RankReduction, num_words: int) -> None:
        """Take part, without data, in an operation of the others."""
        if operation is not RankReduction.BARRIER:
            list(self._exchanged(np.zeros(num_words), has_data=False))

    def _rows(self, operation: RankReduction, own: Rows) -> list[Rows | None]:
        """The value of each rank; None for ranks without data."""
        self._announcer.agree(Event.REDUCING, operation, float(len(own)))
        if self._records is None:
            return [own]
        pieces = list(self._exchanged(own, has_data=True))
        whole = np.concatenate([piece[:, 1:] for piece in pieces], axis=1)[:, : len(own)]
        return [row if has_data else None for row, has_data in zip(whole, pieces[0][:, 0], strict=True)]

    def _exchanged(self, own: Rows, *, has_data: bool) -> Iterator[Rows]:
        assert self._records is not None
        for start in range(0, max(len(own), 1), _WORDS):
            piece = own[start : start + _WORDS]
            self._records.post([float(has_data), *piece, *[0.0] * (_WORDS - len(piece))])
            yield self._records.collect(self._announcer.deadline())


class RankCalls:
    """This process's rank, and the calls that combine values of all ranks."""

    def __init__(self, processes: ProcessGroup, announcer: Announcer) -> None:
        self._team = processes
        self._reductions = Reductions(processes, announcer)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._team.group.rank

    @property
    def world_size(self) -> int:
        """The number of processes in this job."""
        return self._team.group.world_size

    @property
    def local_rank(self) -> int:
        """The number of this process on its host, from 0."""
        return self._team.local_rank

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0. It prints, and saves what is needed once."""
        return self.rank == 0

    def mean(self, value: Value) -> Value:
        """The mean over ranks of a number, or of a tensor by element. Computed in float64, the same on every rank.

        All ranks make the same call and wait for each other, as for `sum`, `max`, `gather`, `broadcast` and `barrier`.
        Inside a loop over a shard, ranks whose data ended are left out. At a center call it after the loop.
        """
        return self._reductions.reduce(RankReduction.MEAN, value)

    def sum(self, value: Value) -> Value:
        """The sum over ranks of a number, or of a tensor by element. Computed in float64, the same on every rank."""
        return self._reductions.reduce(RankReduction.SUM, value)

    def max(self, value: Value) -> Value:
        """The maximum over ranks of a number, or of a tensor by element."""
        return self._reductions.reduce(RankReduction.MAX, value)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order; None for a rank whose data ended.

        A value may be a number, a string, None, or a list or dict of these. Tuples become lists, and a dict's keys
        become strings. Nothing is pickled. Raises InputError for another object.
        """
        return self._reductions.gather(value)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of rank `source`, which `gather` may take, on every rank; None if the data of `source` ended."""
        return self._reductions.broadcast(value, source)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._reductions.barrier()

    def busy(self) -> AbstractContextManager[None]:
        """A context for long work of this rank, such as a validation or an upload, while other ranks may wait for it.

        Their waits continue beyond `timeout_s` as long as this process sends a heartbeat each second. They end if the
        heartbeats stop for `timeout_s`, or as soon as this rank dies. Code that holds Python's lock stops heartbeats.
        Inside, do not call what waits for other ranks. NCCL still ends the process if an operation takes `timeout_s`.
        """
        return self._team.heartbeats.busy()


def _numbers(value: float | torch.Tensor) -> Rows:
    if isinstance(value, torch.Tensor) and not value.is_complex():
        return value.detach().to("cpu", torch.float64).reshape(-1).numpy()
    if isinstance(value, int | float | np.integer | np.floating | np.bool_):
        return np.array([float(value)])
    raise InputError(f"got a {type(value).__name__}; give a number or a tensor of numbers (gather takes other values)")


def _packed(value: Any) -> Rows:
    """The length, and JSON in pieces of 6 bytes, which float64 holds exactly."""
    try:
        text = json.dumps(value, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"gather: {error}; give numbers, strings, None, and lists and dicts of these (tensor.tolist())"
        ) from error
    padded = text.ljust(-(-len(text) // _BYTES_PER_WORD) * _BYTES_PER_WORD)
    words = np.zeros((len(padded) // _BYTES_PER_WORD, 8), np.uint8)
    words[:, :_BYTES_PER_WORD] = np.frombuffer(padded, np.uint8).reshape(-1, _BYTES_PER_WORD)
    return np.concatenate([[float(len(text))], words.view("<u8").reshape(-1).astype(np.float64)])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else json.JSONEncoder().default(value)  # a TypeError


def _unpacked(row: Rows) -> Any:
    words = row[1:].astype("<u8").view(np.uint8).reshape(-1, 8)[:, :_BYTES_PER_WORD]
    return json.loads(words.tobytes()[: int(row[0])])


class ReplicaBuffers:
    """The mean of all ranks' buffers. Ranks in step add theirs up when they evaluate.

    Ranks at a center show theirs after each `period` steps instead, which costs a copy, and on a device a wait. Only
    ranks of this host that still make steps count then.
    """

    def __init__(
        self,
        model: nn.Module,
        processes: ProcessGroup,
        deadline: Callable[[], Deadline],
        *,
        is_async: bool,
        period: int = 1,
    ) -> None:
        self._period = period
        self._buffers = BufferMean(model)
        num_elements = self._buffers.size
        self._summed: SummedStatistics | None = None
        self._shown: ShownStatistics | None = None
        if not num_elements or processes.group.world_size == 1:
            return
        if is_async:
            reached = by_windows(processes.collectives)
            region = float32_region(reached, "shown buffers", num_elements + NUM_MARKS)
            self._shown = ShownStatistics(region, lasting_ranks(reached))
        else:
            self._summed = SummedStatistics(processes.collectives, num_elements, deadline)

    def stepped(self, step: int) -> None:
        """Show this rank's buffers if it is time; call it after each step."""
        if self._shown is not None and step % self._period == 0:
            self._buffers.gather(self._shown.own)
            self._shown.show()

    def close(self) -> None:
        """Let go of the memory that other ranks reach."""
        self._summed = self._shown = None

    def sum(self) -> None:
        """Take part in a mean that others need."""
        if self._summed is not None:
            self._buffers.gather(self._summed.own)
            self._summed.sum()

    @contextmanager
    def mean(self) -> Iterator[None]:
        """A context in which the model's buffers are the mean."""
        statistics = self._shown or self._summed
        if statistics is None:
            yield
            return
        self._buffers.gather(statistics.own)
        if self._shown is not None:
            self._shown.show(has_stepped=False)
        with self._buffers.replaced(statistics.mean()):
            yield
