"""A replica that is saved in the middle of an epoch goes on with the next sample, and ends with the same bits."""

import io
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    get_worker_info,
)

from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.api.uneven_inputs import Leaving
from samovar.collectives.engine import PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.strategies.config import StrategyConfig
from samovar.transports.shm import ShmTransport, create_segment

SAMPLES, BATCH, EPOCHS = 26, 3, 3
STEPS_PER_EPOCH = 9  # the last batch has two samples
NUM_STOPS = 20


class Numbers(Dataset[torch.Tensor]):
    """Sample i holds i, and which samples were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        return torch.tensor([float(index)])

    def __len__(self) -> int:
        return SAMPLES


class Stream(IterableDataset[torch.Tensor]):
    """The same as a stream, which worker processes divide."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (torch.tensor([float(index)]) for index in range(first, SAMPLES, step))


class Run:
    """A process of a job: net with dropout, momentum, loader."""

    def __init__(self, kind: str, num_workers: int) -> None:
        self.segment = create_segment(1)
        self.transport = ShmTransport(self.segment, Group(0, 1), oversubscribed=False)
        team = ProcessGroup(PlannedCollectives(self.transport, lambda _num_bytes: "direct"), 60.0)
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-5, momentum=0.9)
        self.replica = Replica(self.model, self.optimizer, team, StrategyConfig(name="sync"), 60.0)
        self.data = Numbers()
        loader: DataLoader[Any]
        if kind == "map":
            loader = DataLoader(self.data, batch_size=BATCH, shuffle=True, num_workers=num_workers)
        else:
            loader = DataLoader(Stream(), batch_size=BATCH, num_workers=num_workers)
        self.shard = self.replica.shard(loader, seed=3)
        self.seen: list[tuple[int, list[int]]] = []

    def train(self, last_step: int | None = None) -> dict[int, dict[str, Any]]:
        """Train to the end, or until the process ends after `last_step` steps. Gives the states after each step."""
        states = {}
        for epoch in range(self.shard.epoch, EPOCHS):
            for x in self.shard:
                self.optimizer.zero_grad()
                self.replica.backward(self.model(x).square().mean())
                self.replica.step()
                self.seen.append((epoch, [int(value) for value in x.flatten()]))
                step = self.replica.step_count
                states[step] = {"replica": self.replica.state_dict(), "generator": torch.get_rng_state()}
                if step == last_step:
                    return states
        return states

    def resume(self, state: dict[str, Any]) -> None:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        read = torch.load(file, weights_only=True)
        self.replica.load_state_dict(read["replica"])
        torch.set_rng_state(read["generator"])

    def weights(self) -> list[bytes]:
        return [parameter.detach().numpy().tobytes() for parameter in self.model.parameters()]

    def close(self) -> None:
        self.replica.close()
        self.transport.close()
        os.close(self.segment)


@pytest.fixture
def runs() -> Iterator[Any]:
    made: list[Run] = []

    def make(kind: str, num_workers: int) -> Run:
        made.append(Run(kind, num_workers))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [("map", 0), ("stream", 0), *(pytest.param(kind, 2, marks=pytest.mark.slow) for kind in ("map", "stream"))],
)
def test_every_sample_comes_once_and_the_bits_are_the_same(runs: Any, kind: str, num_workers: int) -> None:
    whole = runs(kind, num_workers)
    states = whole.train()
    for epoch in range(EPOCHS):
        samples = [sample for of, batch in whole.seen if of == epoch for sample in batch]
        assert sorted(samples) == list(range(SAMPLES))
    for step in sorted(random.Random(num_workers).sample(sorted(states), NUM_STOPS)):
        resumed = runs(kind, num_workers)
        resumed.resume(states[step])
        resumed.train()
        assert whole.seen[:step] + resumed.seen == whole.seen, step
        assert resumed.weights() == whole.weights(), step


def test_samples_before_the_place_are_not_read_again(runs: Any) -> None:
    first, second = runs("map", 0), runs("map", 0)
    second.resume(first.train(STEPS_PER_EPOCH + 4)[STEPS_PER_EPOCH + 4])
    next(iter(second.shard))
    assert len(second.data.read) == BATCH


def test_a_state_that_is_loaded_is_saved_again_as_it_was(runs: Any) -> None:
    first, second = runs("map", 0), runs("map", 0)
    state = first.train(STEPS_PER_EPOCH + 4)[STEPS_PER_EPOCH + 4]
    second.resume(state)
    saved = second.replica.state_dict()
    assert (saved["epochs"], saved["batches"]) == ([2], [4])
    assert second.shard.epoch == 1


def test_a_loop_that_was_left_begins_the_next_epoch(runs: Any) -> None:
    run = runs("map", 0)
    for _ in run.shard:
        break
    state = run.replica.state_dict()
    assert (state["epochs"], state["batches"]) == ([1], [0])


