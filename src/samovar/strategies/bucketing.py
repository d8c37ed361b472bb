"""`--bucket auto`: which parameters travel together, so that least of the exchange is left when backward has ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExchangeModel:
    """An exchange of B bytes takes `latency_s` + B / `bytes_per_s`.

    While the backward pass runs, exchanges advance at `hidden_fraction` of that pace. It is 1 if each rank has a spare
    core. It is 0 if none has: the backward pass then waits for the exchange, and nothing is hidden.
    """

    latency_s: float
    bytes_per_s: float
    hidden_fraction: float

    def __post_init__(self) -> None:
        assert self.latency_s >= 0, self
        assert self.bytes_per_s > 0, self
        assert 0 <= self.hidden_fraction <= 1, self


def least_exposed(sizes_bytes: Sequence[int], backward_s: Sequence[float], model: ExchangeModel) -> tuple[int, ...]:
    """The lengths of buckets whose last exchange ends the soonest; of several such cuts one with the fewest buckets.

    Bucket i has the next lengths[i] parameters. T_k is when parameter k's gradient is final, h the hidden_fraction:
    start_i = max(h T_last(i), end_{i-1}), end_i = start_i + latency_s + bytes_i / bytes_per_s, in work that exchanges
    can have done by then.

    Both sequences (n) are in the order in which backward finishes parameters; `backward_s[k]` are the seconds between
    the gradients of k - 1 and k. A pure function: every rank, and every resumed run, cuts the same. Cost: O(n^2) for
    the least time (an exchange ends the sooner, the sooner the one before did), and O(n^2) for each bucket there is.
    """
    if not sizes_bytes:
        return ()
    # When parameters before k are final, (n + 1).
    finals_s = np.array([model.hidden_fraction * final_s for final_s in accumulate(backward_s, initial=0.0)])
    costs_s = _costs_s(sizes_bytes, model)
    least_s = _least_end_s(finals_s, costs_s)
    ends_s = np.full(len(finals_s), np.inf)
    ends_s[0] = 0.0
    before: list[npt.NDArray[np.int64]] = []
    # Paths are compared in the very arithmetic that gave the least, so it is met exactly.
    while ends_s[-1] > least_s:
        through_s = np.maximum(ends_s[:, None], finals_s[None, :]) + costs_s
        before.append(through_s.argmin(axis=0))
        ends_s = through_s.min(axis=0)
    return _lengths(before)


def _costs_s(sizes_bytes: Sequence[int], model: ExchangeModel) -> Seconds:
    """(n + 1, n + 1): the exchange of parameters first to stop; infinite if that is empty."""
    bytes_before = np.array(list(accumulate(sizes_bytes, initial=0)), np.float64)
    costs_s: Seconds = model.latency_s + (bytes_before[None, :] - bytes_before[:, None]) / model.bytes_per_s
    costs_s[np.tril_indices(len(bytes_before))] = np.inf
    return costs_s


def _least_end_s(finals_s: Seconds, costs_s: Seconds) -> float:
    ends_s = np.zeros(len(finals_s))
    for stop in range(1, len(finals_s)):
        ends_s[stop] = (np.maximum(ends_s[:stop], finals_s[stop]) + costs_s[:stop, stop]).min()
    return float(ends_s[-1])


def _lengths(before: Sequence[npt.NDArray[Any]]) -> tuple[int, ...]:
    """Back from the last parameter, bucket by bucket."""
    lengths, stop = [], len(before[0]) - 1
    for starts in reversed(before):
        first = int(starts[stop])
        lengths.append(stop - first)
        stop = first
    return tuple(reversed(lengths))
