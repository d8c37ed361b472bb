"""Settings of strategies: defaults for a number of workers, refusals, warnings, words."""

import json
from pathlib import Path
from typing import Any

import pytest

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.launcher.plan import with_momentum
from samovar.solver.policy import PolicyConfig, SolverConfig
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig, parse_bucket
from samovar.strategies.defaults import MomentumShares, described, resolved, shared_momentum, warnings

LONE_GROUPS = (
    "hybrid-easgd: {} workers make no two equal groups of 2 to 4, so that each worker is a group of its own, "
    "as with shm-easgd"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sync_period_steps": 8},
            "--sync-period is not a setting of --strategy sync: leave it out, or choose local-sgd, diloco,",
        ),
        ({"moving_rate": 0.1}, "--moving-rate is not a setting of --strategy sync: leave it out, or choose sync-easgd"),
        ({"name": "local-sgd", "overlap": "none"}, "--overlap is not a setting of --strategy local-sgd"),
        ({"name": "local-sgd", "bucket_size_bytes": 1}, "--bucket is not a setting of --strategy local-sgd"),
        ({"name": "local-sgd", "outer_rate": 0.5}, "--outer-rate is not a setting of .* or choose diloco"),
        ({"name": "diloco", "variant": "reduce"}, "--variant is not a setting of --strategy diloco"),
        ({"name": "sync-easgd", "outer_momentum": 0.5}, "--outer-momentum is not a setting of --strategy sync-easgd"),
        ({"overlap": "period"}, "--overlap of sync: got 'period'; choose one of: none, backward"),
        ({"name": "sync-easgd", "overlap": "full"}, "--overlap of sync-easgd: .* one of: none, step, period"),
        (
            {"name": "async-easgd", "overlap": "step"},
            "--overlap of async-easgd: got 'step'; choose one of: none, period",
        ),
        ({"name": "shm-easgd", "overlap": "period"}, "--overlap is not a setting of --strategy shm-easgd"),
        ({"overlap": "backward"}, "--overlap backward: with one bucket .* give --bucket layer or a number of bytes"),
        ({"owner": "nobody"}, "--owner: got 'nobody'; choose one of: spread, root, parts, all"),
        ({"owner": "root"}, "--owner root: is for --overlap full; add that, or leave --owner out"),
        ({"overlap": "full", "owner": "all", "bucket_size_bytes": 1}, "--owner all: is for --overlap none; add that"),
        ({"owner": "parts", "bucket_size_bytes": 1}, "--owner parts: is for --overlap none; add that"),
        ({"owner": "parts", "compress": "bf16"}, "--owner parts: .* leave --compress bf16 out, or choose --owner all"),
        ({"name": "sync-easgd", "variant": "tree"}, "--variant: got 'tree'; choose one of: reduce, broadcast"),
        ({"name": "sync-easgd", "variant": "broadcast", "overlap": "step"}, "--overlap step: --variant broadcast"),
        ({"name": "diloco", "sync_period_steps": 0}, "--sync-period: got 0 steps; give at least 1"),
        ({"name": "diloco", "sync_period_steps": 10**400}, "--sync-period: got inf steps; give at least 1"),
        ({"bucket_size_bytes": -(10**400)}, "--bucket: got -inf bytes; give at least 1"),
        ({"name": "sync-easgd", "moving_rate": 0.0}, "--moving-rate: got 0; give more than 0 and less than 1"),
        ({"name": "sync-easgd", "moving_rate": float("nan")}, "--moving-rate: got nan"),
        ({"name": "diloco", "outer_rate": -1.0}, "--outer-rate: got -1; give more than 0$"),
        ({"name": "diloco", "outer_rate": float("inf")}, "--outer-rate: got inf"),
        ({"name": "diloco", "outer_momentum": 1.0}, "--outer-momentum: got 1.0; give at least 0 and less than 1"),
        ({"name": "async-msgd", "center_momentum": -0.1}, "--center-momentum: got -0.1; give at least 0 and less"),
        ({"name": "async-sgd", "center_momentum": 0.9}, "--center-momentum is not a setting of .* choose async-msgd$"),
        ({"name": "async-sgd", "moving_rate": 0.1}, "--moving-rate is not a setting of --strategy async-sgd"),
        ({"name": "shm-easgd", "max_staleness_steps": -1}, "--max-staleness: got -1 updates; give at least 0"),
        (
            {"name": "async-easgd", "max_staleness_steps": 3},
            "--max-staleness is not a setting of --strategy async-easgd",
        ),
        ({"name": "hybrid-easgd", "group_size": 0}, "--group-size: got 0 workers; give at least 1"),
        ({"name": "shm-easgd", "group_size": 2}, "--group-size is not a setting of .* or choose hybrid-easgd$"),
        ({"name": "sync-easgd", "read_first": True}, "--read-first is not a setting of .* choose shm-easgd or hybrid"),
    ],
)
def test_refusals_are_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StrategyConfig(**settings)


