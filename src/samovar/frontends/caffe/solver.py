"""Caffe's solver file."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from samovar.core.errors import InputError
from samovar.formats.caffe.text import TextMessage, nearest, read_text
from samovar.frontends.caffe.paths import find_named

_POLICIES = ("fixed", "inv", "step")
_POLICIES_LATER = ("exp", "multistep", "poly", "sigmoid")
_TYPES_LATER = ("Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")  # in the order of solver_type, from 1
_LEAST = {
    "max_iter": 0,
    "display": 0,
    "test_interval": 0,
    "snapshot": 0,
    "average_loss": 1,
    "iter_size": 1,
}
_NOT_SUPPORTED = {
    "net_param": "put the net into a file and name it with net",
    "train_net_param": "put the net into a file and name it with train_net",
    "test_net_param": "put the net into a file and name it with test_net",
    "train_state": "use include { phase: TRAIN } in the net",
    "test_state": "use include { phase: TEST } in the net",
    "weights": "use the flag --weights",
}


@dataclass(frozen=True, slots=True)
class CaffeSolver:
    """A solver as written, checked; names and meanings are Caffe's.

    `net_path` is the training net; `test_net_path` the one to test, None without `test_iter`. Intervals of 0
    mean never. `random_seed` is None where none is given. `warnings` name fields without effect here.
    """

    path: Path
    net_path: Path
    test_net_path: Path | None
    base_lr: float
    lr_policy: str
    gamma: float
    power: float
    stepsize: int
    momentum: float
    weight_decay: float
    regularization_type: str
    max_iter: int
    display: int
    average_loss: int
    iter_size: int
    test_iter: tuple[int, ...]
    test_interval: int
    test_initialization: bool
    snapshot: int
    snapshot_prefix: Path
    snapshot_after_train: bool
    random_seed: int | None
    solver_mode: str
    type: str
    warnings: tuple[str, ...]


def load_solver(path: Path) -> CaffeSolver:
    """Read a solver's prototxt; InputError with file and line for what is missing, wrong or not supported."""
    text = read_text(path, "SolverParameter")
    solver = text.message
    for check in _CHECKS:
        check(text)
    net_path, test_net_path = _nets(text)
    return CaffeSolver(
        path=path,
        net_path=net_path,
        test_net_path=test_net_path,
        base_lr=solver.base_lr,
        lr_policy=solver.lr_policy,
        gamma=solver.gamma,
        power=solver.power,
        stepsize=solver.stepsize,
        momentum=solver.momentum,
        weight_decay=solver.weight_decay,
        regularization_type=solver.regularization_type,
        max_iter=solver.max_iter,
        display=solver.display,
        average_loss=solver.average_loss,
        iter_size=solver.iter_size,
        test_iter=tuple(solver.test_iter),
        test_interval=solver.test_interval,
        test_initialization=solver.test_initialization,
        snapshot=solver.snapshot,
        snapshot_prefix=_snapshot_prefix(text),
        snapshot_after_train=solver.snapshot_after_train,
        random_seed=solver.random_seed if solver.random_seed >= 0 else None,
        solver_mode="GPU" if solver.solver_mode else "CPU",
        type=solver.type,
        warnings=_warnings(text),
    )


def _error(text: TextMessage, field: str, reason: str) -> InputError:
    return InputError(f"{text.path}:{text.places.line_of(field)}: {field}: {reason}")


def _check_policy(text: TextMessage) -> None:
    solver = text.message
    allowed = f"supported are {', '.join(_POLICIES)}"
    if not solver.lr_policy:
        raise _error(text, "lr_policy", f'is missing; {allowed}; add for example lr_policy: "fixed"')
    if solver.lr_policy in _POLICIES_LATER:
        raise _error(text, "lr_policy", f"'{solver.lr_policy}' is not supported yet; {allowed}")
    if solver.lr_policy not in _POLICIES:
        raise _error(text, "lr_policy", f"unknown policy '{solver.lr_policy}'; {allowed}")
    if solver.lr_policy == "step" and solver.stepsize < 1:
        raise _error(text, "stepsize", f"{solver.stepsize}; lr_policy 'step' needs a stepsize of at least 1")


def _check_type(text: TextMessage) -> None:
    solver = text.message
    if solver.HasField("type") and solver.HasField("solver_type"):
        raise _error(text, "solver_type", "is the old form of type, and both are given; keep type")
    name, field = solver.type, "type"
    if solver.HasField("solver_type"):
        name, field = ("SGD", *_TYPES_LATER)[solver.solver_type], "solver_type"
    if name in _TYPES_LATER:
        raise _error(text, field, f"{name} is not supported yet; supported is SGD")
    if name != "SGD":
        raise _error(text, field, f"unknown solver '{name}'; {nearest(name, ['SGD', *_TYPES_LATER])}")


