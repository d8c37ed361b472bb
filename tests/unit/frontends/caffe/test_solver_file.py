"""Solver files: what is taken over, refused, and warned about."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.frontends.caffe.definition import load_source
from samovar.frontends.caffe.solver import CaffeSolver, load_solver, solver_config
from samovar.solver.policy import PolicyConfig, SolverConfig

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

    assert solver.net.path == tmp_path / "net.prototxt"
    assert solver.test_nets == solver.weights() == ()
    assert (solver.base_lr, solver.max_iter, solver.lr_policy, solver.type) == (0.5, 10, "fixed", "SGD")
    assert (solver.momentum, solver.weight_decay, solver.iter_size, solver.average_loss) == (0, 0, 1, 1)
    assert (solver.solver_mode, solver.random_seed, solver.snapshot_after_train) == ("GPU", None, True)
    assert solver.snapshot_prefix == tmp_path / "my_solver"
    assert solver_of(f'{LEAST} snapshot_prefix: "new/"').snapshot_prefix == Path("new/my_solver")
    assert solver.warnings == ()
    assert (solver.clip_gradients, solver.snapshot_format, solver.test_compute_loss) == (None, "BINARYPROTO", False)
    config = solver_config(solver)
    assert (config.momentum2, config.rms_decay, config.delta) == tuple(map(np.float32, (0.999, 0.99, 1e-8)))


def test_all_fields(solver_of: Solver, tmp_path: Path) -> None:
    solver = solver_of(
        'net: "net.prototxt" base_lr: 0.25 lr_policy: "inv" gamma: 0.5 power: 0.75 momentum: 0.5 weight_decay: 0.125 '
        "max_iter: 7 display: 2 average_loss: 3 iter_size: 4 test_iter: 5 test_interval: 6 stepsize: 9 "
        'test_initialization: false snapshot: 8 snapshot_prefix: "out/net" random_seed: 0 solver_mode: CPU '
        "snapshot_after_train: false solver_type: ADAM momentum2: 0.75 delta: 0.0625 rms_decay: 0.5 stepvalue: [3, 4] "
        'regularization_type: "L1" clip_gradients: 2.5 snapshot_format: HDF5 test_compute_loss: true'
    )

    assert (solver.lr_policy, solver.gamma, solver.power, solver.stepsize) == ("inv", 0.5, 0.75, 9)
    assert (solver.stepvalue, solver.clip_gradients, solver.snapshot_format) == ((3, 4), 2.5, "HDF5")
    assert (solver.momentum, solver.weight_decay, solver.regularization_type) == (0.5, 0.125, "L1")
    assert (solver.type, solver.momentum2, solver.delta, solver.rms_decay) == ("Adam", 0.75, 0.0625, 0.5)
    assert solver_config(solver) == SolverConfig(
        "Adam",
        PolicyConfig("inv", 0.25, gamma=0.5, power=0.75, stepsize=9, stepvalues=(3, 4), max_iter=7),
        momentum=0.5,
        momentum2=0.75,
        rms_decay=0.5,
        delta=0.0625,
        weight_decay=0.125,
        regularization_type="L1",
        clip_gradients=2.5,
        iter_size=4,
    )
    assert (solver.test_compute_loss, len(solver.warnings), len(solver.only_for_caffe)) == (True, 3, 1)
    assert (solver.display, solver.average_loss, solver.iter_size) == (2, 3, 4)
    assert (solver.test_interval, solver.test_initialization) == (6, False)
    assert (solver.snapshot, solver.snapshot_prefix, solver.snapshot_after_train) == (8, Path("out/net"), False)
    assert (solver.random_seed, solver.solver_mode) == (0, "CPU")
    assert solver.net.path == tmp_path / "net.prototxt"
    assert nets_tested_by(solver) == [("net.prototxt", 5)]


def nets_tested_by(solver: CaffeSolver) -> list[tuple[str, int]]:
    return [(test.source.path.name, test.num_batches) for test in solver.test_nets]


def test_two_nets(solver_of: Solver, tmp_path: Path) -> None:
    solver = solver_of(LEAST.replace("net:", "train_net:") + 'test_net: "test.prototxt" test_iter: 1 test_interval: 1')

    assert solver.net.path == tmp_path / "net.prototxt"
    assert nets_tested_by(solver) == [("test.prototxt", 1)]


def test_test_nets_come_in_caffes_order(solver_of: Solver) -> None:
    """test_net_param, then test_net, then the common net for what is left of test_iter."""
    given = 'test_net: "test.prototxt" test_net_param { name: "inside" } test_interval: 1 test_iter: [3, 5, 7, 9]'
    solver = solver_of(LEAST + given)

    assert nets_tested_by(solver) == [
        ("my_solver.prototxt", 3),
        ("test.prototxt", 5),
        ("net.prototxt", 7),
        ("net.prototxt", 9),
    ]
    origins = [test.source.origin for test in solver.test_nets]
    assert origins == ["test_net_param", "test_net file: test.prototxt", *["net file: net.prototxt"] * 2]
    assert solver.test_nets[0].source.name() == "inside"


def test_nets_that_stand_in_the_solver(solver_of: Solver) -> None:
    net = 'name: "inside" layer {\n name: "a" type: "Input"\n top: "a" input_param { shape { dim: 1 } } }'
    text = LEAST.replace('net: "net.prototxt"', f"net_param {{ {net} }}") + "test_iter: 2 test_interval: 1"
    solver = solver_of(text)

    assert solver.net.name() == load_source(solver.net).name == "inside"
    assert load_source(solver.net).layers[0].where().endswith("my_solver.prototxt:1: layer 'a'")
    assert [test.source.origin for test in solver.test_nets] == ["net_param"]


def test_states(solver_of: Solver) -> None:
    solver = solver_of(
        LEAST + 'train_state { level: 2 stage: "a" } test_iter: 1 test_iter: 1 test_interval: 1 '
        'test_state { stage: "b" stage: "c" phase: TEST } test_state { level: 1 }'
    )

    assert (solver.net.level, solver.net.stages) == (2, ("a",))
    assert [(test.source.level, test.source.stages) for test in solver.test_nets] == [(None, ("b", "c")), (1, ())]


def test_the_state_of_the_net_the_solver_and_the_command_line(solver_of: Solver, tmp_path: Path) -> None:
    solver = solver_of(LEAST + 'train_state { level: 2 stage: "a" }')
    (tmp_path / "net.prototxt").write_text(
        'state { level: 7 stage: "own" } layer { name: "a" type: "Input" top: "a" input_param { shape { dim: 1 } } }'
    )

    assert (load_source(solver.net).level, load_source(solver.net).stages) == (2, ("own", "a"))
    assert (load_source(solver.net, 0, ["b"]).level, load_source(solver.net, 0, ["b"]).stages) == (0, ("own", "a", "b"))


def test_weights_may_be_several(solver_of: Solver, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.caffemodel").touch()
    solver = solver_of(LEAST + 'weights: "a.caffemodel, b.caffemodel" weights: "c.caffemodel"')

    assert [path.name for path in solver.weights()] == ["a.caffemodel", "b.caffemodel", "c.caffemodel"]


def test_weights_must_exist_for_who_reads_them(solver_of: Solver) -> None:
    solver = solver_of(LEAST + '\nweights: "a.caffemodel"')
    with pytest.raises(InputError, match=r"my_solver.prototxt:6: weights: 'a.caffemodel' does not exist"):
        solver.weights()


def test_a_folder_as_snapshot_prefix(solver_of: Solver, tmp_path: Path) -> None:
    assert solver_of(f'{LEAST} snapshot_prefix: "{tmp_path}"').snapshot_prefix == tmp_path / "my_solver"


@pytest.mark.parametrize("prefix", ["a" * 245, "a" * 215, "a\\000b", r"models\net", r"models\train"])
def test_a_snapshot_prefix_that_no_file_can_have(solver_of: Solver, prefix: str) -> None:
    with pytest.raises(InputError, match=r"my_solver.prototxt:\d+: snapshot_prefix: .*; give a shorter, plain path"):
        solver_of(f'{LEAST} snapshot_prefix: "{prefix}"')


@pytest.mark.parametrize("field", ["net", "base_lr", "max_iter", "lr_policy"])
def test_missing_fields(solver_of: Solver, field: str) -> None:
    lines = [line for line in LEAST.splitlines() if not line.startswith(field)]

    with pytest.raises(InputError, match=rf"my_solver.prototxt:1: .*{field}.* missing"):
        solver_of("\n".join(lines))


BAD = [
    ('lr_policy: "step"', "stepsize: 0; lr_policy 'step' needs a stepsize of at least 1"),
    ('lr_policy: "sigmoid"', "stepsize: 0; lr_policy 'sigmoid' needs a stepsize of at least 1"),
    (
        'lr_policy: "sigmoid"\ngamma: -0.1 stepsize: 5',
        "gamma: -0.1; lr_policy 'sigmoid' needs a finite gamma of at least 0",
    ),
    ('lr_policy: "cosine"', "lr_policy: unknown policy 'cosine'; supported are exp, fixed, inv, multistep, poly"),
    ("base_lr: nan", "base_lr: nan; it must be a finite number of at least 0"),
    ("base_lr: -1", "base_lr: -1; it must be a finite number"),
    ("momentum: 1", "momentum: 1; it must be at least 0 and less than 1"),
    ("momentum: -0.1", "momentum: -0.1"),
    ("momentum: nan", "momentum: nan"),
    ("weight_decay: -1", "weight_decay: -1; it must"),
    ("gamma: inf", "gamma: inf"),
    ("max_iter: -1", "max_iter: -1; it must be at least 0"),
    ("iter_size: 0", "iter_size: 0; it must be at least 1"),
    ("average_loss: 0", "average_loss: 0"),
    ("display: -1", "display: -1"),
    ("snapshot: -1", "snapshot: -1"),
    ('type: "Adam" momentum2: 1', "momentum2: 1; it must be at least 0 and less than 1"),
    ('type: "Adam" delta: -1', "delta: -1; it must be a finite number of at least 0"),
    ('type: "AdaGrad" momentum: 0.9', "momentum: 0.9; a solver of type AdaGrad has no momentum, remove the field"),
    ('type: "RMSProp"\nmomentum: 0.9', "momentum: 0.9; a solver of type RMSProp has no momentum"),
    ('type: "RMSProp" rms_decay: 1', "rms_decay: 1; it must be at least 0 and less than 1"),
    ("solver_type: RMSPROP rms_decay: -0.5", "rms_decay: -0.5; it must be"),
    ('type: "sgdd"', "type: unknown solver 'sgdd'; did you mean 'SGD'"),
    ("solver_type: ADAGRADD", "unknown value 'ADAGRADD' of SolverParameter.SolverType; allowed are SGD, NESTEROV"),
    ('type: "SGD" solver_type: SGD', "both are given; keep type"),
    ('regularization_type: "L3"', "regularization_type: 'L3' is unknown; supported are L1 and L2"),
    ("clip_gradients: nan", "clip_gradients: nan; it must be a number: negative for no clipping"),
    ("snapshot_format: HDF4", "unknown value 'HDF4' of SolverParameter.SnapshotFormat; allowed are HDF5, BINARYPROTO"),
    ("momentumm: 0.9", "unknown field 'momentumm' of SolverParameter; did you mean 'momentum'"),
    ("larc: true momentumm: 0.9", "unknown field 'momentumm' of SolverParameter; did you mean"),
    ("larc: true net_param { larc: true }", "unknown field 'larc' of NetParameter"),
    ("test_iter: 1", "test_iter: needs test_interval"),
    ("test_iter: 0 test_interval: 1", "test_iter: 0; it must be at least 1"),
    ("test_iter: [3, 0] test_interval: 1", "test_iter: 0; it must be at least 1"),
    ('test_net: "test.prototxt"', "test_net: needs test_iter"),
    ('test_net: "none.prototxt"', "test_net: 'none.prototxt' does not exist"),
    ("test_net_param { }", "test_net_param: needs test_iter"),
    ('train_net: "net.prototxt"', "net and train_net are both given"),
    ("net_param { }", "net and net_param are both given"),
    ("train_state { phase: TEST }", "train_state: its phase must be TRAIN"),
    ("test_iter: 1 test_interval: 1 test_state { phase: TRAIN }", "test_state: its phase must be TEST"),
    (
        "test_iter: [1, 1, 1] test_interval: 1\ntest_state { }\ntest_state { }",
        "test_state: is given 2 times for 3 test nets",
    ),
    ('net: "nothing.prototxt"', "net: 'nothing.prototxt' does not exist; looked for .* and .*"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_refused(solver_of: Solver, line: str, message: str) -> None:
    field = line.partition(":")[0]
    lines = [old for old in LEAST.splitlines() if not old.startswith(field + ":")]

    with pytest.raises(InputError, match=rf"my_solver.prototxt:[\d:]+ .*{message}"):
        solver_of("\n".join([*lines, line]))


def test_a_net_instead_of_a_solver(solver_of: Solver) -> None:
    with pytest.raises(InputError, match=r"my_solver.prototxt: is a net \(it has layers\).* give the solver"):
        solver_of('name: "lenet"\nlayer { name: "x" type: "ReLU" }')


PLACED = [
    ('type: "RMSProp"\nmomentum: 0.9', 6),
    ("larc: true\n\nmomentumm: 0.9", 7),
    ("larc: true\nnet_param {\n\n larc: true }", 8),
    ("clip_gradients: nan", 5),
    ('regularization_type: "L3"', 5),
]


@pytest.mark.parametrize(("lines", "number"), PLACED)
def test_the_line_of_what_is_wrong(solver_of: Solver, lines: str, number: int) -> None:
    with pytest.raises(InputError, match=f"my_solver.prototxt:{number}: "):
        solver_of(LEAST + lines)


def test_each_test_net_needs_its_test_iter(solver_of: Solver) -> None:
    with pytest.raises(InputError, match="test_iter: is given 1 times for 2 test nets"):
        solver_of(LEAST + 'test_net: "test.prototxt" test_net: "test.prototxt" test_iter: 1 test_interval: 1')
    with pytest.raises(InputError, match="test_iter: is given 2 times for 1 test nets"):
        solver_of(LEAST.replace("net:", "train_net:") + 'test_net: "test.prototxt" test_iter: [1, 1] test_interval: 1')


def test_a_test_needs_a_test_net(solver_of: Solver) -> None:
    with pytest.raises(InputError, match="train_net has no test net"):
        solver_of(LEAST.replace("net:", "train_net:") + "test_iter: 1 test_interval: 1")


WARNED = [
    ("debug_info: true", "debug_info shows values of displayed iterations only, and display is 0"),
    ("device_id: 1", "device_id has no effect; --device cuda:1 (samovar caffe: -gpu 1) takes that GPU"),
    ("layer_wise_reduce: false", "layer_wise_reduce has no effect"),
    ("snapshot_diff: true", "snapshot_diff has no effect"),
    ("test_interval: 5", "test_interval has no effect without test_iter"),
    ("stepvalue: 5", "stepvalue has no effect with lr_policy 'fixed'"),
    ("stepsize: 5", "stepsize has no effect with lr_policy 'fixed'"),
    ("gamma: 0.5", "gamma has no effect with lr_policy 'fixed'"),
    ("power: 2", "power has no effect with lr_policy 'fixed'"),
    ("momentum2: 0.9", "momentum2 has no effect with type SGD"),
    ("delta: 0.1", "delta has no effect with type SGD"),
    ("solver_type: ADAGRAD rms_decay: 0.5", "rms_decay has no effect with type AdaGrad"),
]


def test_each_constant_belongs_to_some_type(solver_of: Solver) -> None:
    kinds = {"momentum2: 0.9": "Adam", "rms_decay: 0.5": "RMSProp", "delta: 1e-4": "AdaDelta"}
    for line, kind in kinds.items():
        assert solver_of(f'{LEAST} type: "{kind}" {line}').warnings == ()


def test_multistep_needs_stepvalues_to_do_anything(solver_of: Solver) -> None:
    text = LEAST.replace("fixed", "multistep") + "gamma: 0.5"
    (warning,) = solver_of(text).warnings
    assert warning.endswith(":4: lr_policy is 'multistep' without any stepvalue, so the rate does not fall")
    assert solver_of(text + " stepvalue: 5").warnings == ()


@pytest.mark.parametrize(("line", "message"), WARNED)
def test_warnings(solver_of: Solver, tmp_path: Path, line: str, message: str) -> None:
    (warning,) = solver_of(LEAST + line).warnings

    assert warning.startswith(f"{tmp_path / 'my_solver.prototxt'}:5: {message}")


def test_what_only_the_caffe_command_follows(solver_of: Solver, tmp_path: Path) -> None:
    solver = solver_of(LEAST + "snapshot_after_train: false")

    (warning,) = solver.only_for_caffe
    assert warning.startswith(f"{tmp_path / 'my_solver.prototxt'}:5: snapshot_after_train has no effect; ")
    assert solver.warnings == ()


def test_a_policy_without_gamma_is_warned_about(solver_of: Solver) -> None:
    (warning,) = solver_of(LEAST.replace("fixed", "inv")).warnings

    assert "gamma is 0, so with lr_policy 'inv' the rate does not fall" in warning


FOREIGN = [
    ("global_grad_scale: 1000", "global_grad_scale is a field of NVCaffe"),
    ("solver_data_type: FLOAT16", "solver_data_type is a field of NVCaffe"),
    ('momentum_policy: "poly"', "momentum_policy is a field of NVCaffe"),
    ("warmup_iter: 5", "warmup_iter is a field of Intel Caffe"),
    ("plateau_winsize: [1, 2]", "plateau_winsize is a field of Intel Caffe"),
    ("engine { of: { any: 'kind' } }", "engine is a field of Intel Caffe"),
]


def test_a_net_of_the_working_folder_hides_that_of_the_solver_with_a_warning(
    solver_of: Solver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert solver_of(LEAST).warnings == ()
    (tmp_path / "mine").mkdir()
    for name in ("my_solver.prototxt", "net.prototxt"):
        shutil.copy(name, "mine")
    solver = load_solver(Path("mine/my_solver.prototxt"))
    assert solver.net.path == Path("net.prototxt")
    assert solver.warnings == (
        "mine/my_solver.prototxt:1: net is 'net.prototxt' of the working folder, as in Caffe; "
        "to train mine/net.prototxt, start in its folder",
    )


@pytest.mark.parametrize(("line", "message"), FOREIGN)
def test_fields_of_other_caffes_are_skipped_with_a_warning(
    solver_of: Solver, tmp_path: Path, line: str, message: str
) -> None:
    solver = solver_of(f"{LEAST}{line}\nmomentum: 0.5")

    assert solver.momentum == 0.5
    (warning,) = solver.warnings
    assert warning.startswith(f"{tmp_path / 'my_solver.prototxt'}:5: {message} that BVLC Caffe does not have")