def test_a_shard_that_is_made_after_the_state_was_loaded_takes_its_place(runs: Any) -> None:
    first, second = runs("map", 0), runs("map", 0)
    state = first.train(4)[4]
    state["replica"]["epochs"].append(1)
    state["replica"]["batches"].append(5)
    state["replica"]["marks"].append(0.0)  # not known
    second.resume(state)
    shard = second.replica.shard(DataLoader(Numbers(), batch_size=BATCH))
    assert (shard.epoch, len(list(shard))) == (0, STEPS_PER_EPOCH - 5)


def test_a_loader_that_is_made_in_each_epoch_gives_other_orders(team: ProcessGroup) -> None:
    model = nn.Linear(1, 1)
    replica = Replica(model, torch.optim.SGD(model.parameters(), lr=0.1), team, StrategyConfig(), 5.0)
    data = TensorDataset(torch.arange(64.0))

    def order(loader: DataLoader[Any]) -> list[float]:
        return [float(x) for (x,) in replica.shard(loader)]

    loader: Any = DataLoader(data, batch_size=1, shuffle=True)
    orders = [order(loader), order(loader)]
    orders += [order(DataLoader(data, batch_size=1, shuffle=True)) for _ in range(3)]
    assert len(set(map(tuple, orders))) == 5
    assert replica.shard(loader) is replica.shard(loader)
    replica.close()


def test_with_another_number_of_ranks_the_next_epoch_begins(runs: Any) -> None:
    first, second = runs("map", 0), runs("map", 0)
    state = first.train(4)[4]
    state["replica"] |= {"world_size": 2, "center": None}
    second.resume(state)
    assert second.shard.epoch == 1


class Shuffled(Sampler[int]):
    """Its own numbers give each epoch another order."""

    def __init__(self) -> None:
        self._own = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self._own.sample(range(SAMPLES), SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


class Pairs(BatchSampler):
    """A batch sampler of the user's own."""


def loaders(kind: str, batch_size: int = BATCH) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    given: dict[str, Any] = {
        "sampler": {"batch_size": batch_size, "sampler": Shuffled()},
        "shuffled": {"batch_size": batch_size, "shuffle": True},
        "composed": {"batch_sampler": BatchSampler(RandomSampler(range(SAMPLES)), batch_size, False)},
        "pairs": {"batch_sampler": Pairs(RandomSampler(range(SAMPLES), generator=generator), batch_size, False)},
    }
    return DataLoader(Stream(), batch_size=batch_size) if kind == "stream" else DataLoader(Numbers(), **given[kind])


def epochs(
    team: ProcessGroup, loader: DataLoader[Any], state: dict[str, Any] | None = None
) -> tuple[list[list[int]], dict[str, Any]]:
    """The batches of two epochs, or what is left of them, and the state after two batches of the second one."""
    model = nn.Linear(1, 1)
    with Replica(model, torch.optim.SGD(model.parameters(), lr=0.1), team, StrategyConfig(), 5.0) as replica:
        if state is not None:
            replica.load_state_dict(state)
        shard, seen = replica.shard(loader), []
        while shard.epoch < 2:
            for number, batch in enumerate(shard):
                seen.append([int(value) for value in batch.flatten()])
                if state is None and (shard.epoch, number) == (2, 1):
                    saved = replica.state_dict()
    return seen, saved if state is None else state


@pytest.mark.parametrize("kind", ["shuffled", "pairs", "composed", "stream"])
def test_samples_that_are_left_are_those_of_the_run_that_was_saved(team: ProcessGroup, kind: str) -> None:
    whole, state = epochs(team, loaders(kind))
    assert epochs(team, loaders(kind), state)[0] == whole[STEPS_PER_EPOCH + 2 :]
    del state["marks"]  # as earlier versions saved it
    assert epochs(team, loaders(kind), state)[0] == whole[STEPS_PER_EPOCH + 2 :]


@pytest.mark.parametrize(
    ("kind", "batch_size"), [("sampler", BATCH), ("shuffled", 8), ("pairs", 8), ("composed", 8), ("stream", 8)]
)
def test_an_epoch_does_not_go_on_with_other_batches(team: ProcessGroup, kind: str, batch_size: int) -> None:
    _, state = epochs(team, loaders(kind))
    with pytest.raises(InputError, match="this epoch began with batches of another order or size than here"):
        epochs(team, loaders(kind, batch_size), state)


def test_a_rank_without_data_waits_as_long_as_the_others_may_take_to_an_exchange(
    team: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s = []

    def shadow(deadline: Callable[[], Deadline]) -> Leaving:
        waits_s.append(deadline().remaining_s())
        return Leaving.ALL

    monkeypatch.setattr(team.uneven, "shadow", shadow)
    model = nn.Linear(3, 2)
    replica = Replica(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        team,
        StrategyConfig(name="local-sgd", sync_period_steps=40),
        5.0,
    )
    list(replica.shard(DataLoader(TensorDataset(torch.ones(4)))))
    assert 100.0 < waits_s[0] <= 40 * team.timeout_s
