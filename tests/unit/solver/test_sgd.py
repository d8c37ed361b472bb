"""SGD with momentum against a NumPy loop over named parameters."""

import numpy as np
import pytest

from samovar.core.buffer import FlatBuffer
from samovar.core.errors import InputError
from samovar.core.layout import Layout, ParameterSpec
from samovar.solver.policy import PolicyConfig
from samovar.solver.sgd import Multipliers, Sgd, SgdConfig

SHAPES = {"conv": (4, 3, 5, 5), "conv bias": (4,), "fc": (10, 33), "fc bias": (10,), "frozen": (7,)}
MULTIPLIERS = {
    "conv": Multipliers(1.0, 1.0),
    "conv bias": Multipliers(2.0, 0.0),
    "fc": Multipliers(0.5, 3.0),
    "frozen": Multipliers(0.0, 1.0),
}
CONFIG = SgdConfig(PolicyConfig("inv", 0.05, gamma=0.01, power=0.75), momentum=0.9, weight_decay=5e-4)
LAYOUT = Layout.pack(ParameterSpec(name, shape, len(shape) == 4) for name, shape in SHAPES.items())
GRADIENT_SCALE = 1 / 3


def random_values(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def make_buffer(seed: int) -> FlatBuffer:
    buffer = FlatBuffer.zeros(LAYOUT)
    buffer.load_state_dict(random_values(seed), "values")
    return buffer


def train(solver: Sgd, gradients: FlatBuffer, steps: range, bucket_size_bytes: int | None) -> None:
    for step in steps:
        gradients.load_state_dict(random_values(1000 + step), "gradients")
        for bucket in LAYOUT.buckets(bucket_size_bytes):
            solver.update(step, bucket, GRADIENT_SCALE)


def expected_weights(num_steps: int) -> dict[str, np.ndarray]:
    """h = momentum * h + rate * (scale * g + decay * w);  w = w - h, in float32."""
    number = np.float32
    weights = random_values(0)
    history = {name: np.zeros(shape, number) for name, shape in SHAPES.items()}
    for step in range(num_steps):
        rate = 0.05 * (1 + 0.01 * step) ** -0.75
        for name, gradient in random_values(1000 + step).items():
            factors = MULTIPLIERS.get(name, Multipliers(1.0, 1.0))
            decay = number(factors.decay * 5e-4)
            scaled = number(GRADIENT_SCALE) * gradient + decay * weights[name]
            history[name] = number(0.9) * history[name] + number(factors.lr * rate) * scaled
            weights[name] = weights[name] - history[name]
    return weights


@pytest.mark.parametrize("bucket_size_bytes", [None, 1, 1500])
def test_twenty_steps_equal_the_plain_loop_bit_for_bit(bucket_size_bytes: int | None) -> None:
    weights, gradients = make_buffer(0), make_buffer(1)
    train(Sgd(CONFIG, weights, gradients, MULTIPLIERS), gradients, range(20), bucket_size_bytes)
    for name, expected in expected_weights(20).items():
        assert np.array_equal(weights.logical(name), expected), name
    assert np.array_equal(weights.logical("frozen"), random_values(0)["frozen"])
    used = sum(np.count_nonzero(value) for value in expected_weights(20).values())
    assert np.count_nonzero(weights.array_N) == used, "padding stays zero"


def test_an_update_touches_its_bucket_only() -> None:
    weights, gradients = make_buffer(0), make_buffer(1)
    bucket = LAYOUT.buckets(1)[2]
    before = weights.array_N.copy()
    Sgd(CONFIG, weights, gradients, MULTIPLIERS).update(0, bucket, 1.0)
    changed = np.flatnonzero(weights.array_N != before)
    assert changed.min() == bucket.entries[0].offset
    assert changed.max() == bucket.entries[0].stop - 1


def test_training_goes_on_from_a_state_as_if_never_stopped() -> None:
    weights, gradients = make_buffer(0), make_buffer(1)
    solver = Sgd(CONFIG, weights, gradients, MULTIPLIERS)
    train(solver, gradients, range(8), None)
    state = solver.state_dict()
    resumed = Sgd(CONFIG, weights, gradients, MULTIPLIERS)
    train(solver, gradients, range(8, 10), None)  # the saved state is a copy
    resumed.load_state_dict(state)
    weights.load_state_dict(expected_weights(8), "weights")
    train(resumed, gradients, range(8, 20), 1)
    for name, expected in expected_weights(20).items():
        assert np.array_equal(weights.logical(name), expected), name


def test_a_state_of_another_net_is_refused() -> None:
    solver = Sgd(CONFIG, make_buffer(0), make_buffer(1), MULTIPLIERS)
    state = solver.state_dict()
    with pytest.raises(InputError, match=r"momentum: missing \['fc'\]"):
        solver.load_state_dict({name: value for name, value in state.items() if name != "fc"})
    with pytest.raises(InputError, match="momentum of 'fc': shape"):
        solver.load_state_dict(state | {"fc": np.zeros(330, np.float32)})
