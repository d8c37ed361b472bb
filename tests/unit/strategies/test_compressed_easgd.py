"""`sync-easgd` with compressed differences: the same centers and bits, nothing lost, close to what is sent as it is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import described, resolved
from tests.unit.strategies.harness import NUM_ELEMENTS, RATE, Job, Left, PlainCollectives, on_shm, on_sim, resume, same
from tests.unit.strategies.test_definitions import distance, gradient, start

NUM_STEPS = 11
codecs = pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])


def config(codec: str, collective: str = "ring", **settings: Any) -> StrategyConfig:
    given = {"sync_period_steps": 2, "moving_rate": 0.2} | settings
    return StrategyConfig("sync-easgd", collective, compress=codec, **given)


def job(codec: str, num_steps: int = NUM_STEPS, **settings: Any) -> Job:
    return Job(config(codec, **settings), gradient, num_steps, start())


def total(ranks: list[Left]) -> np.ndarray:
    """sum_i x_i + c, without what is still to come."""
    return sum(left.weights.astype(float) for left in ranks) + ranks[0].center


@pytest.mark.parametrize("overlap", ["none", "step", "period"])
@codecs
def test_ranks_keep_one_center_and_the_same_bits_on_every_transport(codec: str, overlap: str) -> None:
    first = on_shm(job(codec, overlap=overlap), 3)
    assert len({left.center.tobytes() for left in first}) == 1
    assert same(first, on_shm(job(codec, overlap="none"), 3))
    assert same(first, on_shm(job(codec, overlap=overlap), 3, PlainCollectives))
    assert same(first, on_sim(job(codec, overlap=overlap), 3, seed=1))


@pytest.mark.parametrize("first_part", [3, 4])
@codecs
def test_a_resumed_run_goes_on_with_the_same_bits(codec: str, first_part: int) -> None:
    unbroken, stopped = on_shm(job(codec), 3), on_shm(job(codec, first_part), 3)
    assert any(left.state["residual"].any() for left in stopped)
    resumed = on_shm(resume(job(codec, first_part), stopped, NUM_STEPS), 3)
    for whole, part in zip(unbroken, resumed, strict=True):
        assert part.weights.tobytes() == whole.weights.tobytes()
        assert part.center.tobytes() == whole.center.tobytes()
        assert part.state["residual"].tobytes() == whole.state["residual"].tobytes()


@pytest.mark.parametrize("collective", ["ring", "tree", "halving-doubling", "direct"])
@codecs
def test_what_is_left_out_is_not_lost(codec: str, collective: str) -> None:
    """Multiples of 2^-11, which bf16 cuts without rounding twice: sum (x_i + e_i) + c, to the last bit."""
    world_size, num_steps = 4, 9
    one = config(codec, collective, moving_rate=0.25)

    def gradient_of_integers(rank: int, step: int, x: np.ndarray) -> np.ndarray:
        return 8 * np.random.default_rng([rank, step]).integers(-20, 20, NUM_ELEMENTS).astype(x.dtype)

    begin = np.arange(NUM_ELEMENTS, dtype=np.float32) - 50
    ranks = on_shm(Job(one, gradient_of_integers, num_steps, begin), world_size)
    moved = sum(
        RATE * gradient_of_integers(rank, step, begin.astype(float))
        for rank in range(world_size)
        for step in range(num_steps)
    )
    missing = (world_size + 1) * begin.astype(float) - moved - total(ranks)
    residuals = np.sum([float(left.state["residual"].astype(float).sum()) for left in ranks])
    assert np.abs(missing).max() > 0.01
    tolerance = 0.0 if codec == "bf16" else 1e-3
    assert abs(missing.sum() - residuals) <= tolerance


@pytest.mark.parametrize(("codec", "tolerance"), [("bf16", 0.01), ("int8", 0.02), ("int4", 0.15)])
def test_close_to_what_is_not_compressed(codec: str, tolerance: float) -> None:
    plain, found = (on_shm(job(name), 3)[0].center for name in ("none", codec))
    assert 0 < distance(found, plain) < tolerance


@codecs
def test_one_worker_has_nothing_to_compress(codec: str) -> None:
    assert same(on_shm(job(codec), 1), on_shm(job("none"), 1))


@codecs
def test_a_state_of_another_codec_gives_its_center_alone(codec: str) -> None:
    stopped = on_shm(job(codec, 4), 2)
    other = [replace(left, state=left.state | {"codec": "top-k"}) for left in stopped]
    without = [replace(left, state={"center": left.state["center"]}) for left in stopped]
    runs = [on_shm(resume(job(codec, 4), left, NUM_STEPS), 2) for left in (other, without)]
    assert same(*runs)


@codecs
def test_a_residual_in_the_order_of_version_0_1_0_is_left_out(codec: str) -> None:
    stopped = on_shm(job(codec, 4), 2)
    old = [
        replace(left, state={key: value for key, value in left.state.items() if key != "residual_order"})
        for left in stopped
    ]
    without = [replace(left, state={"center": left.state["center"]}) for left in stopped]
    runs = [on_shm(resume(job(codec, 4), left, NUM_STEPS), 2) for left in (old, without)]
    assert same(*runs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compress": "top-k"}, "--compress.*: got 'top-k'; choose one of: none, bf16, int8, int4$"),
        ({"compress": "1-bit"}, "--compress.*: got '1-bit'; choose one of"),
        ({"compress": "bf16", "variant": "broadcast"}, "--compress bf16: --variant broadcast sends weights"),
        (
            {"name": "local-sgd", "compress": "bf16"},
            "--compress is not a setting of .* choose sync, diloco or sync-easgd$",
        ),
    ],
)
def test_refusals_say_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StrategyConfig(**{"name": "sync-easgd"} | settings)


def test_the_settings_in_words() -> None:
    words = described(resolved(StrategyConfig("sync-easgd", compress="int8"), 4))
    assert words.endswith("overlap period, variant reduce, differences as int8")
