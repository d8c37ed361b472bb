"""Each strategy is its definition: against plain loops in float64, over both transports, the same bits every time."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from samovar.box.window_center import WindowCenter
from samovar.collectives.engine import PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Layout, ParameterSpec
from samovar.strategies.base import Buffers, CenterSeat
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.fragments import cut
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport
from samovar.transports.sim.world import SimConfig, SimTransport, simulate
from tests.threads import on_threads
from tests.unit.strategies import references
from tests.unit.strategies.harness import (
    LAYOUT,
    NUM_ELEMENTS,
    RATE,
    Job,
    Left,
    PlainCollectives,
    in_time,
    on_shm,
    on_sim,
    resume,
    same,
)

NUM_STEPS = 11  # no multiple of any period below
TOLERANCE = 1e-6
WORLD_SIZES = (1, 2, 3, 4)
ELASTIC = StrategyConfig("sync-easgd", "ring", sync_period_steps=3, moving_rate=0.2)
DILOCO = StrategyConfig("diloco", "ring", sync_period_steps=4, outer_rate=0.6, outer_momentum=0.8)
CONFIGS = {
    "sync": StrategyConfig("sync", "tree"),
    "sync in the background": StrategyConfig("sync", "tree", 64, overlap="backward"),
    "sync at the end": StrategyConfig("sync", "tree", 64, overlap="none"),
    "sync in parts": StrategyConfig("sync", "ring", 64, overlap="none", owner="parts"),
    "sync with owners": StrategyConfig("sync", "tree", 64, overlap="full"),
    "sync with one owner": StrategyConfig("sync", "tree", 64, overlap="full", owner="root"),
    "local-sgd": StrategyConfig("local-sgd", "ring", sync_period_steps=3),
    "local-sgd each step": StrategyConfig("local-sgd", "tree", sync_period_steps=1),
    "diloco": DILOCO,
    "diloco in fragments": replace(DILOCO, fragments=3),
    "diloco delayed": replace(DILOCO, collective="halving-doubling", delay_steps=3),
    "diloco mixed": replace(DILOCO, fragments=2, mixing=0.25),
    "diloco streaming": replace(DILOCO, collective="tree", sync_period_steps=5, fragments=4, delay_steps=2),
    "sync-easgd none": replace(ELASTIC, overlap="none"),
    "sync-easgd step": replace(ELASTIC, overlap="step"),
    "sync-easgd period": replace(ELASTIC, overlap="period"),
    "sync-easgd step of one": replace(ELASTIC, overlap="step", sync_period_steps=1),
    "sync-easgd broadcast": replace(ELASTIC, variant="broadcast"),
    "further, sync-easgd period": replace(ELASTIC, overlap="period", worker_rate=0.5),
    "further, sync-easgd broadcast": replace(ELASTIC, variant="broadcast", worker_rate=0.5),
}
STREAMING = [name for name in CONFIGS if name.startswith("diloco ")]
SPREADS = [name for name in CONFIGS if name.startswith("sync-easgd ") and "broadcast" not in name]

# A begin and, later, an end for each fragment in each period.
DUE = {
    "diloco in fragments": [0, 1, 3, 4, 5, 7, 8, 9, 11],
    "diloco delayed": [3, 6, 7, 10, 11],
    "diloco mixed": [1, 3, 5, 7, 9, 11],
    "diloco streaming": [*range(12)],
}


@cache
def problem(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and minimum of the rank's own loss."""
    generator = np.random.default_rng(rank)
    return generator.uniform(0.2, 2.0, NUM_ELEMENTS), generator.standard_normal(NUM_ELEMENTS)


def gradient(rank: int, step: int, x: np.ndarray) -> np.ndarray:
    curvatures, minimum = problem(rank)
    noise = np.random.default_rng([rank, step]).standard_normal(NUM_ELEMENTS)
    return (curvatures * (x - minimum) + 0.1 * noise).astype(x.dtype)


def start() -> np.ndarray:
    return np.random.default_rng(99).standard_normal(NUM_ELEMENTS).astype(np.float32)


