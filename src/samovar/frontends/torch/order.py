"""Which samples a rank takes in an epoch: disjoint, complete, and in the same number of batches wherever possible."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

from samovar.core.group import Group

_Item = TypeVar("_Item")


def rank_batches(order: Sequence[_Item], batch_size: int, drop_last: bool, group: Group) -> list[list[_Item]]:
    """This rank's batches of an epoch whose samples come in `order`.

    The k-th P * batch_size samples are the k-th batches of all ranks. What is left at the end (with `drop_last`: left
    out) is divided evenly; where it is less than a sample per rank, the batch before is divided with it, so that all
    ranks take the same number of steps. Only where that batch has one sample too, some ranks take one step less.
    """
    whole = batch_size * group.world_size
    num_whole, rest = divmod(len(order), whole)
    blocks = [order[k * whole : (k + 1) * whole] for k in range(num_whole)]
    batches = [_share(block, group) for block in blocks]
    if drop_last or not rest:
        return batches
    remainder = order[num_whole * whole :]
    if rest < group.world_size and batch_size > 1 and batches:
        last = _share([*blocks[-1], *remainder], group)
        batches[-1:] = [last[:-1], last[-1:]] if len(last) <= batch_size else [last[:batch_size], last[batch_size:]]
        return batches
    share = _share(remainder, group)
    return [*batches, share] if share else batches


def num_rank_batches(num_samples: int, batch_size: int, drop_last: bool, group: Group) -> int:
    """How many batches `rank_batches` gives for that many samples."""
    num_whole, rest = divmod(num_samples, batch_size * group.world_size)
    if drop_last or not rest:
        return num_whole
    divided = batch_size > 1 and num_whole > 0
    return num_whole + int(divided or group.rank < rest)


def deal(items: Iterable[_Item], group: Group) -> Iterator[_Item]:
    """Every P-th item, beginning with the rank's own number."""
    for index, item in enumerate(items):
        if index % group.world_size == group.rank:
            yield item


@contextmanager
def seeded(seed: int, epoch: int) -> Iterator[int]:
    """Python's, NumPy's and torch's generators start from (seed, epoch), and go on as before afterwards.

    Gives the number they start from. DataLoader samplers draw from one of them, or from a generator of their own.
    """
    start = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(start)
        np.random.seed(start)
        torch.manual_seed(start)
        try:
            yield start
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def _share(items: Sequence[_Item], group: Group) -> list[_Item]:
    """Consecutive parts that differ by at most one item, the longer ones first."""
    size, longer = divmod(len(items), group.world_size)
    start = group.rank * size + min(group.rank, longer)
    return list(items[start : start + size + (group.rank < longer)])