def _check_numbers(text: TextMessage) -> None:
    solver = text.message
    for field in ("base_lr", "max_iter"):
        if not solver.HasField(field):
            raise _error(text, field, "is missing; add it")
    for field in ("base_lr", "weight_decay"):
        value = getattr(solver, field)
        if not (math.isfinite(value) and value >= 0):
            raise _error(text, field, f"{value}; it must be a finite number of at least 0")
    for field in ("gamma", "power"):
        if not math.isfinite(getattr(solver, field)):
            raise _error(text, field, f"{getattr(solver, field)}; it must be a finite number")
    if not 0 <= solver.momentum < 1:
        raise _error(text, "momentum", f"{solver.momentum}; it must be at least 0 and less than 1")
    for field, least in _LEAST.items():
        if getattr(solver, field) < least:
            raise _error(text, field, f"{getattr(solver, field)}; it must be at least {least}")


def _check_test(text: TextMessage) -> None:
    solver = text.message
    if len(solver.test_iter) > 1 or len(solver.test_net) > 1:
        field = "test_iter" if len(solver.test_iter) > 1 else "test_net"
        raise _error(text, field, "is given more than once; several test nets are not supported yet, keep one")
    if solver.test_net and not solver.test_iter:
        raise _error(text, "test_net", "needs test_iter, the number of test batches; add it")
    if solver.test_iter and solver.test_iter[0] < 1:
        raise _error(text, "test_iter", f"{solver.test_iter[0]}; it must be at least 1")
    if solver.test_iter and not solver.test_interval:
        raise _error(text, "test_iter", "needs test_interval, the iterations between two tests; add it")


def _check_unsupported(text: TextMessage) -> None:
    solver = text.message
    if solver.regularization_type != "L2":
        known = "not supported yet" if solver.regularization_type == "L1" else "unknown"
        raise _error(text, "regularization_type", f"'{solver.regularization_type}' is {known}; supported is L2")
    if solver.clip_gradients >= 0 or math.isnan(solver.clip_gradients):
        raise _error(text, "clip_gradients", "clipping is not supported yet; remove the field")
    if not solver.snapshot_format:
        raise _error(text, "snapshot_format", "HDF5 is not supported yet; use BINARYPROTO")
    for field, advice in _NOT_SUPPORTED.items():
        value = getattr(solver, field)
        if len(value) if field in ("test_net_param", "test_state", "weights") else solver.HasField(field):
            raise _error(text, field, f"is not supported yet; {advice}")


_CHECKS: tuple[Callable[[TextMessage], None], ...] = (
    _check_type,
    _check_policy,
    _check_numbers,
    _check_test,
    _check_unsupported,
)


def _nets(text: TextMessage) -> tuple[Path, Path | None]:
    """The paths of the training net and the test net."""
    solver = text.message
    given = [field for field in ("net", "train_net") if solver.HasField(field)]
    if len(given) != 1:
        what = "are both given" if given else "are both missing"
        raise InputError(f"{text.path}:{text.places.line_of('train_net')}: net and train_net {what}; give one")
    net_path = _named(text, given[0], getattr(solver, given[0]))
    if solver.test_net:
        return net_path, _named(text, "test_net", solver.test_net[0])
    if solver.test_iter and given[0] == "train_net":
        raise _error(text, "test_iter", "is given, but train_net has no test net; add test_net, or use net")
    return net_path, net_path if solver.test_iter else None


def _named(text: TextMessage, field: str, written: str) -> Path:
    return find_named(written, text.path, f"{text.path}:{text.places.line_of(field)}: {field}")


def _snapshot_prefix(text: TextMessage) -> Path:
    """As Caffe: without a prefix the solver file's name; of a folder, the solver file's name in it."""
    if not text.message.HasField("snapshot_prefix"):
        return text.path.with_suffix("")
    prefix = Path(text.message.snapshot_prefix)
    return prefix / text.path.stem if prefix.is_dir() else prefix


def _warnings(text: TextMessage) -> tuple[str, ...]:
    """A sentence for each field that is set but changes nothing, or not what one would expect."""
    solver = text.message
    sentences = {
        "debug_info": "has no effect" if solver.debug_info else None,
        "device_id": "has no effect; training runs on the CPU" if solver.device_id else None,
        "layer_wise_reduce": "has no effect" if not solver.layer_wise_reduce else None,
        "snapshot_diff": "has no effect; gradients are not saved" if solver.snapshot_diff else None,
        "test_compute_loss": "has no effect; a test reports its loss" if solver.test_compute_loss else None,
        "test_interval": "has no effect without test_iter" if solver.test_interval and not solver.test_iter else None,
        "stepvalue": f"has no effect with lr_policy '{solver.lr_policy}'" if solver.stepvalue else None,
        "gamma": f"is 0, so that lr_policy '{solver.lr_policy}' does not lower the rate step by step"
        if solver.lr_policy in ("step", "inv") and not solver.gamma
        else None,
    }
    for field in ("delta", "momentum2", "rms_decay"):
        sentences[field] = "has no effect with type SGD" if solver.HasField(field) else None
    return tuple(
        f"{text.path}:{text.places.line_of(field)}: {field} {sentence}"
        for field, sentence in sentences.items()
        if sentence
    )