def job(name: str, **changes: Any) -> Job:
    return replace(Job(CONFIGS[name], gradient, NUM_STEPS, start()), **changes)


def reference(config: StrategyConfig, world_size: int) -> references.Traces:
    x = np.tile(start().astype(float), (world_size, 1))

    def gradients(step: int, x: np.ndarray) -> np.ndarray:
        return np.stack([gradient(rank, step, x[rank]) for rank in range(world_size)])

    loops: dict[str, Any] = {
        "sync": references.sync,
        "local-sgd": partial(references.local_sgd, period=config.sync_period_steps),
        "diloco": _diloco(config),
        "sync-easgd": partial(
            references.sync_easgd,
            period=config.sync_period_steps,
            moving_rate=config.moving_rate,
            own=config.worker_rate or config.moving_rate,
        ),
    }
    return loops[config.name](x, gradients, NUM_STEPS, RATE)


def _diloco(config: StrategyConfig) -> Any:
    period, num_fragments, delay = config.sync_period_steps or 1, config.fragments or 1, config.delay_steps or 0
    parts = enumerate(cut(NUM_ELEMENTS, num_fragments), 1)
    return partial(
        references.diloco,
        period=period,
        outer_rate=config.outer_rate,
        outer_momentum=config.outer_momentum,
        dues=[(number * period // num_fragments, part) for number, part in parts],
        delay=delay,
        mixing=config.mixing if config.mixing is not None else 0.5 * (delay > 0),
    )


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def assert_is_reference(ranks: list[Left], config: StrategyConfig) -> None:
    weights, centers = reference(config, len(ranks))
    for rank, left in enumerate(ranks):
        for step in range(NUM_STEPS):
            assert distance(left.trace[step], weights[step][rank]) < TOLERANCE, (rank, step)
        for step, center in enumerate(left.centers):
            evaluated = left.trace[step] if center is None else center
            assert distance(evaluated, centers[step]) < TOLERANCE, (rank, step)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", CONFIGS)
def test_weights_and_center_are_those_of_the_float64_loop(name: str, world_size: int) -> None:
    """Taking the center after every step, and taking it at the end only, changes no weight."""
    often, once = (on_shm(job(name, drain_each_step=drains), world_size) for drains in (True, False))
    assert_is_reference(often, CONFIGS[name])
    assert len(often[0].centers) == NUM_STEPS
    assert_is_reference(once, CONFIGS[name])
    assert same(often, once)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_bits_in_every_run_over_every_transport_and_executor(name: str, world_size: int) -> None:
    """In the simulator and with `PlainCollectives`, `start` does nothing and `finish` everything."""
    first = on_shm(job(name), world_size)
    assert same(first, on_shm(job(name), world_size))
    assert same(first, on_shm(job(name), world_size, PlainCollectives))
    for seed in range(3):
        assert same(first, on_sim(job(name), world_size, seed))


@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_end_with_the_same_center_and_different_weights(name: str) -> None:
    ranks = on_shm(job(name), 3)
    evaluated = {(left.weights if left.center is None else left.center).tobytes() for left in ranks}
    assert len(evaluated) == 1
    own = {left.weights.tobytes() for left in ranks}
    assert len(own) == (1 if name.startswith("sync ") or name in ("sync", "local-sgd each step") else 3)


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_overlap_gives_the_same_weights(world_size: int) -> None:
    """An elastic worker needs the sum of an exchange only for the next one; buckets are exchanged one by one."""
    runs = [on_shm(job(name), world_size) for name in SPREADS if "of one" not in name]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])
    behind, after = (on_shm(job(name), world_size) for name in ("sync in the background", "sync at the end"))
    assert same(behind, after)


def test_a_broadcast_of_the_center_changes_no_bit() -> None:
    broadcast, plain = (on_shm(job(name), 3) for name in ("sync-easgd broadcast", "sync-easgd none"))
    assert same(broadcast, plain)


