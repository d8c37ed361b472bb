"""Each rule of workers at a center is its definition: in float64, in the order in which the center took updates."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from samovar.box.window_center import WindowCenter
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from tests.unit.strategies import center_references as references
from tests.unit.strategies.center_harness import (
    AT_THE_END,
    CHUNK_ELEMENTS,
    START,
    Event,
    Work,
    Worked,
    in_order,
    on_box,
    on_shm,
    on_sim,
)
from tests.unit.strategies.harness import NUM_ELEMENTS, RATE
from tests.unit.strategies.test_definitions import distance, gradient

NUM_STEPS = 11  # no multiple of any period below
TOLERANCE = 1e-5  # of float32 in any order of updates; with momentum at the center some orders come to 1.3e-6
CONFIGS = {
    "async-sgd": StrategyConfig("async-sgd"),
    "async-sgd every third step": StrategyConfig("async-sgd", sync_period_steps=3),
    "async-msgd": StrategyConfig("async-msgd", center_momentum=0.8),
    "async-msgd ahead": StrategyConfig("async-msgd", center_momentum=0.8, look_ahead=True, sync_period_steps=2),
    "round-robin-easgd": StrategyConfig("round-robin-easgd", sync_period_steps=2, moving_rate=0.3),
    "async-easgd": StrategyConfig("async-easgd", sync_period_steps=2, moving_rate=0.3),
    "async-measgd": StrategyConfig("async-measgd", sync_period_steps=3),
    "async-easgd behind": StrategyConfig("async-easgd", sync_period_steps=2, moving_rate=0.3, overlap="period"),
    "async-measgd behind": StrategyConfig("async-measgd", sync_period_steps=1, overlap="period"),
    **{
        f"{name}, workers go further": StrategyConfig(name, sync_period_steps=1, moving_rate=0.1, worker_rate=0.5)
        for name in ("async-easgd", "shm-easgd", "hybrid-easgd")
    },
    "async-easgd behind, further": StrategyConfig("async-easgd", overlap="period", worker_rate=0.5),
    "shm-easgd bounded, further": StrategyConfig("shm-easgd", moving_rate=0.1, max_staleness_steps=0, worker_rate=0.5),
    "shm-easgd": StrategyConfig("shm-easgd", sync_period_steps=2, moving_rate=0.1),
    "shm-easgd read first": StrategyConfig("shm-easgd", sync_period_steps=1, moving_rate=0.1, read_first=True),
    "shm-easgd bounded": StrategyConfig("shm-easgd", sync_period_steps=1, moving_rate=0.1, max_staleness_steps=0),
    "hybrid-easgd": StrategyConfig("hybrid-easgd", sync_period_steps=2, moving_rate=0.15, group_size=2),
    "hybrid-easgd of one group": StrategyConfig("hybrid-easgd", sync_period_steps=1, moving_rate=0.3, group_size=4),
}
WITHOUT_LOCKS = {
    "hogwild-sgd": StrategyConfig("hogwild-sgd", sync_period_steps=2),
    "hogwild-easgd": StrategyConfig("hogwild-easgd", sync_period_steps=2, moving_rate=0.3),
}
WORLD_SIZE = 4
NUM_CHUNKS = -(-NUM_ELEMENTS // CHUNK_ELEMENTS)


class ByBytes(WindowCenter):
    """Notes what each chunk held before and after: where nothing orders updates, each still has what it began from."""

    num_steps: int

    def __init__(self, events: list[Event], *args, **settings) -> None:
        super().__init__(*args, **settings)
        self._events = events

    def _read(self, offset, destination, deadline):
        versions = super()._read(offset, destination, deadline)
        for _, part in self._parts():
            self._note("read", part, destination[part], destination[part])
        return versions

    def _update(self, lane, sequence, deadline, change):
        def noted(part, center):
            before = center.copy()
            change(part, center)
            self._note("exchange", part, before, center)

        return super()._update(lane, sequence, deadline, noted)

    def _note(self, kind, part, seen, made):
        chunk = part.start // CHUNK_ELEMENTS
        self._events.append(Event(kind, chunk, self._rank, self.num_steps, seen.tobytes(), made.tobytes()))


def part_of(chunk: int) -> slice:
    return slice(chunk * CHUNK_ELEMENTS, min((chunk + 1) * CHUNK_ELEMENTS, NUM_ELEMENTS))


def start_of(chunk: int) -> np.ndarray:
    return START[part_of(chunk)].astype(float)


def own_step(group_size: int, rank: int, chunk: int, step: int, x: np.ndarray) -> np.ndarray:
    """The mean gradient of the worker's group; each element's depends on that element alone."""
    whole = np.zeros(NUM_ELEMENTS)
    whole[part_of(chunk)] = x
    gradients = [gradient(rank + member, step, whole) for member in range(group_size)]
    return x - RATE * np.mean(gradients, axis=0)[part_of(chunk)]


def assert_is_reference(workers: list[Worked], config: StrategyConfig, events: list[Event]) -> references.Center:
    """Every worker after every exchange; gives the center, for what it became."""
    config = resolved(config, len(workers))
    group_size = config.group_size or 1
    wanted = references.Workers(start_of, partial(own_step, group_size))
    first = {chunk: START[part_of(chunk)].tobytes() for chunk in range(NUM_CHUNKS)}
    center = references.Center({(chunk, name): start_of(chunk) for chunk in first for name in (0, first[chunk])})
    rule_of(config)([event for event in events if event.num_steps != AT_THE_END], wanted, center)
    period, leaders = config.sync_period_steps, range(0, len(workers), group_size)
    due = {(leader, num_steps) for leader in leaders for num_steps in range(period, NUM_STEPS + 1, period)}
    assert {(rank, num_steps) for rank, _, num_steps in wanted.met if num_steps} == due
    for (rank, chunk, num_steps), x in wanted.met.items():
        for member in range(rank, rank + group_size if num_steps else rank):  # what it began with is not traced
            ours = workers[member].trace[num_steps - 1][part_of(chunk)]
            assert distance(ours, x) < TOLERANCE, (member, chunk, num_steps)
    return center


def rule_of(config: StrategyConfig) -> Callable[[list[Event], references.Workers, references.Center], None]:
    if config.name in ("async-sgd", "async-msgd", "hogwild-sgd"):
        ahead = WORLD_SIZE if config.look_ahead else 0
        return partial(references.async_sgd, momentum=config.center_momentum or 0.0, steps_ahead=ahead)
    own = config.worker_rate or config.moving_rate
    if config.overlap == "period":
        return partial(references.behind, rate=config.moving_rate, own=own)
    pushes = config.name in ("shm-easgd", "hybrid-easgd")
    return partial(references.pushed if pushes else references.one_by_one, rate=config.moving_rate, own=own)


def assert_is_in_order_of_versions(workers: list[Worked], config: StrategyConfig) -> None:
    center = assert_is_reference(workers, config, in_order(workers))
    for chunk in range(NUM_CHUNKS):
        assert distance(workers[0].center[part_of(chunk)], center.last[chunk]) < TOLERANCE, chunk


@pytest.mark.parametrize("run", [on_shm, on_box])
@pytest.mark.parametrize("name", CONFIGS)
def test_among_threads_weights_and_center_are_those_of_the_float64_rule(
    name: str, run: Callable[[Work, int], list[Worked]]
) -> None:
    assert_is_in_order_of_versions(run(Work(CONFIGS[name], gradient, NUM_STEPS), WORLD_SIZE), CONFIGS[name])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CONFIGS)
def test_on_sim_weights_and_center_are_those_of_the_float64_rule(name: str, seed: int) -> None:
    assert_is_in_order_of_versions(on_sim(Work(CONFIGS[name], gradient, NUM_STEPS, seed), WORLD_SIZE), CONFIGS[name])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WITHOUT_LOCKS)
def test_without_locks_each_update_is_the_rule_on_what_it_read(name: str, seed: int) -> None:
    """Updates at the same time overwrite each other; a chunk becomes c + d of an earlier c."""
    events: list[Event] = []
    job = Work(WITHOUT_LOCKS[name], gradient, NUM_STEPS, seed, START, partial(ByBytes, events), 0.0)
    workers = on_sim(job, WORLD_SIZE)
    center = assert_is_reference(workers, job.config, events)
    for chunk in range(NUM_CHUNKS):
        ours = workers[0].center[part_of(chunk)]
        assert distance(ours, center.held[chunk, ours.tobytes()]) < TOLERANCE, chunk


def test_without_locks_some_updates_are_lost() -> None:
    """Of one chunk's updates two began from the same bytes."""
    events: list[Event] = []
    on_sim(
        Work(WITHOUT_LOCKS["hogwild-easgd"], gradient, NUM_STEPS, 0, START, partial(ByBytes, events), 0.0), WORLD_SIZE
    )
    begun_from = [(event.chunk, event.seen) for event in events if event.kind == "exchange"]
    assert len(set(begun_from)) < len(begun_from)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_round_robin_gives_the_same_bits_in_every_run_over_every_transport(world_size: int) -> None:
    job = Work(CONFIGS["round-robin-easgd"], gradient, NUM_STEPS)
    runs = [on_shm(job, world_size), on_shm(job, world_size), on_box(job, world_size)]
    runs += [on_sim(replace(job, seed=seed), world_size) for seed in range(4)]
    bits = [[(one.weights.tobytes(), one.center.tobytes()) for one in run] for run in runs]
    assert all(each == bits[0] for each in bits)
    order = [event.rank for event in in_order(runs[0]) if event.kind == "exchange"]
    assert order == [*range(world_size)] * (len(order) // world_size)


@pytest.mark.parametrize("first_part", [1, 2, 5])
def test_a_resumed_round_robin_goes_on_with_the_same_bits(first_part: int) -> None:
    job = Work(CONFIGS["round-robin-easgd"], gradient, NUM_STEPS)
    whole = on_shm(job, 3)
    stopped = on_shm(replace(job, num_steps=first_part), 3)
    resumed = on_shm(replace(job, first_step=first_part, resumed=tuple(stopped)), 3)
    assert [one.weights.tobytes() for one in resumed] == [one.weights.tobytes() for one in whole]
    assert resumed[0].center.tobytes() == whole[0].center.tobytes()


@pytest.mark.parametrize("reads_first", [False, True])
def test_the_center_is_read_with_the_own_last_push_in_it_unless_it_is_read_first(reads_first: bool) -> None:
    config = StrategyConfig("shm-easgd", sync_period_steps=1, moving_rate=0.1, read_first=reads_first)
    workers = on_sim(Work(config, gradient, NUM_STEPS, longest_step_s=0.0), WORLD_SIZE)
    of_chunk = [[event for event in worker.events if event.chunk == 0] for worker in workers]
    reads = [[event.seen for event in events if event.kind == "read"] for events in of_chunk]
    pushes = [[event.made for event in events if event.kind == "update"] for events in of_chunk]
    pairs = [pair for one, other in zip(reads, pushes, strict=True) for pair in zip(one[1:], other, strict=False)]
    assert len(pairs) > WORLD_SIZE * (NUM_STEPS - 2)
    assert any(seen < made for seen, made in pairs) == reads_first


def test_workers_of_a_group_have_the_same_bits_and_groups_differ() -> None:
    workers = on_shm(Work(CONFIGS["hybrid-easgd"], gradient, NUM_STEPS), WORLD_SIZE)
    traces = [[x.tobytes() for x in one.trace] for one in workers]
    assert traces[0] == traces[1]
    assert traces[2] == traces[3]
    assert traces[0] != traces[2]
    assert [one.strategy.num_updates for one in workers] == [5, 0, 5, 0]
