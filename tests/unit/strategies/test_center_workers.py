"""The measurements, bounds, messages and state of a worker at a center."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.core.errors import InputError
from samovar.core.layout import Layout, ParameterSpec
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.center_steps import CenterSteps, Staleness
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.threads import on_threads
from tests.unit.strategies.center_harness import Work, on_sim
from tests.unit.strategies.harness import LAYOUT, NUM_ELEMENTS, in_time
from tests.unit.strategies.test_definitions import gradient

SLOW_S, QUICK_S = 10.0, 1.0


class Worker:
    """A worker whose step adds `gain` to every weight."""

    def __init__(self, config: StrategyConfig, transport: Any, num_workers: int | None = None) -> None:
        self.rank = transport.group.rank
        window = transport.open_window("model", 2 * NUM_ELEMENTS * 4, 0)
        weights, gradients = (Region.of(window, half * NUM_ELEMENTS * 4, NUM_ELEMENTS, np.float32) for half in range(2))
        self.weights = weights.array
        self.center = WindowCenter(transport, NUM_ELEMENTS, with_velocity=config.traits.has_velocity)
        collectives = PlannedCollectives(transport, lambda _num_bytes: "tree")
        seat = CenterSeat(self.center, self.rank == 0, num_workers)
        self.deadline = (lambda: transport.deadline(math.inf)) if isinstance(transport, SimTransport) else in_time
        self.strategy: Any = build_strategy(
            config, collectives, LAYOUT.buckets(), Buffers(weights, gradients), self.deadline, seat
        )
        self.transport = transport
        self.num_steps = 0

    def step(self, step_s: float = QUICK_S, gain: float = 1.0) -> None:
        self.strategy.begin_step(self.num_steps)
        if step_s:
            self.transport.sleep(step_s)
        for bucket in LAYOUT.buckets():
            self.strategy.gradient_final(bucket)

        def update(_bucket, _scale: float) -> None:
            self.weights += np.float32(gain)

        self.strategy.finish_step(self.num_steps, update)
        self.num_steps += 1

    @property
    def c(self) -> float:
        """The center, where all elements are the same."""
        values = np.empty(NUM_ELEMENTS, np.float32)
        self.center.read(values, self.deadline())
        assert (values == values[0]).all()
        return float(values[0])


def run(program: Callable[[Worker], object], config: StrategyConfig, world_size: int = 2) -> list[Any]:
    return simulate(lambda transport: program(Worker(config, transport)), world_size, SimConfig()).results


def slow_and_quick(worker: Worker) -> CenterSteps:
    """Rank 0 makes one step while rank 1 makes five, then one more in peace."""
    if worker.rank == 1:
        for _ in range(5):
            worker.step()
    else:
        worker.step(SLOW_S)
        worker.step(QUICK_S)
    worker.strategy.drain()
    return worker.strategy


def test_staleness_counts_what_others_did_between_read_and_update() -> None:
    slow, quick = run(slow_and_quick, StrategyConfig("async-sgd"))
    assert slow.staleness.histogram == {5: 1, 0: 1}
    assert (slow.staleness.last, slow.staleness.largest, slow.staleness.mean) == (0, 5, 2.5)
    assert quick.staleness.histogram == {0: 5}
    assert (slow.num_updates, quick.num_updates) == (2, 5)


def test_elastic_staleness_counts_exchanges_since_the_own_last_one() -> None:
    slow, _ = run(slow_and_quick, StrategyConfig("async-easgd", sync_period_steps=1))
    assert slow.staleness.histogram == {0: 1}  # the first exchange has no read before it


@pytest.mark.parametrize("drains", [True, False])
def test_what_was_under_way_is_not_taken_off_weights_that_are_loaded(drains: bool) -> None:
    """x = 4, d = 2 on its way; then either d is taken off, or other weights come and the center starts from them."""

    def program(worker: Worker) -> tuple[float, float]:
        worker.step(gain=4.0)
        assert (worker.weights == 4).all()
        if drains:
            worker.strategy.drain()
        else:
            worker.weights[:] = 100.0
            worker.strategy.load_state_dict({})
        return float(worker.weights[0]), worker.c

    config = StrategyConfig("async-easgd", sync_period_steps=1, moving_rate=0.5, overlap="period")
    assert run(program, config, 1) == [(2.0, 2.0) if drains else (100.0, 100.0)]


@pytest.mark.parametrize("most", [None, 0])
@pytest.mark.parametrize("reads_first", [False, True])
def test_the_own_push_is_no_update_of_others_also_if_the_center_is_read_before_it_has_come(
    reads_first: bool, most: int | None
) -> None:
    def alone(worker: Worker) -> dict[int, int]:
        for _ in range(12 * worker.rank):
            worker.step(0.0)
        worker.strategy.drain()
        return worker.strategy.staleness.histogram

    config = StrategyConfig("shm-easgd", sync_period_steps=1, read_first=reads_first, max_staleness_steps=most)
    assert run(alone, config)[1] == {0: 12}


def test_staleness_is_that_of_the_fullest_chunk() -> None:
    staleness = Staleness()
    staleness.note(np.array([3, 3, 3]), np.array([4, 9, 5]))
    assert staleness.last == 5
    staleness.note(np.array([9, 9, 9]), np.array([10, 10, 10]))
    assert (staleness.last, staleness.mean, staleness.histogram) == (0, 2.5, {5: 1, 0: 1})
    assert Staleness().mean == 0.0


@pytest.mark.parametrize(("most", "num_updates", "c"), [(4, 1, 6.0), (5, 2, 7.0)])
def test_a_step_staler_than_allowed_is_set_aside_and_the_center_read_again(
    most: int, num_updates: int, c: float
) -> None:
    def program(worker: Worker) -> tuple[CenterSteps, float, float]:
        return slow_and_quick(worker), worker.c, float(worker.weights[0])

    config = StrategyConfig("async-sgd", max_staleness_steps=most)
    (slow, found, own), _ = run(program, config)
    assert (slow.num_updates, slow.num_set_aside, found, own) == (num_updates, 2 - num_updates, c, c)
    assert slow.staleness.largest <= most
    notices = slow.take_notices()
    assert len(notices) == 2 - num_updates
    assert all(text.startswith("--max-staleness 4: others made 5 updates while") for text in notices)
    assert slow.take_notices() == ()


def test_a_worker_looks_ahead_by_a_step_of_all_workers_also_when_its_own_was_set_aside() -> None:
    """Five updates of 1 with momentum 0.5: v = 1.9375, c = 8.0625; a sixth makes v = 1.96875."""

    def program(worker: Worker) -> list[float]:
        if worker.rank == 1:
            for _ in range(5):
                worker.step()
            return []
        worker.step(SLOW_S)
        set_aside = float(worker.weights[0])
        worker.strategy.resize(3)
        worker.step()
        return [worker.strategy.num_set_aside, set_aside, worker.c, float(worker.weights[0])]

    found, _ = run(program, StrategyConfig("async-msgd", center_momentum=0.5, look_ahead=True, max_staleness_steps=4))
    assert found == [1, 8.0625 + 2 * 1.9375, 8.0625 + 1.96875, 8.0625 + 1.96875 + 3 * 1.96875]


def test_after_a_push_staler_than_allowed_the_next_exchange_changes_the_center_where_it_is() -> None:
    config = StrategyConfig("shm-easgd", sync_period_steps=1, max_staleness_steps=0)
    workers = on_sim(Work(config, gradient, 12, seed=1, longest_step_s=1e-3), 4)
    for worker in workers:
        kinds = [event.kind for event in worker.events if event.chunk == 0 and event.num_steps > 0]
        assert "exchange" in kinds
    assert sum(worker.strategy.staleness.histogram.get(0, 0) for worker in workers) > 12


def test_a_default_rate_is_taken_down_while_pushes_are_stale_and_a_given_one_is_not() -> None:
    def program(worker: Worker) -> tuple[float, tuple[str, ...]]:
        none = np.zeros(1, np.int64)
        worker.strategy.staleness.note(none, none + 8)  # seven of others
        worker.step(gain=16.0)
        worker.step(gain=0.0)
        worker.strategy.drain()
        return worker.c, worker.strategy.take_notices()

    config = StrategyConfig("shm-easgd", sync_period_steps=1)
    ((c, notices),) = run(program, config, 1)
    assert c == pytest.approx(16 / 8 + (16 - 4) / (1 + 7 / 2), rel=1e-6)
    assert notices == (
        "moving rate 0.5: others make 7.0 updates between this worker's read of the center and its push; more than "
        "0.125 is too much then, which is used while pushes are as stale",
    )
    ((c, notices),) = run(program, replace(config, moving_rate=0.25), 1)
    assert c == 16 / 4 + (12 - 4) / 4
    assert notices[0].endswith("and the center may swing; the rate is used as it was given")
    assert len(notices) == 1


def test_a_default_rate_follows_the_number_of_workers_and_a_given_one_stays() -> None:
    def rates(worker: Worker) -> list[float]:
        found = [worker.strategy.moving_rate]
        worker.strategy.resize(4)
        return [*found, worker.strategy.moving_rate]

    assert run(rates, StrategyConfig("async-easgd")) == [[0.45, 0.225]] * 2
    assert run(rates, StrategyConfig("async-easgd", moving_rate=0.3)) == [[0.3, 0.3]] * 2
    assert run(rates, StrategyConfig("shm-easgd")) == [[0.25, 0.125]] * 2
    assert run(rates, StrategyConfig("hybrid-easgd", group_size=2)) == [[0.5, 0.25]] * 2
    assert run(rates, StrategyConfig("async-sgd")) == [[0.0, 0.0]] * 2


def test_workers_that_come_while_an_exchange_is_under_way_do_not_change_how_far_the_worker_goes() -> None:
    """x = 16 is sent with alpha 0.5, and beta is 0.75: x goes to 4, also if alpha is 0.0625 by the time d comes."""

    def program(worker: Worker) -> tuple[float, float]:
        worker.step(gain=16.0)
        worker.strategy.resize(16)
        worker.strategy.drain()
        return float(worker.weights[0]), worker.c

    config = StrategyConfig("async-easgd", sync_period_steps=1, worker_rate=0.75, overlap="period")
    assert run(program, config, 1) == [(4.0, 8.0)]


def test_a_worker_of_a_larger_run_takes_the_rate_of_all() -> None:
    def rate(transport: SimTransport) -> float:
        return Worker(StrategyConfig("shm-easgd"), transport, num_workers=10).strategy.moving_rate

    assert simulate(rate, 1, SimConfig()).results == [0.05]


@pytest.mark.parametrize("name", ["async-sgd", "async-msgd", "async-easgd", "shm-easgd"])
def test_the_first_worker_keeps_the_center_and_a_joining_one_takes_it(name: str) -> None:
    config = StrategyConfig(name, sync_period_steps=1)

    def trained(worker: Worker) -> dict[str, Any]:
        for _ in range(3):
            worker.step()
        worker.strategy.drain()
        worker.transport.sleep(100.0)
        return worker.strategy.state_dict()

    def resumed(worker: Worker) -> tuple[float, float]:
        if worker.rank == 0:
            worker.strategy.load_state_dict(states[0])
            state = worker.strategy.state_dict()
            assert all((state[key] == value).all() for key, value in states[0].items())
        worker.transport.sleep(10.0)
        if worker.rank == 1:
            worker.strategy.load_state_dict(states[1])
            worker.strategy.adopt_center()
        return worker.c, float(worker.weights[0])

    states = run(trained, config)
    assert states[1] == {}
    assert sorted(states[0]) == (["center", "velocity"] if name == "async-msgd" else ["center"])
    c = float(states[0]["center"][0])
    assert c > 0
    assert run(resumed, config) == [(c, 0.0), (c, c)]


def test_an_empty_state_starts_from_the_weights_and_a_foreign_one_is_refused() -> None:
    def program(worker: Worker) -> float:
        worker.weights[:] = 7.0
        worker.strategy.load_state_dict({})
        with pytest.raises(InputError, match=r"'center' is of shape \(3,\), not \("):
            worker.strategy.load_state_dict({"center": np.zeros(3, np.float32)})
        return worker.c

    assert run(program, StrategyConfig("async-easgd"), 1) == [7.0]


def test_drain_brings_the_push_home_and_what_is_asked_then_is_all_of_it() -> None:
    def program(worker: Worker) -> tuple[float, float]:
        worker.step(gain=8.0)
        before = worker.c
        worker.strategy.drain()
        return before, float(worker.strategy.center()[0])

    assert run(program, StrategyConfig("shm-easgd", sync_period_steps=1, moving_rate=0.5), 1) == [(0.0, 4.0)]


def test_a_group_clears_its_momentum_together_also_where_the_center_refuses_its_leaders_push() -> None:
    config = StrategyConfig("hybrid-easgd", sync_period_steps=1, group_size=2)

    def program(transport: ShmTransport) -> tuple[list[bool], list[float], int]:
        worker = Worker(config, transport)
        with closing(worker.center):
            if worker.rank == 0:
                worker.center.write(np.full(NUM_ELEMENTS, -3e38, np.float32), in_time())
            has_cleared, weights = [], []
            for gain in (3e38, 0.0, 0.0, 0.0):  # the first difference is too large for a float
                worker.step(0.0, gain)
                has_cleared.append(worker.strategy.has_started_anew())
                weights.append(float(worker.weights[0]))
            return has_cleared, weights, worker.strategy.num_refused

    leader, other = on_threads(2, program)
    assert leader[:2] == other[:2]
    assert leader[0] == [False, True, False, False]
    assert leader[2] == other[2] + 1  # the push


@pytest.mark.parametrize("name", ["async-sgd", "round-robin-easgd", "async-easgd", "shm-easgd", "hybrid-easgd"])
def test_who_waits_for_whom(name: str) -> None:
    def steps(worker: Worker) -> tuple[list[int], list[int]]:
        strategy = worker.strategy
        waits = [step for step in range(6) if strategy.exchanges_at(step)]
        return waits, [step for step in range(6) if strategy.is_due(step)]

    waits, due = run(steps, StrategyConfig(name, sync_period_steps=3))[0]
    assert due == [2, 5]
    assert waits == {"round-robin-easgd": [2, 5], "hybrid-easgd": [0, 1, 2, 3, 4, 5]}.get(name, [])


@pytest.mark.parametrize("name", ["async-sgd", "async-msgd", "hogwild-sgd"])
def test_a_center_that_adds_up_steps_has_the_mean_of_statistics(name: str) -> None:
    """Twelve workers all see 1 in each step, and keep 0.9 of the sum: it is 10."""
    layout = Layout.pack([ParameterSpec("w", (20,)), ParameterSpec("norm", (1,), is_learned=False)])
    size, place, config = layout.num_elements, layout.entries[1].offset, StrategyConfig(name, sync_period_steps=8)

    def statistic(transport: SimTransport) -> float:
        weights = Region.of(transport.open_window("model", 4 * size, 0), 0, size, np.float32)
        center = WindowCenter(transport, size, with_velocity=config.traits.has_velocity)
        collectives = PlannedCollectives(transport, lambda _num_bytes: "ring")
        seat = CenterSeat(center, transport.group.rank == 0)
        made = (layout.buckets(), Buffers(weights, weights.part(0, 0)), lambda: transport.deadline(math.inf), seat)
        worker: Any = build_strategy(config, collectives, *made)
        for step in range(200):
            worker.begin_step(step)
            transport.sleep(1.0)
            weights.array[place] = np.float32(0.9) * weights.array[place] + 1
            worker.updated(step)
        return float(weights.array[place])

    assert simulate(statistic, 12, SimConfig()).results == pytest.approx([10.0] * 12, rel=0.05)