@pytest.mark.parametrize("size", ["²", "0", "-1", "1" * 5000])
def test_the_size_of_a_bucket_is_a_number_of_bytes(size: str) -> None:
    with pytest.raises(InputError, match=r"--bucket: got .*; give 'model', 'layer' or a number of bytes"):
        parse_bucket(size)


@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_no_number(value: bool) -> None:
    with pytest.raises(InputError, match=r"--sync-period: got (True|False); give a value of type int"):
        StrategyConfig("local-sgd", sync_period_steps=value)


@pytest.mark.parametrize("world_size", [1, 2, 4, 31])
@pytest.mark.parametrize("name", STRATEGIES)
def test_defaults_are_quiet_complete_and_stay_as_they_are(name: str, world_size: int) -> None:
    config = resolved(StrategyConfig(name), world_size)
    assert resolved(config, world_size) == config
    expected = (LONE_GROUPS.format(world_size),) if config.group_size == 1 and world_size > 1 else ()
    assert warnings(config, world_size) == expected


def test_groups_of_one_are_told() -> None:
    config = resolved(StrategyConfig("hybrid-easgd", group_size=1), 4)
    assert warnings(config, 4) == (
        "hybrid-easgd: with --group-size 1 each worker is a group of its own, as with shm-easgd",
    )


DEFAULTS = [
    "sync: overlap none",
    "local-sgd: an exchange every 8 steps",
    "diloco: an exchange every 50 steps, outer rate 0.7, outer momentum 0.9",
    "sync-easgd: an exchange every 8 steps, moving rate 0.18, overlap period, variant reduce",
    "async-sgd: an exchange every step",
    "async-msgd: an exchange every step, momentum 0.6 at the center",
    "hogwild-sgd: an exchange every step",
    "round-robin-easgd: an exchange every 8 steps, moving rate 0.225",
    "async-easgd: an exchange every 8 steps, moving rate 0.225",
    "async-measgd: an exchange every 8 steps, moving rate 0.225",
    "hogwild-easgd: an exchange every 8 steps, moving rate 0.225",
    "shm-easgd: an exchange every 4 steps, moving rate 0.125",
    "hybrid-easgd: an exchange every 4 steps, moving rate 0.25, groups of 2",
]
NAMED = {sentence.partition(":")[0] for sentence in DEFAULTS}


def test_defaults_and_their_words() -> None:
    words = [described(resolved(StrategyConfig(name), 4)) for name in STRATEGIES]
    assert [sentence for sentence in words if sentence not in DEFAULTS] == [
        sentence for sentence in words if sentence.partition(":")[0] not in NAMED
    ]
    assert resolved(StrategyConfig("sync", bucket_size_bytes=64), 4).overlap == "backward"
    assert resolved(StrategyConfig("sync-easgd", variant="broadcast"), 4).overlap == "none"
    assert "every step," in described(resolved(StrategyConfig("sync-easgd", sync_period_steps=1), 2))


def test_a_moving_rate_that_diverges_is_refused_and_one_that_swings_is_warned_of() -> None:
    def config(rate: float) -> StrategyConfig:
        return StrategyConfig("sync-easgd", moving_rate=rate)

    for rate in (0.4, 0.5, 0.99):
        with pytest.raises(
            InputError, match=r"--moving-rate: got .* less than 0\.4, .* 4 workers .* \(default 0\.18\)"
        ):
            resolved(config(rate), 4)
    assert warnings(resolved(config(0.25), 4), 4) == ()
    (sentence,) = warnings(resolved(config(0.3), 4), 4)
    assert sentence.startswith("--moving-rate 0.3 with 4 workers moves the center past the workers' mean")
    assert "up to 0.25 it does not" in sentence


