"""The order of samples: a pure function of (seed, epoch, position).

The samples of a run have one global counter n = step * global_batch + i, the same for any number of workers. With N
records, sample n has position n % N of epoch n // N; an epoch holds every record once. Random choices about sample n
(crop, mirror) are a function of (seed, n).

All random bits are raw words of the Philox generator, because numpy guarantees their stream. `Generator.permutation`
may change with the numpy version.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.core.group import Group

DRAWS_PER_SAMPLE = 4  # one Philox block
SAMPLE_NUMBERS = "(sample numbers)"  # beside a batch's tops: the global counters of its samples, int64 (N,)

_EPOCHS_APART = 1 << 20  # more than anybody trains
_GOLDEN_SECTION = (5**0.5 - 1) / 2

# The highest word of Philox's counter tells the streams apart; the lowest counts.
_PERMUTATION_STREAM = 1
_SAMPLE_STREAM = 2


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order of `num_samples` records: as stored (Caffe's order), or a new permutation each epoch."""

    num_samples: int
    seed: int = 0
    shuffled: bool = False


def sample_indices(order: SampleOrder, start: int, count: int) -> npt.NDArray[np.int64]:
    """Record numbers, int64 (count,), of the global samples [start, start + count).
    Cost: O(count), and one sort of N words at the first use of an epoch when shuffled."""
    assert order.num_samples > 0, order
    assert start >= 0, start
    assert count >= 0, count
    counters = np.arange(start, start + count, dtype=np.int64)
    epochs, positions = np.divmod(counters, order.num_samples)
    if not order.shuffled:
        return positions
    indices = np.empty(count, np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        indices[here] = permutation(order.num_samples, order.seed, int(epoch))[positions[here]]
    return indices


@lru_cache(maxsize=4)  # two data layers, each in a batch that spans two epochs
def permutation(num_samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """All of 0 .. num_samples - 1 in an order given by (seed, epoch); int64 (num_samples,), read-only.
    Cost: one sort; the last four are kept."""
    words = _philox(seed, epoch, _PERMUTATION_STREAM, 0).random_raw(num_samples)
    order = np.argsort(words, kind="stable").astype(np.int64, copy=False)
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class Portions:
    """The global samples that a rank reads: of every `period` samples its `parts`, each (first, count), in turn.
    `global_batch` counts the samples of all ranks together in one turn."""

    period: int
    parts: tuple[tuple[int, int], ...]
    global_batch: int

    def at(self, number: int) -> tuple[int, int]:
        """First sample and number of samples of the rank's `number`-th portion of the run."""
        turn, place = divmod(number, len(self.parts))
        first, count = self.parts[place]
        return turn * self.period + first, count


def batch_portions(group: Group, global_batch: int) -> Portions:
    """A rank's contiguous slice of every global batch."""
    return Portions(global_batch, (shares(global_batch, group.world_size)[group.rank],), global_batch)


def member_portions(group: Group, global_batch: int, index: int, num_samples: int) -> Portions:
    """As many samples as `batch_portions` gives a rank, but from all of the `num_samples` in turn.

    Members of a box come and go; each reads all samples, so that none is lost with a member. Member `index` is epochs
    ahead of those before it, and so has another shuffled order and other random choices. It also starts at another
    place of the epoch: multiples of the golden section, which are apart for any number of members.
    """
    count = shares(global_batch, group.world_size)[group.rank][1]
    start = int(num_samples * (index * _GOLDEN_SECTION % 1.0))
    ahead = _EPOCHS_APART * max(num_samples, 1)  # samples that layers make have no end, and differ between members too
    return Portions(count, ((index * ahead + start, count),), global_batch)


def slice_portions(global_batch: int, num_slices: int, own: tuple[int, int], num_batches: int) -> Portions:
    """The slices `own` of `num_slices` of each of `num_batches` global batches, slice by slice."""
    slices = shares(global_batch, num_slices)[slice(*own)]
    parts = ((batch * global_batch + first, count) for first, count in slices for batch in range(num_batches))
    return Portions(num_batches * global_batch, tuple(parts), global_batch)


def shares(global_batch: int, world_size: int) -> tuple[tuple[int, int], ...]:
    """(start, count) of each rank's contiguous slice of the global batch; counts differ by at most one.
    Raises: InputError if a rank would get no sample."""
    assert world_size > 0, world_size
    if global_batch < world_size:
        raise InputError(
            f"a global batch of {global_batch} samples cannot be shared by {world_size} workers: each needs "
            f"at least one. Use at most {max(global_batch, 1)} workers or a larger batch_size."
        )
    size, larger = divmod(global_batch, world_size)
    return tuple((rank * size + min(rank, larger), size + (rank < larger)) for rank in range(world_size))


def sample_draws(seed: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """Random words, uint64 (count, 4): row i is a function of (seed, start + i) alone."""
    words = _philox(seed, 0, _SAMPLE_STREAM, start).random_raw(count * DRAWS_PER_SAMPLE)
    return words.reshape(count, DRAWS_PER_SAMPLE)


def below(words: npt.NDArray[np.uint64], limit: int | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Map words evenly to 0 .. limit - 1 (to 2^-32 of a share). `limit`, one or one each, is below 2^31."""
    limits = np.asarray(limit, np.int64)
    assert ((limits > 0) & (limits < 2**31)).all(), limit
    return ((words >> np.uint64(32)) * limits.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _philox(seed: int, epoch: int, stream: int, start: int) -> np.random.Philox:
    key = np.array([seed % 2**64, epoch], np.uint64)
    return np.random.Philox(key=key, counter=np.array([start, 0, 0, stream], np.uint64))
