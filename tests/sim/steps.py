"""Whole steps of `sync` on simulated machines, every layer's weights checked where forward and backward read them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import numpy as np

from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import REDUCE_SCATTERS
from samovar.core.layout import Bucket, Layout, ParameterSpec
from samovar.strategies.base import Buffers, Strategy
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.transports.base import Region
from samovar.transports.sim.world import SimConfig, SimRun, SimTransport, simulate
from tests.sim.harness import config_of, repeated_by

LAYOUT = Layout.pack([ParameterSpec("a", (5, 7)), ParameterSpec("b", (3,)), ParameterSpec("c", (40,))])
NUM_STEPS = 4
RATE = np.float32(0.125)
WORLD_SIZES = (1, 2, 3, 4, 5, 7)
IN_PARTS = "none, in parts"
OVERLAPS = ("none", IN_PARTS, "backward", "full", "full, one owner")
COLLECTIVES = ("tree", "ring", "kary-tree", "halving-doubling", "server", "direct")
BUCKET_BYTES = (1, 128)
LAYER_S = 1e-5
BuildStrategy = Callable[..., Strategy]


class WrongWeights(AssertionError):
    """A layer met other weights than those of its step."""


@dataclass(frozen=True)
class StepsCase:
    """A case drawn from a seed, like its delays and machine."""

    seed: int
    overlap: str
    collective: str
    world_size: int
    bucket_bytes: int

    @classmethod
    def of_seed(cls, seed: int) -> "StepsCase":
        draw = Random(seed)
        overlap, collective = draw.choice(OVERLAPS), draw.choice(COLLECTIVES)
        if overlap == IN_PARTS and collective not in REDUCE_SCATTERS:  # sums that are made whole
            collective = draw.choice(sorted(REDUCE_SCATTERS))
        return cls(seed, overlap, collective, draw.choice(WORLD_SIZES), draw.choice(BUCKET_BYTES))

    @property
    def strategy(self) -> StrategyConfig:
        overlap, _, who = self.overlap.partition(", ")
        owner = {"": None, "one owner": "root", "in parts": "parts"}[who]
        return StrategyConfig("sync", self.collective, self.bucket_bytes, overlap=overlap, owner=owner)

    def config(self) -> SimConfig:
        return config_of(self.seed)


def run_steps(case: StepsCase, build: BuildStrategy = build_strategy) -> SimRun[bytes]:
    """Raises what is wrong; the results are each rank's last weights."""
    try:
        run = simulate(partial(take_steps, case, build), case.world_size, case.config())
        wanted = weights_of(case.world_size)[-1].tobytes()
        if any(weights != wanted for weights in run.results):
            raise WrongWeights("after the last step")
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by('steps', case)}")
        raise
    return run


def take_steps(case: StepsCase, build: BuildStrategy, transport: SimTransport) -> bytes:
    """The hooks in the order of a worker's step, with random pauses between layers."""
    rank, size = transport.group.rank, LAYOUT.num_elements
    window = transport.open_window("model", 2 * size * 4, 0)
    weights, gradients = (Region.of(window, half * size * 4, size, np.float32) for half in range(2))
    buckets = LAYOUT.buckets(case.bucket_bytes)
    collectives = PlannedCollectives(transport, lambda _num_bytes: case.collective)
    forever = partial(transport.deadline, math.inf)
    strategy = build(case.strategy, collectives, buckets, Buffers(weights, gradients), forever)
    weights.array[:] = weights_of(case.world_size)[0]
    layers = Layers(case, transport, weights, gradients)
    for step in range(NUM_STEPS):
        strategy.begin_step(step)
        for bucket in reversed(buckets):
            strategy.before_forward(bucket)
            layers.read(step, bucket, "forward")
        for bucket in buckets:
            layers.write_gradient(step, bucket, rank)
            strategy.gradient_final(bucket)
            layers.read(step, bucket, "backward")  # of what the layer below is given
        strategy.finish_step(step, layers.update)
    strategy.drain()
    transport.note(weights.array, writes=False, verb="reading of the result")
    return weights.array.tobytes()


class Layers:
    """The work of a rank's layers with weights and gradients, in virtual time."""

    def __init__(self, case: StepsCase, transport: SimTransport, weights: Region, gradients: Region) -> None:
        self._wanted = weights_of(case.world_size)
        self._transport = transport
        self._weights = weights.array
        self._gradients = gradients.array
        self._pauses = Random(case.seed * case.world_size + transport.group.rank)

    def read(self, step: int, bucket: Bucket, verb: str) -> None:
        part = slice(bucket.start, bucket.stop)
        for _ in range(2):  # before and after the time that the layer takes
            self._transport.note(self._weights[part], writes=False, verb=verb)
            if self._weights[part].tobytes() != self._wanted[step][part].tobytes():
                raise WrongWeights(f"rank {self._transport.group.rank}, step {step}: {verb} of bucket {bucket.index}")
            self._transport.compute(LAYER_S * self._pauses.random() ** 3)

    def write_gradient(self, step: int, bucket: Bucket, rank: int) -> None:
        part = slice(bucket.start, bucket.stop)
        self._transport.note(self._gradients[part], writes=True, verb="backward")
        self._gradients[part] = gradient(rank, step)[part]

    def update(self, bucket: Bucket, scale: float) -> None:
        self._transport.compute(LAYER_S * self._pauses.random() ** 3)
        part = slice(bucket.start, bucket.stop)
        self._transport.note(self._gradients[part], writes=False, verb="update")
        self._transport.note(self._weights[part], writes=True, verb="update")
        self._weights[part] = updated(self._weights[part], self._gradients[part], scale)


@cache
def gradient(rank: int, step: int) -> np.ndarray:
    """Whole numbers: any order of additions gives the same sum."""
    return np.random.default_rng([rank, step]).integers(-99, 99, LAYOUT.num_elements).astype(np.float32)


def updated(weights: np.ndarray, gradients: np.ndarray, scale: float) -> np.ndarray:
    return weights - RATE * (np.float32(scale) * gradients)


@cache
def weights_of(world_size: int) -> list[np.ndarray]:
    """Those of every step, and after the last."""
    found = [np.arange(LAYOUT.num_elements, dtype=np.float32)]
    for step in range(NUM_STEPS):
        total = sum(gradient(rank, step) for rank in range(world_size))
        found.append(updated(found[-1], np.asarray(total), 1.0 / world_size))
    return found