@pytest.mark.parametrize("first_part", [1, 3, 4, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_resumed_run_goes_on_with_the_same_bits(name: str, first_part: int) -> None:
    unbroken = on_shm(job(name), 3)
    stopped = on_shm(job(name, num_steps=first_part), 3)
    resumed = on_shm(resume(job(name, num_steps=first_part), stopped, NUM_STEPS), 3)
    for whole, part in zip(unbroken, resumed, strict=True):
        assert part.weights.tobytes() == whole.weights.tobytes()
        assert [a.tobytes() for a in part.trace] == [a.tobytes() for a in whole.trace[first_part:]]
        assert (part.center is None) == (whole.center is None)
        assert part.center is None or part.center.tobytes() == whole.center.tobytes()


@pytest.mark.parametrize(("world_size", "moving_rate"), [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25)])
@pytest.mark.parametrize("overlap", ["none", "step", "period", "broadcast"])
def test_an_elastic_exchange_conserves_the_sum_exactly(overlap: str, world_size: int, moving_rate: float) -> None:
    """Multiples of 2^-11 are not rounded: sum x_i + c changes by the gradient steps alone, to the last bit."""
    settings: dict[str, Any] = {"variant": "broadcast"} if overlap == "broadcast" else {"overlap": overlap}
    config = StrategyConfig("sync-easgd", "tree", sync_period_steps=2, moving_rate=moving_rate, **settings)

    def gradient_of_integers(rank: int, step: int, x: np.ndarray) -> np.ndarray:
        return 8 * np.random.default_rng([rank, step]).integers(-20, 20, NUM_ELEMENTS).astype(x.dtype)

    begin = np.arange(NUM_ELEMENTS, dtype=np.float32) - 50
    num_steps = 9
    ranks = on_shm(Job(config, gradient_of_integers, num_steps, begin), world_size)
    moved = sum(
        RATE * gradient_of_integers(rank, step, begin.astype(float))
        for rank in range(world_size)
        for step in range(num_steps)
    )
    total = sum(left.weights.astype(float) for left in ranks) + ranks[0].center
    assert (total == (world_size + 1) * begin.astype(float) - moved).all()
    assert any((left.weights != ranks[0].weights).any() for left in ranks) or world_size == 1


def test_diloco_is_torchs_nesterov_sgd_on_the_difference() -> None:
    config = CONFIGS["diloco"]
    ranks = on_shm(job("diloco", num_steps=8), 2)
    weights = torch.tensor(start(), requires_grad=True)
    outer = torch.optim.SGD([weights], lr=config.outer_rate, momentum=config.outer_momentum, nesterov=True)
    own = [start() for _ in ranks]
    for step in range(8):
        own = [x - np.float32(RATE) * gradient(rank, step, x) for rank, x in enumerate(own)]
        if (step + 1) % config.sync_period_steps == 0:
            weights.grad = weights.detach() - torch.tensor(sum(own) / 2)
            outer.step()
            own = [weights.detach().numpy().copy() for _ in ranks]
    np.testing.assert_allclose(ranks[0].weights, weights.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "sync-easgd" in name or "diloco" in name])
def test_an_empty_state_starts_from_the_weights_and_a_foreign_one_is_refused(name: str) -> None:
    other = replace(job(name), start=start() + 1)
    left = on_shm(replace(other, num_steps=0), 2)
    anew = [replace(rank, state={}) for rank in left]
    assert same(on_shm(other, 2), on_shm(resume(replace(other, num_steps=0), anew, NUM_STEPS), 2))
    foreign = [replace(rank, state={"center": np.zeros(3, np.float32)}) for rank in left]
    with pytest.raises(InputError, match=r"'center' is of shape \(3,\), not \("):
        on_shm(resume(replace(other, num_steps=0), foreign, NUM_STEPS), 2)


