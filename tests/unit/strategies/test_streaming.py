"""Streaming `diloco`: fragments, delay, mixing and codecs; the same bits everywhere, resumed in mid-flight too."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import described, resolved
from samovar.strategies.fragments import Phase, cut
from tests.unit.strategies.harness import NUM_ELEMENTS, Job, PlainCollectives, on_shm, on_sim, resume, same
from tests.unit.strategies.test_definitions import DILOCO, distance, gradient, start

NUM_STEPS = 11
STREAMING = {"sync_period_steps": 5, "fragments": 3, "delay_steps": 2}
codecs = pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])


def job(codec: str, num_steps: int = NUM_STEPS, **settings: Any) -> Job:
    return Job(replace(DILOCO, **(STREAMING | {"compress": codec} | settings)), gradient, num_steps, start())


@codecs
def test_ranks_keep_one_center_and_the_same_bits_on_every_transport(codec: str) -> None:
    first = on_shm(job(codec), 3)
    assert len({left.center.tobytes() for left in first}) == 1
    assert same(first, on_shm(job(codec), 3, PlainCollectives))
    for seed in range(3):
        assert same(first, on_sim(job(codec), 3, seed))


@codecs
def test_evaluating_changes_nothing(codec: str) -> None:
    often, once = on_shm(replace(job(codec), drain_each_step=True), 3), on_shm(job(codec), 3)
    assert same(often, once)
    assert len({tuple(center.tobytes() for center in left.centers) for left in often}) == 1


@pytest.mark.parametrize("first_part", range(1, 6))
@codecs
def test_a_resumed_run_goes_on_with_the_same_bits(codec: str, first_part: int) -> None:
    unbroken, stopped = on_shm(job(codec), 3), on_shm(job(codec, first_part), 3)
    resumed = on_shm(resume(job(codec, first_part), stopped, NUM_STEPS), 3)
    for whole, part in zip(unbroken, resumed, strict=True):
        assert [array.tobytes() for array in part.trace] == [array.tobytes() for array in whole.trace[first_part:]]
        assert part.center.tobytes() == whole.center.tobytes()
        assert all(np.array_equal(value, whole.state[name]) for name, value in part.state.items())


def test_states_are_saved_while_exchanges_are_under_way() -> None:
    phases = [on_shm(job("int4", steps), 2)[0].state["phases"].tolist() for steps in range(1, 6)]
    own, awaited = Phase.OWN, Phase.AWAITED
    assert phases == [
        [awaited, own, own],
        [awaited, own, own],
        [own, awaited, own],
        [own, awaited, own],
        [own, own, awaited],
    ]


@pytest.mark.parametrize(("codec", "tolerance"), [("bf16", 0.01), ("int8", 0.02), ("int4", 0.15)])
def test_close_to_what_is_not_compressed(codec: str, tolerance: float) -> None:
    plain, found = (on_shm(job(name), 3)[0].center for name in ("none", codec))
    assert 0 < distance(found, plain) < tolerance


@codecs
def test_one_worker_has_nothing_to_compress(codec: str) -> None:
    assert same(on_shm(job(codec), 1), on_shm(job("none"), 1))


@codecs
def test_a_codec_alone_is_streaming_in_one_fragment(codec: str) -> None:
    alone: dict[str, Any] = {"fragments": None, "delay_steps": None}
    written: dict[str, Any] = {"fragments": 1, "delay_steps": 0, "mixing": 0.0}
    ranks = on_shm(job(codec, **alone), 3)
    assert same(ranks, on_shm(job(codec, **written), 3))
    assert 0 < distance(ranks[0].center, on_shm(job("none", **alone), 3)[0].center) < 0.1


def test_a_net_may_have_less_lines_than_fragments() -> None:
    parts = cut(NUM_ELEMENTS, 20)
    assert [parts[0].start, parts[-1].stop] == [0, NUM_ELEMENTS]
    assert any(part.start == part.stop for part in parts)
    many: dict[str, Any] = {"sync_period_steps": 20, "fragments": 20, "delay_steps": 3}
    for codec in ("none", "int4"):
        assert same(on_shm(job(codec, 23, **many), 3), on_sim(job(codec, 23, **many), 3, seed=1))


@pytest.mark.parametrize("changed", [{"codec": "bf16"}, {"residual_order": "that of version 0.1.0"}])
def test_a_state_of_another_codec_or_order_gives_its_center_alone(changed: dict[str, str]) -> None:
    stopped = on_shm(job("int8", 4), 2)
    other = [replace(left, state=left.state | changed) for left in stopped]
    residuals = [name for name in stopped[0].state if name.startswith("residual/")]
    assert len(residuals) == 3
    without = [replace(left, state=left.state | {name: np.zeros(0) for name in residuals}) for left in stopped]
    assert same(*(on_shm(resume(job("int8", 4), left, NUM_STEPS), 2) for left in (other, without)))


@pytest.mark.parametrize("changed", [{"fragments": 2}, {"delay_steps": 1}, {"fragments": 1, "delay_steps": 0}])
def test_other_settings_are_refused_while_an_exchange_is_under_way(changed: dict[str, Any]) -> None:
    stopped = on_shm(job("none", 4), 2)
    other = job("none", 4, **changed)
    with pytest.raises(InputError, match="under way, with 3 fragments, a period of 5 and a delay of 2 steps; resume"):
        on_shm(resume(other, stopped, NUM_STEPS), 2)


@pytest.mark.parametrize("changed", [{"fragments": 2}, {"sync_period_steps": 7}, {"fragments": 1, "mixing": 0.0}])
def test_other_settings_go_on_if_none_is(changed: dict[str, Any]) -> None:
    """Each rank's weights, the center and its velocity continue."""
    stopped = on_shm(job("none", 5, delay_steps=0), 2)
    resumed = on_shm(resume(job("none", 5, delay_steps=0, **changed), stopped, 6), 2)
    for before, after in zip(stopped, resumed, strict=True):
        assert after.state["center"].tobytes() == before.state["center"].tobytes()
        assert after.state["velocity"].tobytes() == before.state["velocity"].tobytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fragments": 0}, "--fragments: got 0; give at least 1"),
        ({"delay_steps": -1}, "--delay: got -1 steps; give at least 0"),
        ({"mixing": 1.0}, "--mixing: got 1; give at least 0 and less than 1|--mixing: got 1.0; give at least 0"),
        ({"compress": "top-k"}, "--compress: got 'top-k'; choose one of: none, bf16, int8, int4"),
        ({"fragments": 6, "sync_period_steps": 5}, "--fragments: got 6; give at most 5, the steps of the period"),
        ({"delay_steps": 50}, "--delay: got 50 steps; give less than the 50 steps of the period"),
        ({"name": "slowmo", "fragments": 2}, "--fragments is not a setting of --strategy slowmo: .* choose diloco"),
    ],
)
def test_refusals_say_what_is_allowed(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolved(StrategyConfig(**{"name": "diloco"} | settings), 4)


def test_the_settings_in_words() -> None:
    given = StrategyConfig("diloco", sync_period_steps=40, fragments=4, delay_steps=5, compress="int4")
    assert described(resolved(given, 4)) == (
        "diloco: an exchange every 40 steps, outer rate 0.7, outer momentum 0.9, 4 fragments, taken 5 steps later, "
        "mixing 0.5, differences as int4"
    )
