"""What the worker's step asks of a strategy."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from samovar.core.layout import Bucket

# update(bucket, gradient_scale): one solver step on the bucket, with gradient_scale * (its gradient).
Update: TypeAlias = Callable[[Bucket, float], None]


class Strategy(Protocol):
    """Four places in a step where a strategy may act; see `samovar.worker.step`."""

    def begin_step(self, step: int) -> None:
        """Before the first forward pass of a step."""
        ...

    def before_forward(self, bucket: Bucket) -> None:
        """Just before the bucket's first layer computes: may wait for fresh weights."""
        ...

    def gradient_final(self, bucket: Bucket) -> None:
        """The bucket's gradient is complete: may post it, never waits."""
        ...

    def finish_step(self, step: int, update: Update) -> None:
        """After the last backward pass; every bucket must be updated once per step."""
        ...
