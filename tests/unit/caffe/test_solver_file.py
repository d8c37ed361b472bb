"""Solver files: what is taken over, refused, and warned about."""

from collections.abc import Callable
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.frontends.caffe.solver import CaffeSolver, load_solver

Solver = Callable[[str], CaffeSolver]
LEAST = 'net: "net.prototxt"\nbase_lr: 0.5\nmax_iter: 10\nlr_policy: "fixed"\n'


@pytest.fixture
def solver_of(tmp_path: Path) -> Solver:
    def load(text: str) -> CaffeSolver:
        (tmp_path / "net.prototxt").touch()
        (tmp_path / "test.prototxt").touch()
        path = tmp_path / "my_solver.prototxt"
        path.write_text(text)
        return load_solver(path)

    return load


def test_least_a_solver_needs(solver_of: Solver, tmp_path: Path) -> None:
    solver = solver_of(LEAST)

    assert solver.net_path == tmp_path / "net.prototxt"
    assert solver.test_net_path is None
    assert (solver.base_lr, solver.max_iter, solver.lr_policy, solver.type) == (0.5, 10, "fixed", "SGD")
    assert (solver.momentum, solver.weight_decay, solver.iter_size, solver.average_loss) == (0, 0, 1, 1)
    assert (solver.solver_mode, solver.random_seed, solver.snapshot_after_train) == ("GPU", None, True)
    assert solver.snapshot_prefix == tmp_path / "my_solver"
    assert solver.warnings == ()


def test_all_fields(solver_of: Solver, tmp_path: Path) -> None:
    solver = solver_of(
        'net: "net.prototxt" base_lr: 0.25 lr_policy: "inv" gamma: 0.5 power: 0.75 momentum: 0.5 weight_decay: 0.125 '
        "max_iter: 7 display: 2 average_loss: 3 iter_size: 4 test_iter: 5 test_interval: 6 stepsize: 9 "
        'test_initialization: false snapshot: 8 snapshot_prefix: "out/net" random_seed: 0 solver_mode: CPU '
        "snapshot_after_train: false solver_type: SGD"
    )

    assert (solver.lr_policy, solver.gamma, solver.power, solver.stepsize) == ("inv", 0.5, 0.75, 9)
    assert (solver.momentum, solver.weight_decay, solver.regularization_type) == (0.5, 0.125, "L2")
    assert (solver.display, solver.average_loss, solver.iter_size) == (2, 3, 4)
    assert (solver.test_iter, solver.test_interval, solver.test_initialization) == ((5,), 6, False)
    assert (solver.snapshot, solver.snapshot_prefix, solver.snapshot_after_train) == (8, Path("out/net"), False)
    assert (solver.random_seed, solver.solver_mode) == (0, "CPU")
    assert solver.test_net_path == solver.net_path == tmp_path / "net.prototxt"


def test_two_nets(solver_of: Solver, tmp_path: Path) -> None:
    solver = solver_of(LEAST.replace("net:", "train_net:") + 'test_net: "test.prototxt" test_iter: 1 test_interval: 1')

    assert solver.net_path == tmp_path / "net.prototxt"
    assert solver.test_net_path == tmp_path / "test.prototxt"


def test_a_folder_as_snapshot_prefix(solver_of: Solver, tmp_path: Path) -> None:
    assert solver_of(f'{LEAST} snapshot_prefix: "{tmp_path}"').snapshot_prefix == tmp_path / "my_solver"


@pytest.mark.parametrize("field", ["net", "base_lr", "max_iter", "lr_policy"])
def test_missing_fields(solver_of: Solver, field: str) -> None:
    lines = [line for line in LEAST.splitlines() if not line.startswith(field)]

    with pytest.raises(InputError, match=rf"my_solver.prototxt:1: .*{field}.* missing"):
        solver_of("\n".join(lines))


