"""How samples are divided among ranks."""

import pickle
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.frontends.torch.order import (
    ElasticOrder,
    EpochOrder,
    divided_loader,
    num_rank_batches,
    rank_batches,
    seeded,
)

NUMBERS = TensorDataset(torch.arange(21))


def parts(num_samples: int, batch_size: int, drop_last: bool, world_size: int) -> list[list[list[int]]]:
    groups = [Group(rank, world_size) for rank in range(world_size)]
    return [rank_batches(range(num_samples), batch_size, drop_last, group) for group in groups]


@given(st.integers(0, 200), st.integers(1, 12), st.booleans(), st.integers(1, 6))
def test_parts_are_disjoint_complete_and_of_equal_length(
    num_samples: int, batch_size: int, drop_last: bool, world_size: int
) -> None:
    ranks = parts(num_samples, batch_size, drop_last, world_size)
    taken = sorted(sample for batches in ranks for batch in batches for sample in batch)
    whole = num_samples - num_samples % (batch_size * world_size)
    assert taken == list(range(whole if drop_last else num_samples))
    sizes = [len(batch) for batches in ranks for batch in batches]
    assert all(1 <= size <= batch_size for size in sizes)
    lengths = {len(batches) for batches in ranks}
    uneven = batch_size == 1 or num_samples < world_size
    assert max(lengths) - min(lengths) <= (1 if uneven else 0)
    wanted = [num_rank_batches(num_samples, batch_size, drop_last, Group(r, world_size)) for r in range(world_size)]
    assert [len(batches) for batches in ranks] == wanted


def test_a_step_of_all_ranks_takes_consecutive_samples() -> None:
    first, second = parts(13, 3, False, 2)
    # The last block of 6 and the sample left over are divided again: 7 samples, 4 and 3, in two steps.
    assert first == [[0, 1, 2], [6, 7, 8], [9]]
    assert second == [[3, 4, 5], [10, 11], [12]]


def epochs(loader: DataLoader[object], world_size: int, count: int, seed: int = 0) -> list[list[list[int]]]:
    """The samples of each rank, epoch by epoch."""
    result = []
    for epoch in range(count):
        ranks = []
        for rank in range(world_size):
            own, order = divided_loader(loader, Group(rank, world_size), seed)
            order.start(epoch, 0)
            ranks.append([int(sample) for (part,) in own for sample in part.flatten()])
        result.append(ranks)
    return result


SAMPLERS = {
    "shuffled": lambda: DataLoader(NUMBERS, batch_size=4, shuffle=True),
    "with a generator": lambda: DataLoader(
        NUMBERS, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(random.randrange(1 << 30))
    ),
    "weighted": lambda: DataLoader(NUMBERS, batch_size=4, sampler=WeightedRandomSampler([1.0] * 21, 21, False)),
    "drawn one by one": lambda: DataLoader(NUMBERS, batch_size=None, sampler=RandomSampler(NUMBERS)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_sampler_is_divided_by_seed_and_epoch(name: str) -> None:
    first, second = epochs(SAMPLERS[name](), 3, 2)
    for ranks in (first, second):
        assert sorted(chain.from_iterable(ranks)) == list(range(21))
    assert first != second
    assert epochs(SAMPLERS[name](), 3, 2) == [first, second]
    assert epochs(SAMPLERS[name](), 3, 2, seed=1) != [first, second]


def test_an_order_that_is_not_random_is_kept() -> None:
    ((first, second),) = epochs(DataLoader(NUMBERS, batch_size=5), 2, 1)
    assert first[:5] == [0, 1, 2, 3, 4]
    assert second[:5] == [5, 6, 7, 8, 9]


class Pairs(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 20], [1, 19], [2, 18]])

    def __len__(self) -> int:
        return 3


