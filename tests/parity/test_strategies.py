"""Strategies that must come to the same, through the whole program."""

from tests.parity.trained import Trainer, relative_difference

BATCH = 12
TOLERANCE = 1e-6


def test_local_sgd_that_averages_every_step_is_synchronous_sgd(train: Trainer) -> None:
    """Momentum is linear: the mean of the workers' momenta is the momentum of the mean."""
    each_step = train(2, BATCH, "--strategy", "local-sgd", "--sync-period", "1", "--recipe", "none")
    difference = relative_difference(each_step, train(1, 2 * BATCH))
    print(f"relative difference {difference:.2e}")
    assert difference <= TOLERANCE
    assert each_step.sha256 == each_step.result["weights_sha256"]