@pytest.mark.parametrize(("worker_rate", "limit"), [(None, 2 / 9), (0.1, 2 / 9), (0.5, 1.5 / 8), (0.9, 1.1 / 8)])
def test_a_worker_that_goes_further_leaves_less_room_for_the_moving_rate(
    worker_rate: float | None, limit: float
) -> None:
    """Of 8 workers in step: their mean and the center move apart from the limit on, and do not below it."""

    def config(rate: float) -> StrategyConfig:
        return StrategyConfig("sync-easgd", moving_rate=rate, worker_rate=worker_rate)

    for rate, grows in ((0.99 * limit, False), (1.01 * limit, True)):
        own, distance = max(rate, worker_rate or 0.0), 1.0
        for _ in range(1000):
            distance -= own * distance + rate * 8 * distance
        assert (abs(distance) > 1.0) == grows
    resolved(config(0.99 * limit), 8)
    with pytest.raises(InputError, match=f"less than {limit:.4g}, from which on 8 workers and their center move apart"):
        resolved(config(1.01 * limit), 8)
    pushed = StrategyConfig("shm-easgd", moving_rate=1.01 * limit, worker_rate=worker_rate)
    assert f"under {limit:.4g} it does not" in warnings(resolved(pushed, 8), 8)[0]


@pytest.mark.parametrize(
    ("world_size", "alone", "pushed", "group_size"),
    [(1, 0.5, 0.5, 1), (2, 0.45, 0.25, 1), (6, 0.15, 0.5 / 6, 3), (8, 0.1125, 0.0625, 4), (16, 0.05625, 0.03125, 4)],
)
def test_moving_rates_and_groups_of_a_number_of_workers(
    world_size: int, alone: float, pushed: float, group_size: int
) -> None:
    for name in ("round-robin-easgd", "async-easgd", "async-measgd", "hogwild-easgd"):
        assert resolved(StrategyConfig(name), world_size).moving_rate == pytest.approx(alone)
    assert resolved(StrategyConfig("shm-easgd"), world_size).moving_rate == pytest.approx(pushed)
    hybrid = resolved(StrategyConfig("hybrid-easgd"), world_size)
    assert hybrid.group_size == group_size
    assert hybrid.moving_rate == pytest.approx(0.5 / (world_size // group_size))


def test_what_is_refused_and_warned_of_at_a_center() -> None:
    with pytest.raises(InputError, match=r"--moving-rate: got 1; give more than 0 and less than 1$"):
        StrategyConfig("async-easgd", moving_rate=1.0)
    with pytest.raises(
        InputError, match=r"--group-size 3: 8 workers do not divide into such groups.* of 8 \(default 4\)"
    ):
        resolved(StrategyConfig("hybrid-easgd", group_size=3), 8)
    (sentence,) = warnings(resolved(StrategyConfig("async-easgd", moving_rate=0.6), 2), 2)
    assert sentence.startswith("--moving-rate 0.6 with 2 workers takes a worker and the center past each other")
    further = StrategyConfig("async-easgd", worker_rate=0.9)
    assert warnings(resolved(further, 16), 16) == ()
    (sentence,) = warnings(resolved(further, 2), 2)
    assert sentence.startswith("--worker-rate 0.9 with moving rate 0.45 takes a worker and the center past each other")
    assert sentence.endswith("up to 0.55 it does not")
    papers = StrategyConfig("shm-easgd", moving_rate=0.2)
    assert warnings(resolved(papers, 8), 8) == ()
    (sentence,) = warnings(resolved(papers, 16), 16)
    assert "diverges where all read the center before any has pushed; under 0.1176 it does not" in sentence
    in_groups = StrategyConfig("hybrid-easgd", moving_rate=0.2, group_size=4)
    assert warnings(resolved(in_groups, 16), 16) == ()


def test_momentum_belongs_to_the_worker_or_to_the_center() -> None:
    for name in ("sync", "async-easgd", "async-measgd", "shm-easgd"):
        assert shared_momentum(StrategyConfig(name), 0.9, 4) == MomentumShares(StrategyConfig(name), 0.9)
    for name in ("async-sgd", "hogwild-sgd"):
        shares = shared_momentum(StrategyConfig(name), 0.9)
        assert shares.worker == 0.0
        assert shares.notices == (
            f"{name}: the solver's momentum 0.9 is off; choose async-msgd to have it at the center",
        )
        assert shared_momentum(StrategyConfig(name), 0.0).notices == ()
        assert "make it with momentum=0" in shares.refusal
    shares = shared_momentum(StrategyConfig("async-msgd"), 0.95)
    assert (shares.worker, shares.config.center_momentum, shares.notices) == (0.0, 0.95, ())
    assert shared_momentum(StrategyConfig("async-msgd", center_momentum=0.5), 0.95).config.center_momentum == 0.5
    assert resolved(shared_momentum(StrategyConfig("async-msgd"), 0.0).config, 2).center_momentum == 0.8
    for num_workers, momentum in ((1, 0.95), (4, 0.8), (20, 0.0), (64, 0.0)):
        assert shared_momentum(StrategyConfig("async-msgd"), 0.95, num_workers).config.center_momentum == momentum
    with pytest.raises(InputError, match="async-measgd: the solver or optimizer has no momentum; give it"):
        shared_momentum(StrategyConfig("async-measgd"), 0.0)


@pytest.mark.parametrize("num_workers", [1, 2, 4, 10, 16])
@pytest.mark.parametrize("name", ["async-sgd", "hogwild-sgd", "async-msgd"])
def test_steps_that_add_up_move_the_center_as_fast_as_one_worker_with_momentum(name: str, num_workers: int) -> None:
    """A constant gradient of 1 moves weights by rate / (1 - momentum) a step in the long run."""
    shares = shared_momentum(StrategyConfig(name), 0.9, num_workers)
    center = num_workers * shares.rate_factor / (1 - (shares.config.center_momentum or 0.0))
    assert center == pytest.approx(1 / (1 - 0.9), rel=1e-5)
    again = shared_momentum(resolved(shares.config, num_workers), 0.9, num_workers)
    assert again.rate_factor == shares.rate_factor, "ranks ask once more, with the settings of the launcher"
    assert shared_momentum(StrategyConfig(name), 0.0, num_workers).rate_factor == 1.0
    assert shared_momentum(StrategyConfig("async-msgd", center_momentum=0.5), 0.9, num_workers).rate_factor == 1.0


@pytest.mark.parametrize("name", ["async-sgd", "hogwild-sgd"])
def test_workers_that_keep_their_momentum_look_ahead_at_a_part_of_the_rate(name: str) -> None:
    shares = shared_momentum(StrategyConfig(name, keep_momentum=True), 0.9, 4)
    assert (shares.worker, shares.rate_factor, shares.is_nesterov, shares.notices) == (0.9, 0.25, True, ())
    without = shared_momentum(StrategyConfig(name, keep_momentum=True), 0.0, 4)
    assert (without.rate_factor, without.is_nesterov) == (0.25, False)
    many = shared_momentum(StrategyConfig(name, keep_momentum=True), 0.9, 3_000)
    assert many.rate_factor == pytest.approx(1 / 3_000, rel=1e-5)
    sgd = SolverConfig("SGD", PolicyConfig("fixed", 0.1), momentum=0.9)
    _, solver, (notice,) = with_momentum(StrategyConfig(name, keep_momentum=True), sgd, 4)
    assert (solver.type, solver.momentum, solver.policy.base_lr) == ("Nesterov", 0.9, 0.025)
    assert "a worker's base_lr is 0.025 instead of 0.1" in notice
    adam = SolverConfig("Adam", PolicyConfig("fixed", 0.1), momentum=0.9)
    _, solver, (notice,) = with_momentum(StrategyConfig(name, keep_momentum=True), adam, 4)
    assert (solver.type, solver.momentum, solver.policy.base_lr) == ("Adam", 0.9, 0.025)
    assert "4 of them move the center as fast as one moves its weights" in notice


@pytest.mark.parametrize("num_workers", [1, 2, 4, 16, 128, 512])
def test_a_center_whose_workers_look_ahead_forgets_in_their_steps_what_one_worker_does_in_one(num_workers: int) -> None:
    for momentum in (0.9, 0.0):  # of which the center still has 0.9
        shares = shared_momentum(StrategyConfig("async-msgd", look_ahead=True), momentum, num_workers)
        at_center = shares.config.center_momentum
        assert at_center is not None
        assert at_center**num_workers == pytest.approx(0.9, rel=1e-3)
        assert num_workers * shares.rate_factor / (1 - at_center) == pytest.approx(1 / (1 - momentum), rel=1e-3)
        ranks = shared_momentum(resolved(shares.config, num_workers), momentum, num_workers)
        assert (ranks.config.center_momentum, ranks.rate_factor) == (at_center, shares.rate_factor)
    assert resolved(StrategyConfig("async-msgd", look_ahead=True), num_workers).center_momentum == at_center


@pytest.mark.parametrize("num_workers", [2, 4, 16])
def test_the_rate_that_a_refused_momentum_is_advised_is_that_of_train(num_workers: int) -> None:
    """In a loop of the user's own the optimizer then has no momentum, so it says nothing of its speed."""
    config = StrategyConfig("async-msgd", look_ahead=True)
    assert "with lr / (1 - 0.9), which is as fast" in shared_momentum(config, 0.9, num_workers).refusal
    assert "lr / " not in shared_momentum(StrategyConfig("async-msgd"), 0.9, num_workers).refusal
    advised = 0.1 / (1 - 0.9) * shared_momentum(config, 0.0, num_workers).rate_factor
    sgd = SolverConfig("SGD", PolicyConfig("fixed", 0.1), momentum=0.9)
    _, solver, _ = with_momentum(config, sgd, num_workers)
    assert solver.policy.base_lr == pytest.approx(advised, rel=1e-4)


@pytest.mark.parametrize("name", ["sync-easgd", "async-easgd", "async-sgd", "hybrid-easgd", "round-robin-easgd"])
def test_a_period_without_an_exchange_is_warned_of(name: str) -> None:
    """The center is what is tested and saved."""
    config = resolved(StrategyConfig(name, sync_period_steps=50), 2)
    (text,) = set(warnings(config, 2, range(40))) - set(warnings(config, 2))
    assert "--sync-period 50: no exchange comes in steps 0 to 40" in text
    assert "give at most 40, or more --iterations" in text
    for steps in (range(50), range(40, 60), range(30, 30)):
        assert warnings(config, 2, steps) == warnings(config, 2)
    for other in ("local-sgd", "diloco"):  # their weights are averaged when they are evaluated
        config = resolved(StrategyConfig(other, sync_period_steps=50), 2)
        assert warnings(config, 2, range(40)) == warnings(config, 2)


def test_late_steps_that_look_ahead_converge_where_those_without_momentum_diverge() -> None:
    """f(c) = k c^2 / 2, each step made from the center of P - 1 steps before."""
    num_workers, rate = 4, 0.04
    assert abs(_late_descent(num_workers, rate, keep_momentum=True)) < 1e-3
    assert abs(_late_descent(num_workers, rate, keep_momentum=None)) > 1e3


@pytest.mark.parametrize("num_workers", [4, 16])
def test_late_steps_with_momentum_at_the_center_converge_only_if_workers_look_ahead(num_workers: int) -> None:
    assert abs(_late_descent_of_the_center(num_workers, rate=0.08, look_ahead=True)) < 1e-3
    assert abs(_late_descent_of_the_center(num_workers, rate=0.08, look_ahead=False)) > 1e3


def _late_descent_of_the_center(num_workers: int, rate: float, look_ahead: bool) -> float:
    """f(c) = k c^2 / 2, each step made from where its worker began P - 1 steps before."""
    shares = shared_momentum(StrategyConfig("async-msgd", look_ahead=look_ahead), 0.9, num_workers)
    center, velocity, begun = 1.0, 0.0, [1.0] * num_workers
    for step in range(500 * num_workers):
        gradient = 6.0 * begun[step % num_workers]
        velocity = (shares.config.center_momentum or 0.0) * velocity - rate * shares.rate_factor * gradient
        center += velocity
        begun[step % num_workers] = center + look_ahead * num_workers * velocity
    return center


def _late_descent(num_workers: int, rate: float, keep_momentum: bool | None) -> float:
    shares = shared_momentum(StrategyConfig("async-sgd", keep_momentum=keep_momentum), 0.9, num_workers)
    centers, velocities = [1.0] * num_workers, [0.0] * num_workers
    for step in range(2_000):
        worker, gradient = step % num_workers, 6.0 * centers[-num_workers]
        velocity = velocities[worker] = shares.worker * velocities[worker] + gradient
        move = shares.worker * velocity + gradient if shares.is_nesterov else velocity
        centers.append(centers[-1] - rate * shares.rate_factor * move)
    return centers[-1]


def test_which_strategies_need_what_of_a_center() -> None:
    configs = [StrategyConfig(name) for name in STRATEGIES]
    without = {config.name for config in configs if not config.needs_center}
    assert without & NAMED == {"sync", "local-sgd", "diloco", "sync-easgd"}
    assert [config.name for config in configs if not config.traits.has_locks] == ["hogwild-sgd", "hogwild-easgd"]
    assert [config.name for config in configs if config.traits.has_velocity] == ["async-msgd"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_resolved_settings_come_back_from_the_configuration_file(name: str, tmp_path: Path) -> None:
    config = RunConfig("train", Path("solver.prototxt"), workers=3, strategy=resolved(StrategyConfig(name), 3))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_json()))
    assert RunConfig.load(path) == config