BAD = [
    ('lr_policy: "step"', "stepsize: 0; lr_policy 'step' needs a stepsize of at least 1"),
    ('lr_policy: "poly"', "lr_policy: 'poly' is not supported yet; supported are fixed, inv, step"),
    ('lr_policy: "cosine"', "lr_policy: unknown policy 'cosine'; supported are fixed, inv, step"),
    ("base_lr: nan", "base_lr: nan; it must be a finite number of at least 0"),
    ("base_lr: -1", "base_lr: -1.0"),
    ("momentum: 1", "momentum: 1.0; it must be at least 0 and less than 1"),
    ("momentum: -0.1", "momentum: -0.1"),
    ("momentum: nan", "momentum: nan"),
    ("weight_decay: -1", "weight_decay: -1.0"),
    ("gamma: inf", "gamma: inf"),
    ("max_iter: -1", "max_iter: -1; it must be at least 0"),
    ("iter_size: 0", "iter_size: 0; it must be at least 1"),
    ("average_loss: 0", "average_loss: 0"),
    ("display: -1", "display: -1"),
    ("snapshot: -1", "snapshot: -1"),
    ('type: "Adam"', "type: Adam is not supported yet; supported is SGD"),
    ('type: "sgdd"', "type: unknown solver 'sgdd'; did you mean 'SGD'"),
    ("solver_type: ADAGRAD", "solver_type: AdaGrad is not supported yet"),
    ('type: "SGD" solver_type: SGD', "both are given; keep type"),
    ('regularization_type: "L1"', "regularization_type: 'L1' is not supported yet; supported is L2"),
    ('regularization_type: "L3"', "regularization_type: 'L3' is unknown"),
    ("clip_gradients: 5", "clip_gradients: clipping is not supported yet"),
    ("snapshot_format: HDF5", "snapshot_format: HDF5 is not supported yet"),
    ("test_iter: 1", "test_iter: needs test_interval"),
    ("test_iter: 0 test_interval: 1", "test_iter: 0; it must be at least 1"),
    ("test_iter: 1 test_iter: 2 test_interval: 1", "test_iter: is given more than once"),
    ('test_net: "test.prototxt"', "test_net: needs test_iter"),
    ('train_net: "net.prototxt"', "net and train_net are both given"),
    ("net_param { }", "net_param: is not supported yet"),
    ("train_state { }", "train_state: is not supported yet; use include"),
    ("test_state { }", "test_state: is not supported yet"),
    ('weights: "w.caffemodel"', "weights: is not supported yet; use the flag --weights"),
    ('net: "nothing.prototxt"', "net: 'nothing.prototxt' does not exist; looked for .* and .*"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_refused(solver_of: Solver, line: str, message: str) -> None:
    field = line.partition(":")[0]
    lines = [old for old in LEAST.splitlines() if not old.startswith(field + ":")]

    with pytest.raises(InputError, match=rf"my_solver.prototxt:\d+: .*{message}"):
        solver_of("\n".join([*lines, line]))


def test_a_test_needs_a_test_net(solver_of: Solver) -> None:
    with pytest.raises(InputError, match="train_net has no test net"):
        solver_of(LEAST.replace("net:", "train_net:") + "test_iter: 1 test_interval: 1")


WARNED = [
    ("debug_info: true", "debug_info has no effect"),
    ("device_id: 1", "device_id has no effect; training runs on the CPU"),
    ("layer_wise_reduce: false", "layer_wise_reduce has no effect"),
    ("snapshot_diff: true", "snapshot_diff has no effect"),
    ("test_compute_loss: true", "test_compute_loss has no effect"),
    ("test_interval: 5", "test_interval has no effect without test_iter"),
    ("stepvalue: 5", "stepvalue has no effect with lr_policy 'fixed'"),
    ("momentum2: 0.9", "momentum2 has no effect with type SGD"),
]


@pytest.mark.parametrize(("line", "message"), WARNED)
def test_warnings(solver_of: Solver, tmp_path: Path, line: str, message: str) -> None:
    (warning,) = solver_of(LEAST + line).warnings

    assert warning.startswith(f"{tmp_path / 'my_solver.prototxt'}:5: {message}")


def test_a_policy_without_gamma_is_warned_about(solver_of: Solver) -> None:
    (warning,) = solver_of(LEAST.replace("fixed", "inv")).warnings

    assert "gamma is 0, so that lr_policy 'inv'" in warning
