"""Settings of strategies: defaults for a number of workers, refusals, warnings, words."""

import json
from pathlib import Path
from typing import Any

import pytest

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.strategies.config import STRATEGIES, StrategyConfig
from samovar.strategies.defaults import described, resolved, warnings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sync_period_steps": 8},
            "--sync-period is no setting of --strategy sync: leave it out, or choose local-sgd or",
        ),
        ({"moving_rate": 0.1}, "--moving-rate is no setting of --strategy sync: leave it out, or choose sync-easgd"),
        ({"name": "local-sgd", "overlap": "none"}, "--overlap is no setting of --strategy local-sgd"),
        ({"name": "local-sgd", "bucket_size_bytes": 1}, "--bucket is no setting of --strategy local-sgd"),
        ({"name": "local-sgd", "outer_rate": 0.5}, "--outer-rate is no setting of .* or choose diloco"),
        ({"name": "diloco", "variant": "reduce"}, "--variant is no setting of --strategy diloco"),
        ({"name": "sync-easgd", "outer_momentum": 0.5}, "--outer-momentum is no setting of --strategy sync-easgd"),
        ({"overlap": "period"}, "--overlap of sync: got 'period'; choose one of: none, backward"),
        ({"name": "sync-easgd", "overlap": "full"}, "--overlap of sync-easgd: .* one of: none, step, period"),
        ({"overlap": "backward"}, "--overlap backward: with one bucket .* give --bucket layer or a number of bytes"),
        ({"name": "sync-easgd", "variant": "tree"}, "--variant: got 'tree'; choose one of: reduce, broadcast"),
        ({"name": "sync-easgd", "variant": "broadcast", "overlap": "step"}, "--overlap step: --variant broadcast"),
        ({"name": "diloco", "sync_period_steps": 0}, "--sync-period: got 0 steps; give at least 1"),
        ({"name": "sync-easgd", "moving_rate": 0.0}, "--moving-rate: got 0.0; give more than 0 and at most 1"),
        ({"name": "sync-easgd", "moving_rate": float("nan")}, "--moving-rate: got nan"),
        ({"name": "diloco", "outer_rate": -1.0}, "--outer-rate: got -1.0; give more than 0$"),
        ({"name": "diloco", "outer_rate": float("inf")}, "--outer-rate: got inf"),
        ({"name": "diloco", "outer_momentum": 1.0}, "--outer-momentum: got 1.0; give at least 0 and less than 1"),
    ],
)
def test_refusals_are_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StrategyConfig(**settings)


@pytest.mark.parametrize("world_size", [1, 2, 4, 31])
@pytest.mark.parametrize("name", STRATEGIES)
def test_defaults_are_quiet_complete_and_stay_as_they_are(name: str, world_size: int) -> None:
    config = resolved(StrategyConfig(name), world_size)
    assert resolved(config, world_size) == config
    assert warnings(config, world_size) == ()


def test_defaults_and_their_words() -> None:
    words = [described(resolved(StrategyConfig(name), 4)) for name in STRATEGIES]
    assert words == [
        "sync: overlap none",
        "local-sgd: an exchange every 8 steps",
        "diloco: an exchange every 50 steps, outer rate 0.7, outer momentum 0.9",
        "sync-easgd: an exchange every 8 steps, moving rate 0.18, overlap period, variant reduce",
    ]
    assert resolved(StrategyConfig("sync", bucket_size_bytes=64), 4).overlap == "backward"
    assert resolved(StrategyConfig("sync-easgd", variant="broadcast"), 4).overlap == "none"
    assert "every step," in described(resolved(StrategyConfig("sync-easgd", sync_period_steps=1), 2))


def test_a_moving_rate_that_diverges_is_refused_and_one_that_swings_is_warned_of() -> None:
    def config(rate: float) -> StrategyConfig:
        return StrategyConfig("sync-easgd", moving_rate=rate)

    for rate in (0.4, 0.5, 1.0):
        with pytest.raises(InputError, match=r"--moving-rate: got .* 4 workers .* less than 0\.4 \(default 0\.18\)"):
            resolved(config(rate), 4)
    assert warnings(resolved(config(0.25), 4), 4) == ()
    (sentence,) = warnings(resolved(config(0.3), 4), 4)
    assert sentence.startswith("--moving-rate 0.3 with 4 workers moves the center past the workers' mean")
    assert "up to 0.25 it does not" in sentence


@pytest.mark.parametrize("name", STRATEGIES)
def test_resolved_settings_come_back_from_the_configuration_file(name: str, tmp_path: Path) -> None:
    config = RunConfig("train", Path("solver.prototxt"), workers=3, strategy=resolved(StrategyConfig(name), 3))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_json()))
    assert RunConfig.load(path) == config
