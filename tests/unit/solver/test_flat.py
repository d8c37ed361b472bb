"""Every solver against the same rule in NumPy: bit for bit in float32, closely in float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from samovar import _native
from samovar.core.buffer import FlatBuffer
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.core.layout import Layout, ParameterSpec
from samovar.core.near import NearArray
from samovar.solver.flat import Multipliers, Solver, history_key
from samovar.solver.policy import TYPES, PolicyConfig, SolverConfig
from samovar.strategies.owned import own_part
from tests.unit.solver.expected import Arrays, Expected

SHAPES = {"conv": (4, 3, 5, 5), "conv bias": (4,), "fc": (10, 33), "fc bias": (10,), "frozen": (7,)}
LR = {"conv": 1.0, "conv bias": 2.0, "fc": 0.5, "fc bias": 1.0, "frozen": 0.0}
DECAY = {"conv": 1.0, "conv bias": 0.0, "fc": 3.0, "fc bias": 1.0, "frozen": 1.0}
MULTIPLIERS = {name: Multipliers(LR[name], DECAY[name]) for name in SHAPES if name != "fc bias"}
LAYOUT = Layout.pack(ParameterSpec(name, shape, len(shape) == 4) for name, shape in SHAPES.items())
POLICY = PolicyConfig("inv", 0.05, gamma=0.01, power=0.75)
SCALE = 1 / 3


def config_of(kind: str, **changes: Any) -> SolverConfig:
    momentum = 0.0 if kind in ("AdaGrad", "RMSProp") else 0.9
    constants = {"momentum": momentum, "momentum2": 0.99, "rms_decay": 0.95, "delta": 1e-6, "weight_decay": 5e-3}
    return SolverConfig(kind, POLICY, **(constants | changes))


def random_values(seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def with_zeros(values: Arrays) -> Arrays:
    """Some weights are 0, where L1 has no sign."""
    return {name: np.where(np.abs(array) < 0.1, np.float32(0), array) for name, array in values.items()}


def start(config: SolverConfig, is_near: bool = False) -> tuple[Solver, FlatBuffer, FlatBuffer]:
    weights, gradients = (
        FlatBuffer(LAYOUT, NearArray(torch.zeros(LAYOUT.num_elements))) if is_near else FlatBuffer.zeros(LAYOUT)
        for _ in range(2)
    )
    weights.load_state_dict(with_zeros(random_values(0)), "weights")
    return Solver(config, weights, gradients, MULTIPLIERS), weights, gradients


def train(solver: Solver, gradients: FlatBuffer, steps: range, bucket_size_bytes: int | None = None) -> None:
    for step in steps:
        gradients.load_state_dict(random_values(1000 + step), "gradients")
        for bucket in LAYOUT.buckets(bucket_size_bytes):
            solver.update(step, bucket, SCALE)


def expected(config: SolverConfig, num_steps: int, number: Any = np.float32) -> Expected:
    twin = Expected(config, with_zeros(random_values(0)), LR, DECAY, number)
    for step in range(num_steps):
        twin.step(step, random_values(1000 + step), SCALE)
    return twin


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("bucket_size_bytes", [None, 1, 1500])
@pytest.mark.parametrize("regularization", ["L1", "L2"])
@pytest.mark.parametrize("kind", TYPES)
def test_twenty_steps_equal_the_plain_rule_bit_for_bit(
    kind: str, regularization: str, bucket_size_bytes: int | None, place: str
) -> None:
    config = config_of(kind, regularization_type=regularization)
    solver, weights, gradients = start(config, place == "device")
    train(solver, gradients, range(20), bucket_size_bytes)
    twin = expected(config, 20)
    is_rounded = place == "host" or kind in ("SGD", "Nesterov")  # not so PyTorch's square root
    within: dict[str, Any] = {"rtol": 0 if is_rounded else 1e-6, "atol": 0 if is_rounded else 1e-6}
    for name in SHAPES:
        np.testing.assert_allclose(weights.logical(name), twin.weights[name], **within, err_msg=name)
        for history, values in zip(solver.histories, twin.histories, strict=True):
            np.testing.assert_allclose(history.logical(name), values[name], **within, err_msg=name)
    assert np.array_equal(weights.logical("frozen"), with_zeros(random_values(0))["frozen"])
    inside = sum(np.count_nonzero(weights.logical(name)) for name in SHAPES)
    assert np.count_nonzero(weights.tensor_N) == inside, "padding stays zero"


@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("kind", TYPES)
def test_parts_of_a_bucket_are_updated_as_the_whole_is(kind: str, world_size: int) -> None:
    """Seven parts cut within parameters, at odd elements; some hold several parameters, one is within one."""
    (whole, weights, gradients), (divided, its_weights, its_gradients) = (start(config_of(kind)) for _ in range(2))
    train(whole, gradients, range(3))
    (bucket,) = LAYOUT.buckets()
    parts = [own_part(bucket, Group(rank, world_size)) for rank in range(world_size)]
    assert [part.stop for part in parts[:-1]] == [part.start for part in parts[1:]]
    # Each rank has a solver of its own, which knows one part: here they work on the same memory.
    solvers = [Solver(config_of(kind), its_weights, its_gradients, MULTIPLIERS, divided.histories) for _ in parts]
    for step in range(3):
        its_gradients.load_state_dict(random_values(1000 + step), "gradients")
        for solver, part in zip(solvers, parts, strict=True):
            solver.update(step, part, SCALE)
    assert np.array_equal(weights.array_N, its_weights.array_N)
    for history, its in zip(whole.histories, divided.histories, strict=True):
        assert np.array_equal(history.array_N, its.array_N)


@pytest.mark.parametrize("kind", TYPES)
def test_ten_steps_are_near_those_in_double_precision(kind: str) -> None:
    config = config_of(kind, delta=1e-4)
    solver, weights, gradients = start(config)
    train(solver, gradients, range(10))
    for name, values in expected(config, 10, np.float64).weights.items():
        np.testing.assert_allclose(weights.logical(name), values, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("bucket_size_bytes", [None, 1, 1500])
def test_clipping_is_of_the_whole_net_whatever_the_buckets(
    kind: str, bucket_size_bytes: int | None, place: str
) -> None:
    config = config_of(kind, clip_gradients=8.0, iter_size=2)  # the sum of two parts has a norm near 20
    solver, weights, gradients = start(config, place == "device")
    train(solver, gradients, range(5), bucket_size_bytes)
    for name, values in expected(config, 5).weights.items():
        np.testing.assert_allclose(weights.logical(name), values, rtol=1e-5, atol=1e-6, err_msg=name)
    once, other_weights, other_gradients = start(config, place == "device")
    train(once, other_gradients, range(5))
    assert torch.equal(weights.tensor_N, other_weights.tensor_N), "the same bits for any buckets"


@pytest.mark.parametrize("kind", ["AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_without_a_delta_the_memory_between_parameters_of_a_device_stays_finite(kind: str) -> None:
    solver, weights, gradients = start(config_of(kind, delta=0.0), is_near=True)
    train(solver, gradients, range(3))
    assert weights.tensor_N.isfinite().all()


def test_a_norm_below_the_limit_changes_no_bit() -> None:
    clipped, free = (start(config_of("SGD", clip_gradients=limit)) for limit in (1000.0, None))
    for solver, _, gradients in (clipped, free):
        train(solver, gradients, range(3), 1)
    assert np.array_equal(clipped[1].array_N, free[1].array_N)


def test_clipping_updates_nothing_before_the_last_bucket_has_come() -> None:
    solver, weights, gradients = start(config_of("SGD", clip_gradients=0.5))
    before = weights.array_N.copy()
    gradients.load_state_dict(random_values(3), "gradients")
    buckets = LAYOUT.buckets(1)
    for bucket in reversed(buckets[1:]):
        solver.update(0, bucket, 1.0)
        assert np.array_equal(weights.array_N, before)
    solver.update(0, buckets[0], 1.0)
    assert not np.array_equal(weights.array_N, before)


def test_an_update_touches_its_bucket_only() -> None:
    solver, weights, gradients = start(config_of("Adam"))
    bucket = LAYOUT.buckets(1)[2]
    gradients.load_state_dict(random_values(3), "gradients")
    before = weights.array_N.copy()
    solver.update(0, bucket, 1.0)
    changed = np.flatnonzero(weights.array_N != before)
    assert changed.min() == bucket.entries[0].offset
    assert changed.max() == bucket.entries[0].stop - 1


@pytest.mark.parametrize("kind", TYPES)
def test_training_goes_on_from_a_state_as_if_never_stopped(kind: str) -> None:
    config = config_of(kind)
    solver, weights, gradients = start(config)
    train(solver, gradients, range(4))
    state, saved = solver.state_dict(), weights.array_N.copy()
    train(solver, gradients, range(4, 6))  # the saved state is a copy
    resumed, other_weights, other_gradients = start(config)
    resumed.load_state_dict(state)
    other_weights.array_N[...] = saved
    train(resumed, other_gradients, range(4, 6), 1)
    assert np.array_equal(weights.array_N, other_weights.array_N)


def test_a_solver_that_begins_late_corrects_its_means_for_the_steps_that_they_hold() -> None:
    """A worker that starts again from the center has no means yet: at step 1000 its steps are those of step 0."""
    config = replace(config_of("Adam", weight_decay=0.0), policy=PolicyConfig("fixed", 0.05))
    early, late = start(config), start(config)
    step_once(early, 0, seed=3)
    step_once(late, 1000, seed=3)
    assert np.array_equal(early[1].array_N, late[1].array_N)
    resumed = start(config)
    resumed[0].load_state_dict(late[0].state_dict())
    resumed[1].array_N[...] = late[1].array_N
    step_once(early, 1, seed=4)
    step_once(resumed, 1001, seed=4)
    assert np.array_equal(early[1].array_N, resumed[1].array_N)


def test_a_solver_that_begins_again_steps_as_a_new_one() -> None:
    again, fresh, resumed = (start(config_of("Adam", momentum2=0.999)) for _ in range(3))
    for step in range(3):
        step_once(again, step, seed=step)
    again[0].begin_again()
    again[1].load_state_dict(with_zeros(random_values(0)), "weights")
    assert not any(history.array_N.any() for history in again[0].histories)
    resumed[0].load_state_dict(again[0].state_dict())
    for started in (again, fresh, resumed):
        step_once(started, 3, seed=5)
    assert np.array_equal(again[1].array_N, fresh[1].array_N)
    assert np.array_equal(resumed[1].array_N, fresh[1].array_N)


def step_once(started: tuple[Solver, FlatBuffer, FlatBuffer], step: int, seed: int) -> None:
    solver, _, gradients = started
    gradients.load_state_dict(random_values(seed), "gradients")
    for bucket in LAYOUT.buckets(1):
        solver.update(step, bucket, SCALE)


def test_a_state_without_a_type_is_that_of_an_older_version() -> None:
    solver = start(config_of("SGD"))[0]
    values = random_values(5)
    solver.load_state_dict(values)
    for name, array in values.items():
        assert np.array_equal(solver.histories[0].logical(name), array)


def test_a_state_of_another_net_or_type_is_refused() -> None:
    solver = start(config_of("SGD"))[0]
    state = solver.state_dict()
    with pytest.raises(InputError, match=r"momentum: missing \['fc'\]"):
        solver.load_state_dict({name: value for name, value in state.items() if name != "fc"})
    with pytest.raises(InputError, match="momentum of 'fc': shape"):
        solver.load_state_dict(state | {"fc": np.zeros(330, np.float32)})
    with pytest.raises(InputError, match=r"unknown \['other'\]; is it of another net"):
        solver.load_state_dict(state | {"other": np.zeros(3, np.float32)})
    adam = start(config_of("Adam"))[0]
    with pytest.raises(InputError, match="is of type SGD, but this solver is of type Adam"):
        adam.load_state_dict(state)
    del state["type"]
    with pytest.raises(InputError, match="has 1 histories a parameter, type Adam keeps 2"):
        adam.load_state_dict(state)


def test_names_of_histories_are_never_those_of_parameters() -> None:
    assert history_key("conv1/0", 0) == "conv1/0"
    assert history_key("conv1/0", 1) == "conv1/0#2"


WRONG = [
    ("Sgdd", {}, "type: unknown solver 'Sgdd'; supported are SGD, Nesterov, AdaGrad"),
    ("SGD", {"regularization_type": "L3"}, "regularization_type: 'L3' is unknown"),
    ("SGD", {"momentum": 1.0}, "momentum: 1; it must be at least 0 and less than 1"),
    ("AdaGrad", {"momentum": 0.9}, "momentum: 0.9; a solver of type AdaGrad has no momentum"),
    ("RMSProp", {"momentum": 0.9}, "momentum: 0.9; a solver of type RMSProp has no momentum"),
    ("RMSProp", {"rms_decay": 1.0}, "rms_decay: 1; it must be at least 0 and less than 1"),
    ("Adam", {"momentum2": np.nan}, "momentum2: nan"),
    ("Adam", {"delta": -1e-8}, "delta: -1e-08; it must be a finite number of at least 0"),
    ("SGD", {"weight_decay": np.inf}, "weight_decay: inf"),
    ("SGD", {"clip_gradients": np.nan}, "clip_gradients: nan"),
    ("SGD", {"iter_size": 0}, "iter_size: 0"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), WRONG)
def test_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        config_of(kind, **changes)


def test_constants_of_other_types_are_not_looked_at() -> None:
    assert config_of("SGD", rms_decay=1.0, momentum2=7.0).type == "SGD"


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
def test_squares_are_added_in_double_precision(size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32) * np.float32(1e15)
    assert _native.sum_of_squares(values) == pytest.approx(float((values.astype(np.float64) ** 2).sum()), rel=1e-14)
