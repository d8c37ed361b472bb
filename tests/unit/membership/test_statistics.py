"""The statistics of a worker's layers (BatchNorm), when its process has died and another one continues."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from samovar.box.mapped import MappedCenter, create_center
from samovar.collectives.engine import PlannedCollectives
from samovar.core.buffer import FlatBuffer
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.layout import Layout, ParameterSpec
from samovar.membership import statistics
from samovar.membership.statistics import NUM_MARKS, ShownStatistics, SummedStatistics
from samovar.training.evaluation import CenterWeights, StatisticViews
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport, create_segment
from tests.threads import on_threads

LAYOUT = Layout.pack([ParameterSpec("weight", (20,)), ParameterSpec("mean", (3,), is_learned=False)])


class Memory:
    """The memory that stays when processes die: a segment of `workers`, and a center."""

    def __init__(self, workers: int = 1, *, is_apart: bool = False) -> None:
        """`is_apart`: the weights are not those that the host knows without a wait."""
        self.workers, self.is_apart = workers, is_apart
        self.segment, self.center = create_segment(workers), create_center(LAYOUT.num_elements, workers)
        self._dead: list[tuple[ShmTransport, ShownStatistics]] = []

    @contextmanager
    def life(self, is_back: bool, rank: int = 0) -> Iterator[tuple[CenterWeights, np.ndarray]]:
        """A process of a worker, whose layers start with a mean of 7. It dies: it gives no window back."""
        transport = ShmTransport(self.segment, Group(rank, self.workers), oversubscribed=True, is_back=is_back)
        weights = FlatBuffer.zeros(LAYOUT)
        mean = weights.view("mean").numpy()
        mean[:] = 7.0
        region = Region.of(transport.open_window("statistics", 4 * (3 + NUM_MARKS), 0), 0, 3 + NUM_MARKS, np.float32)
        views, shown = StatisticViews(weights, ["mean"]), ShownStatistics(region, range(self.workers))
        with MappedCenter(self.center) as center:
            self.last = FlatBuffer.zeros(LAYOUT) if self.is_apart else weights
            yield CenterWeights(center, False, weights, self.last, views, shown, lambda: Deadline.after(10)), mean
        self._dead.append((transport, shown))

    def close(self) -> None:
        for transport, _ in self._dead:
            transport.close()
        os.close(self.segment)
        os.close(self.center)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


def test_a_later_life_goes_on_from_what_the_earlier_one_counted(memory: Memory) -> None:
    with memory.life(is_back=False) as (evaluated, mean):
        evaluated.publish_statistics()
        mean[:] = 3.0
        evaluated.publish_statistics()
    with memory.life(is_back=True) as (evaluated, mean):
        evaluated.take_statistics()
        assert mean.tolist() == [3.0] * 3


def test_the_statistics_of_the_last_exchange_are_shown_and_a_later_life_has_them_in_both_places() -> None:
    memory = Memory(is_apart=True)
    with memory.life(is_back=False) as (evaluated, mean):
        memory.last.view("mean").fill_(5.0)
        evaluated.publish_statistics()
        assert mean.tolist() == [7.0] * 3
    with memory.life(is_back=True) as (evaluated, mean):
        evaluated.take_statistics()
        assert mean.tolist() == memory.last.view("mean").tolist() == [5.0] * 3
    memory.close()


def test_an_earlier_life_that_died_before_it_counted_takes_nothing_away(memory: Memory) -> None:
    with memory.life(is_back=False):
        pass
    with memory.life(is_back=True) as (evaluated, mean):
        evaluated.take_statistics()
        assert mean.tolist() == [7.0] * 3


def test_the_mean_is_of_those_that_were_shown_and_are_finite() -> None:
    memory = Memory(4)
    with (
        memory.life(False, 0) as (first, own),
        memory.life(False, 1) as (second, other),
        memory.life(False, 2) as (sick, third),
        memory.life(False, 3),  # shows nothing
    ):
        own[:], other[:], third[:] = 1.0, 4.0, np.nan
        for worker in (first, second, sick):
            worker.publish_statistics()
        with first.in_place():
            assert own.tolist() == [2.5] * 3
        assert own.tolist() == [1.0] * 3
    memory.close()


class Clock:
    """The seconds that a test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def step(self, worker: CenterWeights, seconds: float) -> None:
        self.now_s += seconds
        worker.publish_statistics()


def test_a_worker_that_has_ended_counts_no_longer_but_a_slow_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of weights that the others left long ago would spoil the mean."""
    memory, clock = Memory(3), Clock()
    monkeypatch.setattr(statistics, "time", clock)
    with (
        memory.life(False, 0) as (first, own),
        memory.life(False, 1) as (ended, other),
        memory.life(False, 2) as (slow, third),
    ):
        own[:], other[:], third[:] = 1.0, 7.0, 4.0
        for _ in range(3):
            for worker in (first, ended):
                clock.step(worker, 0.01)
            clock.step(slow, 0.1)
        for _ in range(5):  # 5 s, 40 steps of the pace of the one that has ended
            clock.step(first, 0.5)
            clock.step(slow, 0.5)
        for _ in range(20):
            clock.step(first, 0.01)
        with first.in_place():
            assert own.tolist() == [2.5] * 3
        with ended.in_place():  # whoever asks
            assert other.tolist() == [2.5] * 3
    memory.close()


def test_a_mask_of_infinities_stays_and_does_not_hide_the_statistics_next_to_it() -> None:
    memory, mask = Memory(3), -np.inf
    with (
        memory.life(False, 0) as (first, own),
        memory.life(False, 1) as (second, other),
        memory.life(False, 2) as (sick, third),
    ):
        own[:], other[:], third[:] = (mask, 1.0, 2.0), (mask, 4.0, 4.0), (mask, 5.0, np.nan)
        for worker in (first, second, sick):
            worker.publish_statistics()
        with first.in_place():
            assert own.tolist() == [mask, 2.5, 3.0]
    memory.close()


@pytest.mark.parametrize("world_size", [3, 5, 6, 7])
def test_a_mean_of_equal_values_is_the_value(world_size: int) -> None:
    """In float32 it is not: three times the value is rounded."""
    size = 1000
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)

    assert (values != (values + values + values) / np.float32(3)).any()
    values[:2] = np.finfo(np.float32).min, np.finfo(np.float32).tiny

    def summed(transport: ShmTransport) -> np.ndarray:
        found = SummedStatistics(PlannedCollectives(transport, lambda _: "ring"), size, lambda: Deadline.after(60))
        found.own[:] = values
        return found.mean().astype(np.float32)

    def shown(transport: ShmTransport) -> np.ndarray:
        region = Region.of(transport.open_window("s", 4 * (size + NUM_MARKS), 1), 0, size + NUM_MARKS, np.float32)
        found = ShownStatistics(region, range(world_size))
        found.own[:] = values
        found.show()
        return found.mean()

    for mean in (*on_threads(world_size, summed), *on_threads(world_size, shown)):
        assert mean.tobytes() == values.tobytes()
