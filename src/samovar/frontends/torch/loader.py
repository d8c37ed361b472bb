"""A DataLoader's samples divided among ranks."""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset

from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.frontends.torch.order import deal, num_rank_batches, rank_batches, seeded

# What a loader keeps of the one it divides, besides its data and their order.
_KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")


class Interleaved(IterableDataset[Any]):
    """Every P-th item of a stream. Where a loader has worker processes, of each worker's stream."""

    def __init__(self, dataset: Dataset[Any], group: Group) -> None:
        self._dataset = dataset
        self._group = group

    def __iter__(self) -> Iterator[Any]:
        return deal(iter(self._dataset), self._group)


class EpochOrder:
    """A rank's part of what a loader's sampler gives; drawn anew, alike on all ranks, by `start`."""

    def __init__(self, loader: DataLoader[Any], group: Group, seed: int) -> None:
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        # The usual batches are cut anew; batches that the user composes are dealt out as they are.
        self._batches = sampler if type(sampler) is BatchSampler else None
        self._source: Any = sampler if self._batches is None else self._batches.sampler
        self._group = group
        self._seed = seed
        self._own: list[Any] = []

    def start(self, epoch: int) -> float:
        """Draw the epoch's order; a number that stands for all of it."""
        with seeded(self._seed, epoch) as start:
            generator = getattr(self._source, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(start)
            order = list(self._source)
        if self._batches is None:
            self._own = list(deal(order, self._group))
        else:
            self._own = rank_batches(order, self._batches.batch_size, self._batches.drop_last, self._group)
        return _fingerprint(order)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)

    def __len__(self) -> int:
        group, size = self._group, len(self._source)
        if self._batches is None:
            return len(range(group.rank, size, group.world_size))
        return num_rank_batches(size, self._batches.batch_size, self._batches.drop_last, group)


def divided_loader(loader: DataLoader[Any], group: Group, seed: int) -> tuple[DataLoader[Any], EpochOrder | None]:
    """A loader of this rank's part, and the order that must be started before each epoch (None for a stream)."""
    _check(loader)
    kept: dict[str, Any] = {name: getattr(loader, name) for name in _KEPT}
    kept |= {"collate_fn": loader.collate_fn, "persistent_workers": loader.persistent_workers}
    if isinstance(loader.dataset, IterableDataset):
        stream = Interleaved(loader.dataset, group)
        return DataLoader(stream, batch_size=loader.batch_size, drop_last=loader.drop_last, **kept), None
    order = EpochOrder(loader, group, seed)
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, batch_size=None, sampler=order, **kept), order
    return DataLoader(loader.dataset, batch_sampler=order, **kept), order


def _check(loader: object) -> None:
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"shard: got a {type(loader).__name__}; give a torch DataLoader, or divide the data yourself by "
            "replica.rank and replica.world_size"
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise InputError(
            f"shard: {type(loader).__name__} iterates in its own way, which cannot be divided; use DataLoader"
        )
    if isinstance(loader.sampler, DistributedSampler):
        raise InputError("shard: the loader's DistributedSampler divides the data already; give the sampler it wraps")


def _fingerprint(order: list[Any]) -> float:
    """48 bits of a hash, which a float64 holds exactly."""
    return float(int.from_bytes(hashlib.sha256(repr(order).encode()).digest()[:6], "big"))