def test_the_step_that_completes_an_exchange_waits_for_others_and_needs_no_weights() -> None:
    def looks(transport: SimTransport) -> list[tuple[bool, bool]]:
        window = transport.open_window("model", 2 * NUM_ELEMENTS * 4, 0)
        weights, gradients = (Region.of(window, half * NUM_ELEMENTS * 4, NUM_ELEMENTS, np.float32) for half in range(2))
        collectives = PlannedCollectives(transport, lambda _num_bytes: "ring")
        config = StrategyConfig("sync-easgd", sync_period_steps=4, overlap="step")
        strategy = build_strategy(
            config, collectives, LAYOUT.buckets(None), Buffers(weights, gradients), lambda: Deadline(0.0)
        )
        found = []
        for step in range(6):
            found.append((strategy.exchanges_at(step), strategy.uses_weights_after(step)))
            strategy.updated(step)
        return found

    (found,) = simulate(looks, 1, SimConfig()).results
    assert found == [(False, False)] * 3 + [(True, True), (True, False), (False, False)]


@pytest.mark.parametrize("name", CONFIGS)
def test_exchanges_are_due_after_every_period(name: str) -> None:
    def strategy_on(transport: SimTransport) -> tuple[str, list[int]]:
        window = transport.open_window("model", 2 * NUM_ELEMENTS * 4, 0)
        weights, gradients = (Region.of(window, half * NUM_ELEMENTS * 4, NUM_ELEMENTS, np.float32) for half in range(2))
        collectives = PlannedCollectives(transport, lambda _num_bytes: "ring")
        buckets = LAYOUT.buckets(CONFIGS[name].bucket_size_bytes)
        strategy = build_strategy(
            CONFIGS[name], collectives, buckets, Buffers(weights, gradients), lambda: Deadline(0.0)
        )
        return strategy.exchanges, [step for step in range(12) if strategy.exchanges_at(step)]

    (found,) = simulate(strategy_on, 1, SimConfig()).results
    period = CONFIGS[name].sync_period_steps
    if name in STREAMING:
        assert found == ("weights", DUE[name])
        return
    assert found == (
        ("gradients", list(range(12))) if period is None else ("weights", [*range(period - 1, 12, period)])
    )


@pytest.mark.parametrize(
    ("config", "world_size", "kept"),
    [
        (StrategyConfig("diloco", "ring", sync_period_steps=50), 2, 0.999),
        (StrategyConfig("diloco", "ring", sync_period_steps=10, fragments=2, delay_steps=3), 2, 0.999),
        (StrategyConfig("slowmo", "ring", outer_momentum=0.9), 3, 0.999),
        (StrategyConfig("async-msgd", center_momentum=0.9), 2, 0.999),
    ],
    ids=lambda value: value.name if isinstance(value, StrategyConfig) else f"{value}",
)
def test_no_momentum_carries_statistics_past_what_a_worker_saw(
    config: StrategyConfig, world_size: int, kept: float
) -> None:
    """BatchNorm's variance falls from 31 to 1: a mean of what was seen is never outside, and never negative."""
    layout = Layout.pack([ParameterSpec("w", (20,)), ParameterSpec("norm", (2,), is_learned=False)])
    place = slice(layout.entries[1].offset, layout.entries[1].stop)

    def variances(transport: ShmTransport) -> list[float]:
        memory = transport.open_window("model", layout.num_elements * 4, 0)
        weights = Region.of(memory, 0, layout.num_elements, np.float32)
        collectives = PlannedCollectives(transport, lambda _num_bytes: "ring")
        seat = None
        if config.needs_center:
            center = WindowCenter(transport, layout.num_elements, with_velocity=True)
            seat = CenterSeat(center, transport.group.rank == 0, world_size)
        buffers = Buffers(weights, weights.part(0, 0))
        strategy = build_strategy(config, collectives, layout.buckets(), buffers, in_time, seat)
        collectives.records(1).gather([0.0], in_time())
        found = []
        for step in range(1000):
            strategy.begin_step(step)
            seen = 1 + 30 * np.exp(-step / 150)
            weights.array[place] = np.float32(kept) * weights.array[place] + np.array([seen, 1.0], np.float32)
            strategy.updated(step)
            if step % 10 == 9:
                strategy.drain()
                common = None if config.needs_center else strategy.center()
                total, count = (weights.array if common is None else common)[place]
                found.append(float(total / count) if count else float(seen))
        return found

    of_ranks = on_threads(world_size, variances)
    assert 0.999 < np.min(of_ranks) < np.max(of_ranks) < 31.001
