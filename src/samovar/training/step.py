"""The step of one worker."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.data.stream import Batch, BatchStream
from samovar.frontends.torch.late import LateCopy
from samovar.model.half import NetOutput
from samovar.model.model import Model
from samovar.report.steps import Laps, StepTimes
from samovar.strategies.base import Strategy
from samovar.strategies.exact import SliceSums


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Mean loss over this rank's `num_samples` samples of one step. From a device it comes late."""

    value: float | LateCopy
    num_samples: int

    @classmethod
    def of(cls, losses: Sequence[tuple[torch.Tensor, int]]) -> "StepLoss":
        """The mean over batches of (mean loss, number of samples)."""
        num_samples = sum(count for _, count in losses)
        if losses[0][0].device.type == "cpu":
            return cls(sum(float(loss) * count for loss, count in losses) / num_samples, num_samples)
        weighted = torch.stack([loss * (count / num_samples) for loss, count in losses])
        return cls(LateCopy(weighted.sum().reshape(1)), num_samples)

    @property
    def is_late(self) -> bool:
        return isinstance(self.value, LateCopy)

    @property
    def has_come(self) -> bool:
        return not isinstance(self.value, LateCopy) or self.value.has_come()

    @property
    def loss(self) -> float:
        """The loss. Waits if it has not come."""
        return self.value.values()[0] if isinstance(self.value, LateCopy) else self.value


class Updates(Protocol):
    """The part of a solver that a step needs; see `samovar.solver.flat.Solver`."""

    def update(self, step: int, bucket: Bucket, gradient_scale: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a rank's step: `count` batches, whose gradients are added up, in `sums` if that is given.

    `num_shares` share a global batch, each with its own mean loss; the update divides by `divisor`.
    """

    count: int
    num_shares: int
    divisor: int
    sums: SliceSums | None = None


class Worker:
    """A worker's steps on the batches of `stream`: forward, backward, exchange, update.

    `times` are those of the last step, taken by `laps`.
    """

    def __init__(
        self,
        model: Model,
        solver: Updates,
        strategy: Strategy,
        stream: BatchStream,
        parts: Parts,
        timeout_s: float,
        laps: Laps | None = None,
    ) -> None:
        self._model = model
        self._solver = solver
        self._strategy = strategy
        self._stream = stream
        self._parts = parts
        self._timeout_s = timeout_s
        self._laps = Laps() if laps is None else laps
        self.times = StepTimes()

    def step(self, step: int, rate_step: int | None = None) -> StepLoss:
        """Train on the next batches; when this returns, the weights are updated.

        The learning rate is that of `rate_step`; by default, of the step itself.
        """
        laps, parts = self._laps, self._parts
        laps.start()
        self._strategy.begin_step(step)
        losses = []
        for index, batch in self._batches():
            loss = self._model.forward_backward(
                batch.tensors,
                # The mean over shares of these is the mean over samples, also where shares are unequal.
                loss_scale=batch.num_samples * parts.num_shares / batch.global_num_samples,
                first_part=index == 0 or parts.sums is not None,
                last_part=index == parts.count - 1,
                before_forward=self._before_forward,
                gradient_final=self._strategy.gradient_final,
                forward_done=partial(laps.lap, "forward_s"),
            )
            if parts.sums is not None:
                parts.sums.add()
            laps.lap("backward_s")
            losses.append((loss, batch.num_samples))
        self._strategy.finish_step(step, update=partial(self._update, step if rate_step is None else rate_step))
        laps.lap("exchange_s")
        self.times = laps.times()
        return StepLoss.of(losses)

    def forward(self) -> StepLoss:
        """The loss of the next batch, without learning from it."""
        batch = self._stream.next(Deadline.after(self._timeout_s))
        with torch.no_grad():
            output: NetOutput = self._model.net(batch.tensors)
        assert output.loss is not None, "the net has no loss"
        return StepLoss(float(output.loss), batch.num_samples)

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        for index in range(self._parts.count):
            batch = self._stream.next(Deadline.after(self._timeout_s))
            self._laps.lap("data_s")
            yield index, batch

    def _before_forward(self, bucket: Bucket) -> None:
        self._laps.lap("forward_s")
        self._strategy.before_forward(bucket)
        self._laps.lap("exchange_s")

    def _update(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        self._laps.lap("exchange_s")
        self._solver.update(step, bucket, gradient_scale / self._parts.divisor)
        self._laps.lap("update_s")