def test_batches_that_the_user_composes_are_dealt_out_whole() -> None:
    ((first, second),) = epochs(DataLoader(NUMBERS, batch_sampler=Pairs()), 2, 1)
    assert (first, second) == ([0, 20, 2, 18], [1, 19])
    own, _ = divided_loader(DataLoader(NUMBERS, batch_sampler=Pairs()), Group(1, 2), 0)
    assert len(own) == 1


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_is_dealt_item_by_item(num_workers: int) -> None:
    loader: DataLoader[int] = DataLoader(Stream(), batch_size=2, num_workers=num_workers)
    own = [divided_loader(loader, Group(rank, 3), 0)[0] for rank in range(3)]
    assert [[batch.tolist() for batch in part] for part in own] == [[[0, 3], [6]], [[1, 4]], [[2, 5]]]


def test_what_the_loader_does_with_samples_is_kept() -> None:
    loader: DataLoader[object] = DataLoader(NUMBERS, batch_size=2, collate_fn=len, drop_last=True)
    own, order = divided_loader(loader, Group(0, 2), 0)
    order.start(0, 0)
    assert list(own) == [2] * 5
    assert len(own) == 5


def test_drawing_an_order_leaves_the_generators_as_they_were() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    wanted = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    with seeded(5, 1):
        inside = torch.rand(1), random.random(), np.random.rand()
    assert (torch.rand(1), random.random(), np.random.rand()) == wanted
    assert inside != wanted


def test_drawing_an_order_leaves_the_generators_of_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(5, 1):
        pass
    assert not seeds


