"""Weights that the next forward pass needs first leave first: on a slow link less of the exchange is waited for."""

import math
from functools import partial

import numpy as np
import pytest

from samovar.collectives.engine import PlannedCollectives
from samovar.core.layout import Layout, ParameterSpec
from samovar.core.machine import Link, MachineModel
from samovar.strategies.base import Buffers
from samovar.strategies.owned import OwnedSync, spread_owners
from samovar.transports.base import Region
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

# Parameters, seconds forward, seconds backward; the first layer first. Convolutions grow, as in GoogLeNet.
LAYERS = [(10_000 * 2**depth, 0.05, 0.08) for depth in range(7)]
GIGABIT = MachineModel(Link(50e-6, 1.25e8, 5e-6))
NUM_STEPS, COUNTED_FROM = 6, 2


class InTheOrderOfGradients(OwnedSync):
    """The result without it."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._finishing = self._shares


def step_s(strategy_type: type[OwnedSync], transport: SimTransport) -> float:
    """Virtual seconds of a step with a bucket for each layer."""
    specs = [ParameterSpec(str(index), (size,)) for index, (size, _, _) in enumerate(LAYERS)]
    layout = Layout.pack(reversed(specs))
    size, buckets = layout.num_elements, layout.buckets(1)
    window = transport.open_window("model", 2 * size * 4, 0)
    weights, gradients = (Region.of(window, half * size * 4, size, np.float32) for half in range(2))
    owners = spread_owners(buckets, transport.group.world_size)
    collectives = PlannedCollectives(transport, lambda _num_bytes: "tree")
    forever = partial(transport.deadline, math.inf)
    strategy = strategy_type(collectives, buckets, Buffers(weights, gradients), owners, forever)
    started_s = 0.0
    for step in range(NUM_STEPS):
        if step == COUNTED_FROM:
            started_s = transport.now_s
        for bucket in reversed(buckets):
            strategy.before_forward(bucket)
            transport.compute(LAYERS[int(bucket.entries[0].spec.name)][1])
        for bucket in buckets:
            transport.compute(LAYERS[int(bucket.entries[0].spec.name)][2])
            strategy.gradient_final(bucket)
        strategy.finish_step(step, lambda _bucket, _scale: None)
    strategy.drain()
    return (transport.now_s - started_s) / (NUM_STEPS - COUNTED_FROM)


@pytest.mark.parametrize("world_size", [2, 4])
def test_less_of_the_exchange_is_waited_for(world_size: int) -> None:
    computing_s = sum(forward_s + backward_s for _, forward_s, backward_s in LAYERS)
    config = SimConfig(1, GIGABIT, check=False, counted_above_bytes=0)
    exposed_s = {
        kind: max(simulate(partial(step_s, kind), world_size, config).results) - computing_s
        for kind in (OwnedSync, InTheOrderOfGradients)
    }
    assert 0 < exposed_s[OwnedSync] < 0.9 * exposed_s[InTheOrderOfGradients], exposed_s
