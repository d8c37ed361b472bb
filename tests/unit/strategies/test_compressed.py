"""`sync` with compressed gradients: equal replicas, the same bits every time, the trial, and what it decides."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from samovar.collectives.encoded import CODECS
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.errors import InputError
from samovar.core.stateful import State
from samovar.strategies.base import Buffers
from samovar.strategies.catalog import build_strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.sync import CompressedSync
from samovar.strategies.trial import NUM_TRIAL_STEPS, TrialCallback
from samovar.transports.base import Region, Transport
from tests.unit.strategies.harness import LAYOUT, NUM_ELEMENTS, Job, in_time, on_shm, on_sim, on_threads, resume, same
from tests.unit.strategies.test_definitions import gradient, start

NUM_STEPS = 11
# 1 where there is a parameter, 0 in the gaps between them.
PARAMETERS = np.zeros(NUM_ELEMENTS, np.float32)
for entry in LAYOUT.entries:
    PARAMETERS[entry.offset : entry.stop] = 1
codecs = pytest.mark.parametrize("codec", CODECS)


def job(codec: str, collective: str = "ring", overlap: str = "backward", num_steps: int = NUM_STEPS) -> Job:
    config = StrategyConfig("sync", collective, 64, overlap=overlap, compress=codec, always_compresses=codec != "none")
    return Job(config, gradient, num_steps, start())


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("collective", ALL_REDUCES)
@codecs
def test_replicas_are_equal_and_so_are_reruns(codec: str, collective: str, world_size: int) -> None:
    found = on_sim(job(codec, collective, num_steps=4), world_size, seed=1)
    assert len({left.weights.tobytes() for left in found}) == 1
    assert same(on_sim(job(codec, collective, "none", num_steps=4), world_size, seed=2), found)
    assert same(on_shm(job(codec, collective, num_steps=4), world_size), found)


@codecs
def test_a_resumed_run_goes_on_with_the_same_bits(codec: str) -> None:
    whole = on_sim(job(codec, num_steps=9), 3, seed=1)
    half = job(codec, num_steps=4)
    rest = on_sim(resume(half, on_sim(half, 3, seed=2), 9), 3, seed=3)
    assert [left.weights.tobytes() for left in rest] == [left.weights.tobytes() for left in whole]
    for left, other in zip(rest, whole, strict=True):
        assert left.state.keys() == other.state.keys()
        assert all(np.array_equal(left.state[key], other.state[key]) for key in left.state if "residual" in key)


@pytest.mark.parametrize(("codec", "tolerance"), [("bf16", 0.01), ("int8", 0.02)])
def test_close_to_what_is_not_compressed(codec: str, tolerance: float) -> None:
    plain, found = (on_sim(job(name), 3, seed=1)[0].weights * PARAMETERS for name in ("none", codec))
    assert 0 < np.linalg.norm(found - plain) < tolerance * np.linalg.norm(plain)


@pytest.mark.parametrize("codec", ["top-k", "1-bit"])
def test_what_is_left_out_comes_in_time(codec: str) -> None:
    """The same minimum in the end; without the residuals it would be another."""

    def slowly(rank: int, step: int, x: np.ndarray) -> np.ndarray:
        return np.float32(0.1) * gradient(rank, step, x)

    jobs = [replace(job(name, num_steps=600), gradient=slowly) for name in (codec, "none")]
    ends = [on_shm(one, 2)[0].weights * PARAMETERS for one in jobs]
    assert np.linalg.norm(ends[0] - ends[1]) < 0.2 * np.linalg.norm(ends[1])


@codecs
def test_gaps_between_parameters_stay_zero(codec: str) -> None:
    """A codec may make something of nothing, which would come back as the next step's gradient and grow."""

    def program(transport: Transport) -> np.ndarray:
        region = Region.of(transport.open_window("model", NUM_ELEMENTS * 4, 0), 0, NUM_ELEMENTS, np.float32)
        buckets, collectives = LAYOUT.buckets(), PlannedCollectives(transport, lambda _num_bytes: "tree")
        buffers = Buffers(region.part(0, 0), region)
        strategy = build_strategy(job(codec).config, collectives, buckets, buffers, in_time)
        for step in range(3):
            region.array[:] += PARAMETERS
            for bucket in buckets:
                strategy.gradient_final(bucket)
            strategy.finish_step(step, lambda _bucket, _scale: None)
        return region.array

    assert PARAMETERS.sum() < NUM_ELEMENTS
    for gradients in on_threads(2, program):
        assert not gradients[PARAMETERS == 0].any()


def test_one_worker_compresses_nothing() -> None:
    assert same(on_shm(job("1-bit"), 1), on_shm(job("none"), 1))


class Stopwatch:
    """A clock that gives compressed steps `compressed_s`, and the others a second; tests ask which is which."""

    def __init__(self, compressed_s: float) -> None:
        self.now_s, self._compressed_s, self._calls = 0.0, compressed_s, 0

    def __call__(self) -> float:
        self.now_s += self._compressed_s if self._calls % 2 == 0 else 1.0
        self._calls += 1
        return self.now_s


