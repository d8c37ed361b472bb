"""A solver for larger steps: the same schedule in epochs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.core.large_batch import LargeBatch
from samovar.frontends.caffe.solver import CaffeSolver, load_solver, solver_config, with_large_batch

POLICIES = [
    'lr_policy: "fixed"',
    'lr_policy: "inv" gamma: 0.0002 power: 0.75',
    'lr_policy: "exp" gamma: 0.999',
    'lr_policy: "poly" power: 0.5',
    'lr_policy: "step" gamma: 0.1 stepsize: 320',
    'lr_policy: "step" gamma: 0.999 stepsize: 8',
    'lr_policy: "multistep" gamma: 0.5 stepvalue: 64 stepvalue: 640',
    'lr_policy: "sigmoid" gamma: 0.01 stepsize: 320',
]


@pytest.fixture
def solver_of(tmp_path: Path) -> Callable[[str], CaffeSolver]:
    def load(text: str) -> CaffeSolver:
        (tmp_path / "net.prototxt").touch()
        path = tmp_path / "solver.prototxt"
        path.write_text(f'net: "net.prototxt" base_lr: 0.01 max_iter: 1280 {text}')
        return load_solver(path)

    return load


@pytest.mark.parametrize("text", POLICIES)
def test_the_rate_is_the_same_function_of_the_samples_seen(solver_of: Callable[[str], CaffeSolver], text: str) -> None:
    own = solver_of(text)
    changed, _ = with_large_batch(own, 8, LargeBatch(256, "linear", 0))
    before, after = solver_config(own).policy, solver_config(changed).policy
    assert changed.max_iter == 40
    for step in range(40):
        assert after.rate(step) == pytest.approx(32 * before.rate(32 * step), rel=1e-6)


@pytest.mark.parametrize(
    ("scaling", "rate"), [("firecaffe", 0.08), ("linear", 0.32), ("sqrt", 0.05657), ("none", 0.01)]
)
def test_by_how_much_the_rate_grows(solver_of: Callable[[str], CaffeSolver], scaling: str, rate: float) -> None:
    changed, _ = with_large_batch(solver_of(POLICIES[0]), 64, LargeBatch(2048, scaling, 10))
    assert changed.base_lr == pytest.approx(rate, rel=1e-3)
    policy = solver_config(changed).policy
    assert policy.rate(0) == pytest.approx(0.1 * changed.base_lr)
    assert policy.rate(10) == pytest.approx(changed.base_lr)


def test_intervals_and_words(solver_of: Callable[[str], CaffeSolver]) -> None:
    text = "display: 100 average_loss: 3 test_interval: 500 test_iter: 2 snapshot: 0 iter_size: 2 momentum: 0.9"
    changed, words = with_large_batch(solver_of(f"{POLICIES[1]} {text}"), 8, LargeBatch(640))
    assert (changed.display, changed.average_loss, changed.test_interval, changed.snapshot) == (2, 1, 12, 0)
    assert (changed.iter_size, changed.momentum, changed.max_iter) == (2, pytest.approx(0.9), 32)
    assert [test.num_batches for test in changed.test_nets] == [2]
    assert words[:2] == ("base_lr 0.01 -> 0.09146", "max_iter 1,280 -> 32")
    assert "gamma 0.0002 -> 0.008" in words
    assert not any(word.startswith("snapshot") for word in words)
    assert words[-1] == "warm-up over 4 steps"


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [(15, "is smaller than the solver's own step of 16 samples"), (33, "cannot be cut into iter_size 2 equal parts")],
)
def test_refused(solver_of: Callable[[str], CaffeSolver], batch_size: int, message: str) -> None:
    with pytest.raises(InputError, match=f"--large-batch {batch_size}: {message}"):
        with_large_batch(solver_of(f"{POLICIES[0]} iter_size: 2"), 8, LargeBatch(batch_size))
