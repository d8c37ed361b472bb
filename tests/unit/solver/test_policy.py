"""Learning-rate policies against their formulas."""

import math

import pytest

from samovar.core.errors import InputError
from samovar.solver.policy import PolicyConfig


@pytest.mark.parametrize("step", [0, 1, 99, 100, 5000, 10_000_000])
def test_fixed_is_the_base(step: int) -> None:
    assert PolicyConfig("fixed", 0.013, gamma=0.5, power=2.0, stepsize=1).rate(step) == 0.013


@pytest.mark.parametrize(
    ("step", "exponent"), [(0, 0), (1, 0), (99, 0), (100, 1), (101, 1), (199, 1), (200, 2), (1_000, 10)]
)
def test_step_drops_at_every_stepsize(step: int, exponent: int) -> None:
    rate = PolicyConfig("step", 0.01, gamma=0.1, stepsize=100).rate(step)
    assert rate == pytest.approx(10.0 ** (-2 - exponent), rel=1e-14)


@pytest.mark.parametrize("step", [0, 1, 500, 10_000])
def test_inv_is_that_of_lenet(step: int) -> None:
    rate = PolicyConfig("inv", 0.01, gamma=0.0001, power=0.75).rate(step)
    assert rate == pytest.approx(0.01 * math.exp(-0.75 * math.log1p(0.0001 * step)), rel=1e-14)


def test_unknown_policies_and_a_step_without_size_are_refused() -> None:
    with pytest.raises(InputError, match="lr_policy: got 'poly'; supported: fixed, inv, step"):
        PolicyConfig("poly", 0.01)
    for stepsize in (0, -5):
        with pytest.raises(InputError, match=f"stepsize of at least 1, got {stepsize}"):
            PolicyConfig("step", 0.01, gamma=0.1, stepsize=stepsize)
