"""What a snapshot must not hold."""

import numpy as np
import pytest

from samovar.core.buffer import FlatBuffer
from samovar.core.errors import NotFinite
from samovar.core.layout import Layout, ParameterSpec
from samovar.solver.flat import Solver
from samovar.solver.policy import PolicyConfig, SolverConfig
from samovar.strategies.base import Strategy
from samovar.training.finite import FiniteCheck

LAYOUT = Layout.pack([ParameterSpec("ip", (4,)), ParameterSpec("bias", (2,))])


@pytest.mark.parametrize(("kind", "momentum"), [("Adam", 0.9), ("RMSProp", 0.0), ("AdaGrad", 0.0), ("AdaDelta", 0.9)])
def test_a_history_that_a_huge_gradient_made_infinite_is_named_before_a_save(kind: str, momentum: float) -> None:
    """Its weights stay finite, and never move again."""
    weights, gradients = FlatBuffer.zeros(LAYOUT), FlatBuffer.zeros(LAYOUT)
    solver = Solver(SolverConfig(kind, PolicyConfig("fixed", 0.1), momentum=momentum), weights, gradients, {})
    check = FiniteCheck(weights, Strategy(), solver, 1)
    (bucket,) = LAYOUT.buckets()
    gradients.view("bias").fill_(1.0)
    solver.update(0, bucket, 1.0)
    check.after_step(1, 0, 2.5)
    check.require_own()

    gradients.view("bias")[1] = 2e19
    solver.update(1, bucket, 1.0)
    check.after_step(2, 1, 2.5)

    check.require()
    before = float(weights.view("bias")[1])
    gradients.view("bias").fill_(1.0)
    solver.update(2, bucket, 1.0)
    assert float(weights.view("bias")[1]) == before
    assert np.isfinite(weights.array_N).all()
    with pytest.raises(NotFinite, match=r"rank 1: the solver's histories of bias are not finite after step 2 \(loss 2"):
        check.require_own()
