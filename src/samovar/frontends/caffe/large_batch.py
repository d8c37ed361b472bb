"""A solver for larger steps: the same schedule in epochs, another rate."""

import math
from collections.abc import Iterator
from dataclasses import replace

from samovar.core.errors import InputError
from samovar.core.large_batch import LargeBatch
from samovar.frontends.caffe.solver import CaffeSolver

_SHOWN = (
    *("base_lr", "max_iter", "gamma", "stepsize", "stepvalue"),
    *("display", "average_loss", "test_interval", "snapshot"),
)


def with_large_batch(caffe: CaffeSolver, batch_size: int, large: LargeBatch) -> tuple[CaffeSolver, str]:
    """`caffe`, made for parts of `batch_size` samples, for steps of `large.batch_size`; and what was changed, in words.

    With k times as many samples a step, whatever counts steps is divided by k: max_iter (rounded up), stepsize,
    stepvalue, the intervals of display, test and snapshot, and gamma where it acts once a step. Momentum and
    weight decay stay. Raises InputError where the step would be smaller, or cannot be cut into iter_size parts.
    """
    own = batch_size * caffe.iter_size
    if large.batch_size < own:
        raise InputError(
            f"--large-batch {large.batch_size}: is smaller than the solver's own step of {own} samples; "
            f"give more than {own}, or leave it out"
        )
    if large.batch_size % caffe.iter_size:
        raise InputError(
            f"--large-batch {large.batch_size}: cannot be cut into iter_size {caffe.iter_size} equal parts; "
            f"give a multiple of {caffe.iter_size}"
        )
    times = large.batch_size / own
    max_iter = math.ceil(caffe.max_iter / times)
    warm_up_steps = math.ceil(max_iter / 10) if large.warm_up_steps is None else large.warm_up_steps
    changed = replace(
        caffe,
        base_lr=caffe.base_lr * large.rate_factor(times),
        gamma=_gamma(caffe, times),
        max_iter=max_iter,
        stepsize=_fewer(caffe.stepsize, times),
        stepvalue=tuple(_fewer(value, times) for value in caffe.stepvalue),
        warm_up_steps=warm_up_steps,
        display=_fewer(caffe.display, times),
        average_loss=_fewer(caffe.average_loss, times),
        test_interval=_fewer(caffe.test_interval, times),
        snapshot=_fewer(caffe.snapshot, times),
    )
    words = ", ".join([*_changes(caffe, changed), f"warm-up over {warm_up_steps:,} steps"])
    return changed, f"{large.batch_size:,} samples a step instead of {own:,}, the same epochs: {words}"


def _gamma(caffe: CaffeSolver, times: float) -> float:
    """What acts once a step acts k times as much; at drops it stays."""
    if caffe.lr_policy in ("inv", "sigmoid"):
        return caffe.gamma * times
    return float(caffe.gamma**times) if caffe.lr_policy == "exp" else caffe.gamma


def _fewer(steps: int, times: float) -> int:
    """So many steps of the larger kind: at least one, 0 stays never."""
    return max(1, round(steps / times)) if steps > 0 else steps


def _changes(before: CaffeSolver, after: CaffeSolver) -> Iterator[str]:
    for name in _SHOWN:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{name} {_shown(old)} -> {_shown(new)}"


def _shown(value: float | int | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
