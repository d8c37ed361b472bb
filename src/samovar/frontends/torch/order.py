"""A rank's samples of an epoch. Parts are disjoint and complete, with the same number of batches wherever possible."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from math import ceil
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Subset

from samovar.collectives.engine import digest_number
from samovar.core.errors import InputError
from samovar.core.group import Group

_Item = TypeVar("_Item")


def rank_batches(order: Sequence[_Item], batch_size: int, drop_last: bool, group: Group) -> list[list[_Item]]:
    """This rank's batches of an epoch whose samples come in `order`.

    The k-th P * batch_size samples are the k-th batches of all ranks. The rest at the end is divided evenly, or left
    out with `drop_last`. If it is less than a sample per rank, the batch before is divided with it, so that all ranks
    take the same number of steps. Only if that batch has one sample too, some ranks take one step less.
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
    """The number of batches that `rank_batches` gives for `num_samples` samples."""
    num_whole, rest = divmod(num_samples, batch_size * group.world_size)
    if drop_last or not rest:
        return num_whole
    divided = batch_size > 1 and num_whole > 0
    return num_whole + int(divided or group.rank < rest)


@contextmanager
def seeded(seed: int, epoch: int) -> Iterator[int]:
    """A context in which the generators of Python, NumPy and torch start from (seed, epoch). Gives the number they use.

    Afterwards they continue as before. Samplers draw from one of them, or from a generator of their own.
    """
    start = start_of(seed, epoch)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(start)
        np.random.seed(start)
        torch.default_generator.manual_seed(start)  # torch.manual_seed would also seed those of devices
        try:
            yield start
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def start_of(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _share(items: Sequence[_Item], group: Group) -> list[_Item]:
    """Consecutive parts that differ by at most one item, the longer ones first."""
    size, longer = divmod(len(items), group.world_size)
    start = group.rank * size + min(group.rank, longer)
    return list(items[start : start + size + (group.rank < longer)])


_MOST_DRAWN = 1 << 24  # if a sampler's length is not more: it may have no end

# A divided loader keeps these settings, in addition to the data and their order.
_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


class Interleaved(IterableDataset[Any]):
    """Every P-th item of a stream; of each worker's stream if the loader has worker processes.

    Its attributes are the stream's, which a `worker_init_fn` reads and sets.
    """

    def __init__(self, dataset: Dataset[Any], group: Group) -> None:
        vars(self)["_own"] = dataset, group

    def __iter__(self) -> Iterator[Any]:
        dataset, group = self._own
        return islice(iter(dataset), group.rank, None, group.world_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_own":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._own[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own[0], name, value)


class StreamOrder:
    """The order of a stream. Its items are not known before they come, so those to skip are read and dropped.

    `generator` gives worker processes their seeds: the same on all ranks, so that their streams are the same.
    """

    def __init__(self, seed: int, generator: torch.Generator) -> None:
        self._seed, self._generator, self._num_skipped = seed, generator, 0

    def start(self, epoch: int, num_skipped: int) -> float:
        """Begin the epoch after its first batches. Gives 0, because there is no order to compare."""
        self._generator.manual_seed(start_of(self._seed, epoch))
        self._num_skipped = num_skipped
        return 0.0

    def left(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """The batches of this epoch that are left."""
        return islice(iter(loader), self._num_skipped, None)


class EpochOrder:
    """A rank's part of the order that a loader's sampler gives. `start` draws the same order on all ranks.

    `must_repeat` is set where ranks do not compare it, until the sampler has repeated one. `generator` gives worker
    processes their seeds, which differ between ranks.
    """

    no_stream: ClassVar[str] = ""  # why a stream cannot have such an order

    def __init__(
        self, loader: DataLoader[Any], group: Group, seed: int, generator: torch.Generator, batch_size: int | None
    ) -> None:
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        # Usual batches are cut again; batches that the user composes are dealt out as they are.
        self._batches = sampler if type(sampler) is BatchSampler else None
        self._batch_size = batch_size  # of a rank
        self._source: Any = sampler if self._batches is None else self._batches.sampler
        self._group = self._sharers = group
        self._seed, self._generator = seed, generator
        self._own: list[Any] = []
        self._chosen = _chosen(loader.dataset)
        self.must_repeat = False

    def start(self, epoch: int, num_skipped: int) -> float:
        """Draw the epoch's order, and leave this rank's first batches out. Gives a fingerprint of order and batch size.

        Raises InputError if the loader has batches, but not one of each rank, and if a sampler repeats no order.
        """
        order = self._order_of(epoch)
        if self._batches is None:
            self._own = order[self._sharers.rank :: self._sharers.world_size]
        else:
            self._own = rank_batches(order, self._size, self._batches.drop_last, self._sharers)
            if self._batches.drop_last and not self._own and len(order) >= self._size:
                raise InputError(
                    f"shard: {len(order):,} samples give no batch of {self._size:,} to each of "
                    f"{self._group.world_size} ranks, and drop_last leaves out what is less; give a smaller batch_size"
                )
        del self._own[:num_skipped]
        return self._fingerprint(order)

    def left(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """The batches of this epoch that are left. Those before are never read."""
        return iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)

    def __len__(self) -> int:
        group, size = self._sharers, len(self._source)
        if self._batches is None:
            return len(range(group.rank, size, group.world_size))
        return num_rank_batches(size, self._size, self._batches.drop_last, group)

    @property
    def _size(self) -> int:
        return self._batch_size or (0 if self._batches is None else self._batches.batch_size)

    def _fingerprint(self, order: list[Any]) -> float:
        return digest_number(repr((self._size, order, *self._chosen)))

    def _order_of(self, epoch: int) -> list[Any]:
        order = self._drawn(epoch)
        if self.must_repeat and repr(order) != repr(self._drawn(epoch)):
            raise InputError(
                f"shard: {type(self._source).__name__} gives an epoch another order each time, so workers would not "
                "divide the same one; let it draw from torch's, NumPy's or Python's numbers, or from its `generator`"
            )
        self.must_repeat = False
        return order

    def _drawn(self, epoch: int) -> list[Any]:
        """The epoch's samples, or whole batches, in order. Worker processes of this rank get their seeds too."""
        with seeded(self._seed, epoch) as start:
            for sampler in (self._source, getattr(self._source, "sampler", None)):  # it may compose another's samples
                if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
                    generator.manual_seed(start)
            most = max(_MOST_DRAWN, len(self._source) if hasattr(self._source, "__len__") else 0)
            order = list(islice(self._source, most + 1))
        if len(order) > most:
            raise InputError(f"shard: {type(self._source).__name__} gives more than {most:,} samples; let it end")
        self._generator.manual_seed(start_of(self._seed, epoch, self._group.rank))
        return order


class OnDemandOrder(EpochOrder):
    """The order of an epoch whose batches go to the ranks that ask for them. `take()` gives the next one's number."""

    no_stream = "shard: on_demand needs a data set with a length, and got a stream; leave it out"

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self._sharers = Group(0, 1)  # the batches are those of all ranks
        self.take: Callable[[], int] = count().__next__
        self._num_taken = 0

    def __iter__(self) -> Iterator[Any]:
        while (number := self.take()) < len(self._own):
            self._num_taken = number + 1
            yield self._own[number]

    def __len__(self) -> int:
        return ceil(super().__len__() / self._group.world_size)

    @property
    def part_taken(self) -> float:
        """The part of the epoch that ranks had taken when this one last took a batch."""
        return self._num_taken / max(1, len(self._own))


# Parts of an epoch: how many batches each rank took, of how many ranks.
Cuts: TypeAlias = Sequence[Sequence[int]]


class ElasticOrder(EpochOrder):
    """The order of an epoch that ranks divide again when they are others.

    They divide the epoch's samples without those that any rank took, also one that died with them. All ranks take the
    same number of batches, so fewer samples than ranks may be left over at the end.
    """

    no_stream = (
        "shard: a stream cannot be divided again when workers come and go; give a data set with a length, or divide "
        "the stream yourself by replica.rank and replica.world_size"
    )

    def start_after(self, epoch: int, cuts: Cuts) -> float:
        """Divide what is left of the epoch after these parts, as `start`. InputError if a sampler repeats no order."""
        left = self._order_of(epoch)
        fingerprint = self._fingerprint(left)
        for num_batches, world_size in cuts:
            left = self._left_after(left, num_batches, world_size)
        self._own = self._part_of(left, self._group)
        return fingerprint

    def regroup(self, group: Group) -> None:
        """From now on this is the order of that rank."""
        self._group = group

    def __len__(self) -> int:
        size, last = len(self._source), Group(self._group.world_size - 1, self._group.world_size)
        if self._batches is None:
            return size // last.world_size
        return num_rank_batches(size, self._size, self._batches.drop_last, last)

    def _part_of(self, order: Sequence[Any], group: Group) -> list[Any]:
        if self._batches is None:
            return list(order[group.rank : len(order) // group.world_size * group.world_size : group.world_size])
        settings = (self._size, self._batches.drop_last)
        least = num_rank_batches(len(order), *settings, Group(group.world_size - 1, group.world_size))
        return rank_batches(order, *settings, group)[:least]

    def _left_after(self, order: list[Any], num_batches: int, world_size: int) -> list[Any]:
        if self._batches is None:
            return order[num_batches * world_size :]
        parts = [self._part_of(order, Group(rank, world_size)) for rank in range(world_size)]
        num_divided = sum(len(batch) for part in parts for batch in part)
        late = [batch for batches in zip(*(part[num_batches:] for part in parts), strict=True) for batch in batches]
        return [sample for batch in late for sample in batch] + order[num_divided:]


def divided_loader(
    loader: DataLoader[Any],
    group: Group,
    seed: int,
    *,
    divides_batch: bool = False,
    must_repeat: bool = False,
    order_type: type[EpochOrder] = EpochOrder,
) -> tuple[DataLoader[Any], EpochOrder | StreamOrder]:
    """A loader of this rank's part, and the order to start before each epoch.

    With `divides_batch` the loader's batches are those of all ranks together, else those of each rank.
    The loader draws from its own generator, so an epoch that is resumed leaves torch's generator as it was saved.
    """
    _check(loader)
    size = _part_of_batch(loader, group) if divides_batch else loader.batch_size
    kept: dict[str, Any] = {name: getattr(loader, name) for name in _KEPT}
    generator = loader.generator if isinstance(loader.generator, torch.Generator) else torch.Generator()
    kept["generator"] = generator
    if isinstance(loader.dataset, IterableDataset):
        if order_type.no_stream:
            raise InputError(order_type.no_stream)
        stream = Interleaved(loader.dataset, group)
        return DataLoader(stream, batch_size=size, drop_last=loader.drop_last, **kept), StreamOrder(seed, generator)
    order = order_type(loader, group, seed, generator, size)
    order.must_repeat = must_repeat
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, batch_size=None, sampler=order, **kept), order
    return DataLoader(loader.dataset, batch_sampler=order, **kept), order


def _part_of_batch(loader: DataLoader[Any], group: Group) -> int:
    """The batch of each rank that shares the loader's; raises InputError if that cannot be divided evenly."""
    size = loader.batch_size
    if size is None:
        raise InputError(
            "shard: recipe='auto' divides batches, and this loader's sampler composes them itself; give batch_size, or "
            "recipe='none'"
        )
    if size % group.world_size:
        raise InputError(
            f"shard: recipe='auto' divides batches, and one of {size} samples has no equal parts for "
            f"{group.world_size} ranks; give a multiple of {group.world_size}, or recipe='none'"
        )
    return size // group.world_size


def _chosen(dataset: object) -> list[float]:
    """Digests of the samples that subsets take, such as parts by `random_split`: without a seed, ranks' differ."""
    found = list[float]()
    while isinstance(dataset, Subset):
        indices = dataset.indices.tolist() if hasattr(dataset.indices, "tolist") else list(dataset.indices)
        found.append(digest_number(repr(indices)))
        dataset = dataset.dataset
    return found


def _check(loader: object) -> None:
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"shard: got a {type(loader).__name__}; give a torch DataLoader, or divide the data yourself by "
            "replica.rank and replica.world_size"
        )
    if any(getattr(type(loader), name) is not getattr(DataLoader, name) for name in ("__iter__", "_get_iterator")):
        raise InputError(
            f"shard: {type(loader).__name__} iterates in its own way, which cannot be divided; use DataLoader"
        )
    samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None)
    if any(isinstance(sampler, DistributedSampler) for sampler in samplers):
        raise InputError("shard: the loader's DistributedSampler divides the data already; give the sampler it wraps")
