"""The step of one worker."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.data.stream import Batch, BatchStream
from samovar.model.model import Model
from samovar.solver.base import Solver
from samovar.strategies.base import Strategy


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Mean loss over this rank's `num_samples` samples of one step."""

    loss: float
    num_samples: int


class Worker:
    """Forward, backward, exchange, update: one step after the other, on the batches that `stream` gives.

    A step uses `num_parts` batches (Caffe's iter_size), whose gradients are averaged.
    """

    def __init__(
        self,
        model: Model,
        solver: Solver,
        strategy: Strategy,
        stream: BatchStream,
        world_size: int,
        num_parts: int,
        timeout_s: float,
    ) -> None:
        self._model = model
        self._solver = solver
        self._strategy = strategy
        self._stream = stream
        self._world_size = world_size
        self._num_parts = num_parts
        self._timeout_s = timeout_s

    def step(self, step: int) -> StepLoss:
        """Train on the next batches; the weights are those after the update when this returns."""
        self._strategy.begin_step(step)
        losses = []
        for index, batch in self._parts():
            loss = self._model.forward_backward(
                batch.tensors,
                # The mean over ranks of these is the mean over samples, also where shares are unequal.
                loss_scale=batch.num_samples * self._world_size / batch.global_num_samples,
                first_part=index == 0,
                last_part=index == self._num_parts - 1,
                before_forward=self._strategy.before_forward,
                gradient_final=self._strategy.gradient_final,
            )
            losses.append((loss, batch.num_samples))
        self._strategy.finish_step(step, update=partial(self._update, step))
        num_samples = sum(count for _, count in losses)
        return StepLoss(sum(loss * count for loss, count in losses) / num_samples, num_samples)

    def _parts(self) -> Iterator[tuple[int, Batch]]:
        for index in range(self._num_parts):
            yield index, self._stream.next(Deadline.after(self._timeout_s))

    def _update(self, step: int, bucket: Bucket, gradient_scale: float) -> None:
        self._solver.update(step, bucket, gradient_scale / self._num_parts)
