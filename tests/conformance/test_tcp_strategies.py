"""Every strategy over TCP: the bits of shared memory where its order is fixed, its definition where it is not."""

import threading
from functools import partial

import numpy as np
import pytest

from samovar.collectives.plans import ALL_REDUCES
from samovar.strategies.config import StrategyConfig
from tests.conformance.tcp_threads import on_tcp
from tests.unit.strategies import center_harness, harness, test_center, test_definitions
from tests.unit.strategies.harness import Job

NUM_STEPS = 7
START = np.linspace(-1, 1, harness.NUM_ELEMENTS, dtype=np.float32)
PLANS = sorted(set(ALL_REDUCES) - {"direct"})  # which needs memory that all ranks map
QUICK = ("round-robin-easgd", "shm-easgd", "hybrid-easgd")


def job(config: StrategyConfig) -> Job:
    return Job(config, test_definitions.gradient, NUM_STEPS, START)


def assert_bits_of_shared_memory(config: StrategyConfig, world_size: int) -> None:
    found = on_tcp(world_size, partial(harness.train, job(config)))
    assert harness.same(found, harness.on_shm(job(config), world_size))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("samovar")]


@pytest.mark.parametrize("name", test_definitions.CONFIGS)
def test_strategies_in_step_give_the_bits_of_shared_memory(name: str) -> None:
    assert_bits_of_shared_memory(test_definitions.CONFIGS[name], 3)


@pytest.mark.parametrize("overlap", ["none", "backward"])
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_in_buckets_gives_the_bits_of_shared_memory(plan: str, overlap: str) -> None:
    config = StrategyConfig("sync", plan, 64, overlap=overlap)
    assert_bits_of_shared_memory(config, 4)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in test_center.CONFIGS]
)
def test_strategies_at_a_center_are_their_definitions(name: str) -> None:
    config = test_center.CONFIGS[name]
    work = center_harness.Work(config, test_definitions.gradient, test_center.NUM_STEPS)
    workers = on_tcp(
        test_center.WORLD_SIZE,
        lambda transport: center_harness.work(work, transport, lambda _seconds: None, harness.in_time),
    )
    test_center.assert_is_reference(workers, config, center_harness.in_order(workers))
