"""How long a worker that waits for nobody goes on, and which step's learning rate it takes."""

from collections.abc import Callable
from typing import Protocol

from samovar.core.layout import Bucket
from samovar.training.step import Updates


class RateSchedule(Protocol):
    """Asked before each step of a worker."""

    def next_rate_step(self) -> int | None:
        """The step of the solver's policy by which the next update is made; None where the run is over."""
        ...


class LiveRates:
    """Goes by `run_steps()`, the steps of all workers together, until these reach `num_steps`.

    So the rate falls for all at once, however fast or slow one of them is.
    """

    def __init__(self, run_steps: Callable[[], int], num_steps: int) -> None:
        self._run_steps = run_steps
        self._num_steps = num_steps

    def next_rate_step(self) -> int | None:
        steps = self._run_steps()
        return None if steps >= self._num_steps else steps


class SteeredUpdates:
    """A solver whose step is another one than the worker's own."""

    def __init__(self, solver: Updates) -> None:
        self._solver = solver
        self._rate_step = 0

    def steer(self, rate_step: int) -> None:
        """The next updates are of this step."""
        self._rate_step = rate_step

    def update(self, _step: int, bucket: Bucket, gradient_scale: float) -> None:
        self._solver.update(self._rate_step, bucket, gradient_scale)
