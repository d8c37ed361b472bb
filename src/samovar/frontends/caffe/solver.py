"""Caffe's solver file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samovar.core.errors import InputError
from samovar.formats.caffe.text import TextMessage, field_names, read_text
from samovar.frontends.caffe.paths import find_named
from samovar.frontends.caffe.solver_checks import FOREIGN_FIELDS, check_solver, only_for_caffe, solver_warnings
from samovar.frontends.caffe.solver_nets import NetSource, TestNet, test_nets, train_net
from samovar.solver.policy import TYPES, PolicyConfig, SolverConfig

SnapshotFormat: TypeAlias = Literal["BINARYPROTO", "HDF5"]

_AS_WRITTEN = (
    *("base_lr", "lr_policy", "gamma", "power", "stepsize"),
    *("momentum", "momentum2", "rms_decay", "delta", "weight_decay", "regularization_type"),
    *("max_iter", "display", "average_loss", "iter_size"),
    *("test_interval", "test_initialization", "test_compute_loss", "snapshot", "snapshot_after_train"),
    "debug_info",
)


@dataclass(frozen=True, slots=True)
class CaffeSolver:
    """A solver as written, checked; names and meanings are Caffe's.

    `net` is the training net; `test_nets` those to test, in Caffe's order, none without `test_iter`. `weights` are
    files to start from. Intervals of 0 mean never. `random_seed` is None where none is given, `clip_gradients`
    where nothing is clipped. `type` is also that of an old `solver_type`. `warnings` name fields without effect here,
    `only_for_caffe` those that `samovar caffe train` alone follows. `warm_up_steps` is Samovar's.
    """

    path: Path
    net: NetSource
    test_nets: tuple[TestNet, ...]
    weights: tuple[Path, ...]
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
    test_interval: int
    test_initialization: bool
    test_compute_loss: bool
    snapshot: int
    snapshot_prefix: Path
    snapshot_format: SnapshotFormat
    snapshot_after_train: bool
    debug_info: bool
    random_seed: int | None
    solver_mode: str
    type: str
    warnings: tuple[str, ...]
    only_for_caffe: tuple[str, ...]
    warm_up_steps: int = 0

    @property
    def net_path(self) -> Path:
        """The file that holds the training net."""
        return self.net.path

    @property
    def takes_snapshots(self) -> bool:
        """Whether Caffe would write any file."""
        return bool(self.snapshot) or self.snapshot_after_train


def load_solver(path: Path) -> CaffeSolver:
    """Read a solver's prototxt; InputError with file and line for what is missing, wrong or not supported.

    Fields that only NVCaffe or Intel Caffe have are skipped with a warning.
    """
    _require_no_net(path)
    text = read_text(path, "SolverParameter", FOREIGN_FIELDS)
    solver = text.message
    check_solver(text)
    as_written = {name: getattr(solver, name) for name in _AS_WRITTEN}
    loaded = CaffeSolver(
        **as_written,
        path=path,
        net=train_net(text),
        test_nets=test_nets(text),
        weights=tuple(_weights(text)),
        stepvalue=tuple(solver.stepvalue),
        clip_gradients=None if solver.clip_gradients < 0 else solver.clip_gradients,
        snapshot_prefix=_snapshot_prefix(text),
        snapshot_format="BINARYPROTO" if solver.snapshot_format else "HDF5",
        random_seed=solver.random_seed if solver.random_seed >= 0 else None,
        solver_mode="GPU" if solver.solver_mode else "CPU",
        type=TYPES[solver.solver_type] if solver.HasField("solver_type") else solver.type,
        warnings=solver_warnings(text),
        only_for_caffe=only_for_caffe(text),
    )
    _check_config(text, loaded)
    return loaded


def _require_no_net(path: Path) -> None:
    if not {"layer", "layers"}.isdisjoint(field_names(path)):
        raise InputError(f"{path}: is a net (it has layers), not a solver; give the solver whose net: names it")


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
        solver.warm_up_steps,
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


def _weights(text: TextMessage) -> Iterator[Path]:
    """Every file of every `weights`, which may name several with commas."""
    places = text.places.fields.get("weights", [])
    for index, written in enumerate(text.message.weights):
        line = places[index].line if index < len(places) else text.places.line_of("weights")
        for name in written.split(","):
            yield find_named(name.strip(), text.path, f"{text.path}:{line}: weights")


def _snapshot_prefix(text: TextMessage) -> Path:
    """As Caffe: without a prefix the solver file's name; of a folder, the solver file's name in it."""
    if not text.message.HasField("snapshot_prefix"):
        return text.path.with_suffix("")
    prefix = Path(text.message.snapshot_prefix)
    return prefix / text.path.stem if prefix.is_dir() else prefix