class Range(IterableDataset[int]):
    """The stream of torch's own example, whose workers take a part each."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def take_half(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    stream: Any = info.dataset
    start, half = stream.start, (stream.end - stream.start) // 2
    stream.start, stream.end = start + worker * half, start + (worker + 1) * half


def test_workers_of_a_loader_divide_a_stream_themselves() -> None:
    loader: DataLoader[int] = DataLoader(Range(0, 8), batch_size=None, num_workers=2, worker_init_fn=take_half)
    loaders = [divided_loader(loader, Group(rank, 2), 0)[0] for rank in range(2)]
    assert sorted(chain(*map(list, loaders))) == list(range(8))
    copied: Any = pickle.loads(pickle.dumps(loaders[1].dataset))
    assert (copied.end, list(copied)) == (8, [1, 3, 5, 7])


class OwnWay(DataLoader[object]):
    def __iter__(self):
        return iter([])


class OwnIterator(DataLoader[object]):
    """As loaders of graphs: what worker processes give is only a part of a batch."""

    def _get_iterator(self) -> Any:
        return map(str, super()._get_iterator())


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ([1, 2], "give a torch DataLoader"),
        (OwnWay(NUMBERS), "iterates in its own way"),
        (OwnIterator(NUMBERS), "iterates in its own way"),
        (DataLoader(NUMBERS, sampler=DistributedSampler(NUMBERS, 2, 0)), "divides the data already"),
        (
            DataLoader(NUMBERS, batch_sampler=BatchSampler(DistributedSampler(NUMBERS, 2, 0), 4, False)),
            "divides the data already",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(loader: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        divided_loader(loader, Group(0, 2), 0)  # type: ignore[arg-type]


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(int, 1)


def test_a_sampler_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samovar.frontends.torch.order._MOST_DRAWN", 100)
    loader: DataLoader[object] = DataLoader(NUMBERS, sampler=Endless())
    with pytest.raises(InputError, match="Endless gives more than 100 samples"):
        divided_loader(loader, Group(0, 2), 0)[1].start(0, 0)


def test_an_epoch_of_which_drop_last_leaves_nothing_is_refused() -> None:
    loader: DataLoader[object] = DataLoader(NUMBERS, batch_size=11, drop_last=True)
    with pytest.raises(InputError, match="21 samples give no batch of 11 to each of 2 ranks"):
        divided_loader(loader, Group(0, 2), 0)[1].start(0, 0)
    assert epochs(DataLoader(NUMBERS, batch_size=22, drop_last=True), 2, 1) == [[[], []]]


def test_the_settings_of_the_loader_are_kept() -> None:
    generator = torch.Generator()
    loader: DataLoader[object] = DataLoader(
        NUMBERS, batch_size=2, num_workers=2, in_order=False, generator=generator, timeout=9, prefetch_factor=3
    )
    own, _ = divided_loader(loader, Group(0, 2), 0)
    assert own.generator is generator
    assert (own.in_order, own.timeout, own.prefetch_factor, own.num_workers) == (False, 9, 3, 2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_pass_leaves_torchs_generator_as_it_was(num_workers: int) -> None:
    own, order = divided_loader(DataLoader(NUMBERS, batch_size=2, num_workers=num_workers), Group(0, 1), 0)
    order.start(0, 0)
    before = torch.get_rng_state()
    assert len(list(order.left(own))) == len(own)
    assert torch.equal(torch.get_rng_state(), before)


def elastic_epoch(
    loader: DataLoader[Any], parts: Sequence[tuple[int, int]], epoch: int = 0
) -> tuple[list[list[int]], int]:
    """The batches of all ranks in these parts (steps, ranks) of an epoch, and how many the last rank has left."""
    taken: list[list[int]] = []
    cuts: list[tuple[int, int]] = []
    num_left = 0
    for num_steps, world_size in parts:
        for rank in range(world_size):
            divided, order = divided_loader(loader, Group(rank, world_size), 0, order_type=ElasticOrder)
            assert isinstance(order, ElasticOrder)
            order.start_after(epoch, cuts)
            batches = [batch.tolist() for batch in divided]
            taken += batches[:num_steps]
            num_left = len(batches) - num_steps
        cuts.append((num_steps, world_size))
    return taken, num_left


@pytest.mark.parametrize("batch_size", [1, 4, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_what_is_left_of_an_epoch_is_divided_again(batch_size: int, drop_last: bool) -> None:
    """Ranks change in number; no sample comes twice, and at the end fewer than a batch for each rank are left."""
    loader = DataLoader(
        TensorDataset(torch.arange(211)), batch_size, shuffle=True, drop_last=drop_last, collate_fn=_flat
    )
    last = 3
    taken, num_left = elastic_epoch(loader, [(2, 4), (1, 5), (3, 2), (10_000, last)])
    samples = [sample for batch in taken for sample in batch]
    assert len(samples) == len(set(samples))
    assert len(samples) > 211 - last * (batch_size if drop_last else 1)
    assert num_left < 0


def test_all_ranks_of_an_elastic_epoch_take_equal_numbers_of_batches() -> None:
    for size in range(30, 60):
        loader = DataLoader(TensorDataset(torch.arange(size)), 3, collate_fn=_flat)
        counts = set()
        for rank in range(4):
            divided, order = divided_loader(loader, Group(rank, 4), 0, order_type=ElasticOrder)
            assert isinstance(order, ElasticOrder)
            order.start_after(0, [(1, 3)])
            counts.add(sum(1 for _ in divided))
        assert len(counts) == 1


class Restless(Sampler[int]):
    """A sampler with numbers of its own, which nobody seeds."""

    def __init__(self) -> None:
        self._own = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self._own.sample(range(21), 21))

    def __len__(self) -> int:
        return 21


@pytest.mark.parametrize("order_type", [EpochOrder, ElasticOrder])
def test_ranks_that_do_not_compare_an_order_refuse_a_sampler_that_repeats_none(order_type: type[EpochOrder]) -> None:
    loader = DataLoader(NUMBERS, 4, sampler=Restless())
    _, order = divided_loader(loader, Group(0, 2), 0, must_repeat=True, order_type=order_type)
    with pytest.raises(InputError, match="Restless gives an epoch another order each time"):
        order.start_after(0, []) if isinstance(order, ElasticOrder) else order.start(0, 0)


def _flat(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([sample for (sample,) in samples])
