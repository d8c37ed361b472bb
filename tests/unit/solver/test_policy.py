"""Learning-rate policies against their formulas, and against Caffe's own way of counting."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.errors import InputError
from samovar.solver.policy import POLICIES, PolicyConfig

CONSTANTS: dict[str, Any] = {
    "gamma": 0.1,
    "power": 0.75,
    "stepsize": 100,
    "stepvalues": (3, 10),
    "max_iter": 10_000_000,
}


@pytest.mark.parametrize("step", [0, 1, 99, 100, 5000, 10_000_000])
def test_fixed_is_the_base(step: int) -> None:
    assert PolicyConfig("fixed", 0.013, gamma=0.5, power=2.0, stepsize=1).rate(step) == 0.013


@pytest.mark.parametrize(
    ("step", "exponent"), [(0, 0), (1, 0), (99, 0), (100, 1), (101, 1), (199, 1), (200, 2), (1_000, 10)]
)
def test_step_drops_at_every_stepsize(step: int, exponent: int) -> None:
    policy = PolicyConfig("step", 0.01, gamma=0.1, stepsize=100)
    assert policy.rate(step) == pytest.approx(10.0 ** (-2 - exponent), rel=1e-14)
    assert policy.drops(step) == exponent


@pytest.mark.parametrize("step", [0, 1, 500, 10_000])
def test_inv_is_that_of_lenet(step: int) -> None:
    rate = PolicyConfig("inv", 0.01, gamma=0.0001, power=0.75).rate(step)
    assert rate == pytest.approx(0.01 * math.exp(-0.75 * math.log1p(0.0001 * step)), rel=1e-14)


@pytest.mark.parametrize("step", [0, 1, 17, 400])
def test_smooth_policies(step: int) -> None:
    def rate(name: str, **constants: Any) -> float:
        return PolicyConfig(name, 0.5, **constants).rate(step)

    assert rate("exp", gamma=0.93) == pytest.approx(0.5 * math.exp(step * math.log(0.93)), rel=1e-12)
    assert rate("poly", power=1.5, max_iter=400) == pytest.approx(0.5 * math.sqrt(1 - step / 400) ** 3, rel=1e-12)
    expected = 0.25 * (1 + math.tanh(0.4 * (step - 12) / 2))
    assert rate("sigmoid", gamma=0.4, stepsize=12) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", POLICIES)
def test_a_warm_up_rises_to_the_policys_own_rate(name: str) -> None:
    own, warmed = (PolicyConfig(name, 0.5, **CONSTANTS, warm_up_steps=steps) for steps in (0, 4))
    shares = [warmed.rate(step) / own.rate(step) for step in range(6)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1], rel=1e-12)


def test_recorded_rates() -> None:
    """The rates that BVLC Caffe used, from logs of four short runs."""
    recorded = {
        PolicyConfig("multistep", 0.03, gamma=0.3, stepvalues=(6, 11, 23)): {
            5: 0.03,
            6: 0.009,
            11: 0.0027,
            23: 0.00081,
        },
        PolicyConfig("exp", 0.05, gamma=0.93): {1: 0.0465, 2: 0.043245, 29: 0.00609503},
        PolicyConfig("poly", 0.05, power=1.5, max_iter=30): {0: 0.05, 15: 0.0176777, 29: 0.000304291},
        PolicyConfig("sigmoid", 0.05, gamma=0.4, stepsize=12): {0: 0.000408129, 12: 0.025, 29: 0.0499444},
    }
    for policy, rates in recorded.items():
        assert {step: pytest.approx(rate, rel=1e-5) for step, rate in rates.items()} == {
            step: policy.rate(step) for step in rates
        }


@given(st.lists(st.integers(-2, 12), max_size=6), st.integers(0, 20))
def test_multistep_counts_one_drop_a_step_as_caffe_does(stepvalues: list[int], step: int) -> None:
    policy = PolicyConfig("multistep", 1.0, gamma=0.5, stepvalues=tuple(stepvalues))
    drops = 0
    for past in range(step + 1):
        drops += drops < len(stepvalues) and past >= stepvalues[drops]
    assert policy.drops(step) == drops
    assert policy.rate(step) == 0.5**drops


def test_extremes_do_not_raise() -> None:
    assert PolicyConfig("exp", 1.0, gamma=2.0).rate(5000) == math.inf
    assert PolicyConfig("exp", 1.0, gamma=0.0).rate(0) == 1.0
    assert PolicyConfig("inv", 1.0, gamma=1e30, power=-20.0).rate(10_000) == math.inf
    assert PolicyConfig("poly", 1.0, power=-1.0, max_iter=3).rate(3) == math.inf
    sigmoid = PolicyConfig("sigmoid", 1.0, gamma=1e6, stepsize=100)
    assert [sigmoid.rate(step) for step in (0, 100, 10_000)] == [0.0, 0.5, 1.0]


def test_poly_says_where_it_ends() -> None:
    policy = PolicyConfig("poly", 1.0, power=2.0, max_iter=30)
    assert policy.rate(30) == 0.0
    with pytest.raises(InputError, match="ends at max_iter 30, but the run continues to step 31; raise max_iter"):
        policy.rate(31)


WRONG = [
    ("cosine", {}, "lr_policy: unknown policy 'cosine'; supported are exp, fixed, inv, multistep"),
    ("step", {"stepsize": 0}, "stepsize: 0; lr_policy 'step' needs a stepsize of at least 1"),
    ("sigmoid", {"stepsize": -5}, "stepsize: -5; lr_policy 'sigmoid' needs"),
    ("poly", {"max_iter": 0}, "max_iter: 0; lr_policy 'poly' needs"),
    ("fixed", {"gamma": np.inf}, "gamma: inf"),
    ("fixed", {"base_lr": np.nan}, "base_lr: nan; it must be a finite number of at least 0"),
    ("fixed", {"base_lr": -1.0}, "base_lr: -1"),
    ("inv", {"power": np.nan}, "power: nan; it must be a finite number"),
    *((name, {"gamma": -0.1}, "gamma: -0.1") for name in ("step", "multistep", "exp", "inv", "sigmoid")),
]


@pytest.mark.parametrize(("name", "changes", "message"), WRONG)
def test_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PolicyConfig(name, **({"base_lr": 0.1} | CONSTANTS | changes))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_gives_rates(name: str) -> None:
    policy = PolicyConfig(name, 0.1, **CONSTANTS)
    assert all(0 <= policy.rate(step) <= 0.1 for step in (0, 1, 1000))
