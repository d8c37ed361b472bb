"""Caffe's solver file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samovar.core.errors import InputError
from samovar.formats.caffe.text import TextMessage, read_text
from samovar.frontends.caffe.foreign import FOREIGN_FIELDS
from samovar.frontends.caffe.paths import find_named
from samovar.frontends.caffe.solver_checks import check_solver, solver_warnings
from samovar.solver.config import TYPES, SolverConfig
from samovar.solver.policy import PolicyConfig

SnapshotFormat: TypeAlias = Literal["BINARYPROTO", "HDF5"]

_AS_WRITTEN = (
    *("base_lr", "lr_policy", "gamma", "power", "stepsize"),
    *("momentum", "momentum2", "rms_decay", "delta", "weight_decay", "regularization_type"),
    *("max_iter", "display", "average_loss", "iter_size"),
    *("test_interval", "test_initialization", "test_compute_loss", "snapshot", "snapshot_after_train"),
)


@dataclass(frozen=True, slots=True)
class CaffeSolver:
    """A solver as written, checked; names and meanings are Caffe's.

    `net_path` is the training net; `test_net_path` the one to test, None without `test_iter`. Intervals of 0
    mean never. `random_seed` is None where none is given, `clip_gradients` where nothing is clipped. `type` is
    also that of an old `solver_type`. `warnings` name fields without effect here.
    """

    path: Path
    net_path: Path
    test_net_path: Path | None
    base_lr: float
    lr_policy: str
    gamma: float
    power: float
    stepsize: int
    stepvalue: tuple[int, ...]
    momentum: float
    momentum2: float
    rms_decay: float
    delta: float
    weight_decay: float
    regularization_type: str
    clip_gradients: float | None
    max_iter: int
    display: int
    average_loss: int
    iter_size: int
    test_iter: tuple[int, ...]
    test_interval: int
    test_initialization: bool
    test_compute_loss: bool
    snapshot: int
    snapshot_prefix: Path
    snapshot_format: SnapshotFormat
    snapshot_after_train: bool
    random_seed: int | None
    solver_mode: str
    type: str
    warnings: tuple[str, ...]


def load_solver(path: Path) -> CaffeSolver:
    """Read a solver's prototxt; InputError with file and line for what is missing, wrong or not supported.

    Fields that only NVCaffe or Intel Caffe have are skipped with a warning.
    """
    text = read_text(path, "SolverParameter", FOREIGN_FIELDS)
    solver = text.message
    check_solver(text)
    net_path, test_net_path = _nets(text)
    as_written = {name: getattr(solver, name) for name in _AS_WRITTEN}
    loaded = CaffeSolver(
        **as_written,
        path=path,
        net_path=net_path,
        test_net_path=test_net_path,
        stepvalue=tuple(solver.stepvalue),
        clip_gradients=None if solver.clip_gradients < 0 else solver.clip_gradients,
        test_iter=tuple(solver.test_iter),
        snapshot_prefix=_snapshot_prefix(text),
        snapshot_format="BINARYPROTO" if solver.snapshot_format else "HDF5",
        random_seed=solver.random_seed if solver.random_seed >= 0 else None,
        solver_mode="GPU" if solver.solver_mode else "CPU",
        type=TYPES[solver.solver_type] if solver.HasField("solver_type") else solver.type,
        warnings=solver_warnings(text),
    )
    _check_config(text, loaded)
    return loaded


def solver_config(solver: CaffeSolver) -> SolverConfig:
    """What updates the weights; raises InputError "field: reason"."""
    policy = PolicyConfig(
        solver.lr_policy,
        solver.base_lr,
        solver.gamma,
        solver.power,
        solver.stepsize,
        solver.stepvalue,
        solver.max_iter,
    )
    return SolverConfig(
        type=solver.type,
        policy=policy,
        momentum=solver.momentum,
        momentum2=solver.momentum2,
        rms_decay=solver.rms_decay,
        delta=solver.delta,
        weight_decay=solver.weight_decay,
        regularization_type=solver.regularization_type,
        clip_gradients=solver.clip_gradients,
        iter_size=solver.iter_size,
    )


def _check_config(text: TextMessage, solver: CaffeSolver) -> None:
    try:
        solver_config(solver)
    except InputError as error:
        field = str(error).partition(":")[0]
        raise InputError(f"{text.path}:{text.places.line_of(field)}: {error}") from None


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
        raise InputError(
            f"{text.path}:{text.places.line_of('test_iter')}: test_iter: is given, but train_net has no test net; "
            "add test_net, or use net"
        )
    return net_path, net_path if solver.test_iter else None


def _named(text: TextMessage, field: str, written: str) -> Path:
    return find_named(written, text.path, f"{text.path}:{text.places.line_of(field)}: {field}")


def _snapshot_prefix(text: TextMessage) -> Path:
    """As Caffe: without a prefix the solver file's name; of a folder, the solver file's name in it."""
    if not text.message.HasField("snapshot_prefix"):
        return text.path.with_suffix("")
    prefix = Path(text.message.snapshot_prefix)
    return prefix / text.path.stem if prefix.is_dir() else prefix