def tried(
    compressed_s: float, num_steps: int, states: list[State], transport: Transport
) -> tuple[State, list[str], list[bytes], np.ndarray]:
    """The state after so many steps, what was told, the sum of each step, and all inputs less all sums."""
    region = Region.of(transport.open_window("model", NUM_ELEMENTS * 4, 0), 0, NUM_ELEMENTS, np.float32)
    config, buckets, told = StrategyConfig("sync", "ring", 64, compress="int8"), LAYOUT.buckets(64), []
    clock = Stopwatch(compressed_s * (1 + transport.group.rank))
    strategy = build_strategy(
        config,
        PlannedCollectives(transport, lambda _num_bytes: "ring"),
        buckets,
        Buffers(region.part(0, 0), region),
        in_time,
        callback=TrialCallback(clock, told.append),
    )
    assert isinstance(strategy, CompressedSync)
    first_step = 0
    if states:
        strategy.load_state_dict(states[transport.group.rank])
        first_step = NUM_TRIAL_STEPS + 1
    sums, left = [], np.zeros(NUM_ELEMENTS)
    for step in range(first_step, first_step + num_steps):
        region.array[:] = gradient(transport.group.rank, step, start()) * PARAMETERS
        left += region.array
        for bucket in buckets:
            strategy.gradient_final(bucket)
        strategy.finish_step(step, lambda _bucket, _scale: None)
        sums.append(region.array.tobytes())
        left -= region.array / transport.group.world_size
    return strategy.state_dict(), told, sums, left


def test_it_stays_on_where_it_helps() -> None:
    found = on_threads(2, partial(tried, 0.25, NUM_TRIAL_STEPS + 3, []))
    for _, told, _, _ in found:
        assert told == ["--compress int8 stays on: a step takes 500 ms with it and 1 s without"]
    assert all(state["trial/helps"] == 1 for state, _, _, _ in found)
    assert found[0][2] == found[1][2]


def test_it_is_switched_off_where_it_does_not_help_and_nothing_is_lost() -> None:
    found = on_threads(2, partial(tried, 0.6, NUM_TRIAL_STEPS + 3, []))
    for _, told, _, _ in found:
        assert told == [
            "--compress int8 is switched off, since it does not help here: a step takes 1.2 s with it and 1 s without "
            "(to keep it: --compress-always)"
        ]
    for state, _, _, _ in found:
        assert state["trial/helps"] == 0
        assert all(not np.any(value) for key, value in state.items() if key.startswith("residual/"))
    np.testing.assert_allclose((found[0][3] + found[1][3]) * PARAMETERS, 0.0, atol=1e-4)


@pytest.mark.parametrize(("compressed_s", "at_resume_s"), [(0.25, 9.0), (0.6, 0.01)])
def test_what_was_decided_stays_after_a_resume(compressed_s: float, at_resume_s: float) -> None:
    """Even where the clock now says otherwise."""
    whole = on_threads(2, partial(tried, compressed_s, NUM_TRIAL_STEPS + 5, []))
    half = on_threads(2, partial(tried, compressed_s, NUM_TRIAL_STEPS + 1, []))
    rest = on_threads(2, partial(tried, at_resume_s, 4, [state for state, _, _, _ in half]))
    for (_, told, sums, _), (_, _, whole_sums, _) in zip(rest, whole, strict=True):
        assert told == []
        assert sums == whole_sums[-4:]


def test_ranks_stay_agreed_if_one_of_them_sends_no_messages_any_more() -> None:
    """After a resume over hosts, where a host's first rank sends for the others, these have no residual."""
    half = on_threads(2, partial(tried, 0.25, NUM_TRIAL_STEPS + 1, []))
    states = [dict(state) for state, _, _, _ in half]
    states[1] |= {key: np.zeros(0, np.float32) for key in states[1] if key.startswith("residual/")}
    (_, told, sums, _), (_, others_told, others_sums, _) = on_threads(2, partial(tried, 0.25, 4, states))
    assert told == others_told == []
    assert sums == others_sums


def test_residuals_in_the_order_of_version_0_1_0_are_left_out_and_that_is_told() -> None:
    """It was that of a plan's messages. Added to a buffer, they would belong to other elements."""
    half = on_threads(2, partial(tried, 0.25, NUM_TRIAL_STEPS + 1, []))
    states = [dict(state) for state, _, _, _ in half]
    assert any(np.any(value) for key, value in states[0].items() if key.startswith("residual/"))
    old = [{key: value for key, value in state.items() if key != "residual_order"} for state in states]
    without = [{key: 0 * value if key.startswith("residual/") else value for key, value in s.items()} for s in states]
    expected = on_threads(2, partial(tried, 0.25, 4, without))
    sentence = "the snapshot is of an older Samovar, which kept what int8 left out in another order"
    for (_, told, sums, _), (_, _, wanted, _) in zip(
        on_threads(2, partial(tried, 0.25, 4, old)), expected, strict=True
    ):
        assert [text.partition(":")[0] for text in told] == [sentence]
        assert sums == wanted


def test_a_state_of_another_codec_begins_anew() -> None:
    half = job("bf16", num_steps=4)
    left = on_sim(half, 2, seed=1)
    other = replace(resume(half, left, 6), config=job("int8").config)
    fresh = replace(other, resumed=tuple(replace(one, state={}) for one in left))
    assert same(on_sim(other, 2, seed=1), on_sim(fresh, 2, seed=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compress": "gzip"}, "--compress: got 'gzip'; choose one of: none, bf16, int8, int4, top-k, 1-bit"),
        (
            {"name": "local-sgd", "compress": "bf16"},
            "--compress is not a setting of .* or choose sync, diloco or sync-easgd$",
        ),
        ({"compress": "bf16", "overlap": "full", "bucket_size_bytes": 1}, "--compress bf16: with --overlap full"),
        ({"always_compresses": True}, "--compress-always: there is nothing to compress"),
        ({"compress": "none", "always_compresses": True}, "--compress-always: there is nothing to compress"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StrategyConfig(**settings)
