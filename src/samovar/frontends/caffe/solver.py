"""Caffe's solver file: its nets, its settings, and the same solver for larger steps (`--large-batch`)."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from samovar.core.errors import InputError
from samovar.core.large_batch import LargeBatch
from samovar.formats.caffe.text import TextMessage, TextPlace, field_names, read_text
from samovar.frontends.caffe.solver_checks import FOREIGN_FIELDS, check_solver, only_for_caffe, solver_warnings
from samovar.frontends.caffe.spec import PHASES, Phase, find_named, is_there
from samovar.solver.policy import PLAIN_TYPES, TYPES, PolicyConfig, SolverConfig

_TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


@dataclass(frozen=True, slots=True)
class NetSource:
    """The place of a net, and the state that the solver gives it.

    `text` is a net inside the solver file `path`; None: a net in a file of its own. `level` None leaves the net's own
    level, and `stages` add to the net's own. `origin` are Caffe's words for the place.
    """

    path: Path
    origin: str
    text: TextMessage | None = None
    level: int | None = None
    stages: tuple[str, ...] = ()

    def name(self) -> str:
        """The net's name, else its file's; raises InputError if the file is not a net."""
        return self.read().message.name or self.path.stem

    def read(self) -> TextMessage:
        """The net as it is written; raises InputError if the file is not a net."""
        return self.text if self.text is not None else read_text(self.path, "NetParameter", FOREIGN_FIELDS)


@dataclass(frozen=True, slots=True)
class TestNet:
    """A net to test, over `num_batches` batches (Caffe's test_iter)."""

    source: NetSource
    num_batches: int


def train_net(text: TextMessage) -> NetSource:
    """The net to train; InputError unless exactly one is given."""
    given = [field for field in _TRAIN_FIELDS if text.message.HasField(field)]
    if len(given) != 1:
        line = text.places.line_of(given[-1] if given else "net")
        what = f"{' and '.join(given)} are both given" if given else "net and train_net are both missing"
        raise InputError(f"{text.path}:{line}: {what}; give one")
    (source,) = _sources(text, given[0])
    return _with_state(text, source, "TRAIN", "train_state", 0)


def test_nets(text: TextMessage) -> tuple[TestNet, ...]:
    """Those of test_net_param, then those of test_net, then `net` once for each test_iter that is left.
    Raises InputError unless there is one test_iter, and no or one test_state, for each."""
    solver = text.message
    sources = [*_sources(text, "test_net_param"), *_sources(text, "test_net")]
    counts = list(solver.test_iter)
    generic = next((field for field in ("net", "net_param") if solver.HasField(field)), None)
    if generic is not None:
        sources += list(_sources(text, generic)) * (len(counts) - len(sources))
    if len(sources) != len(counts):
        raise _wrong_count(text, len(sources), len(counts))
    if len(solver.test_state) not in (0, len(sources)):
        raise InputError(
            f"{text.path}:{text.places.line_of('test_state')}: test_state: is given {len(solver.test_state)} times for "
            f"{len(sources)} test nets; give one for each, or none"
        )
    return tuple(
        TestNet(_with_state(text, source, "TEST", "test_state", index), count)
        for index, (source, count) in enumerate(zip(sources, counts, strict=True))
    )


def _wrong_count(text: TextMessage, num_nets: int, num_counts: int) -> InputError:
    field = "test_iter" if num_counts else "test_net" if text.message.test_net else "test_net_param"
    where = f"{text.path}:{text.places.line_of(field)}: {field}: "
    if not num_nets:
        return InputError(f"{where}is given, but train_net has no test net; add test_net, or use net")
    if not num_counts:
        return InputError(f"{where}needs test_iter, the number of test batches; add it")
    return InputError(f"{where}is given {num_counts} times for {num_nets} test nets; give one for each")


def _sources(text: TextMessage, field: str) -> Iterator[NetSource]:
    value = getattr(text.message, field)
    for index, item in enumerate(value if field.startswith("test") else [value]):
        place = _place_of(text, field, index)
        if isinstance(item, str):
            path = find_named(item, text.path, f"{text.path}:{place.line}: {field}")
            yield NetSource(path, f"{field} file: {item}")
        else:
            yield NetSource(text.path, field, TextMessage(text.path, item, place))


def _with_state(text: TextMessage, source: NetSource, phase: Phase, field: str, index: int) -> NetSource:
    """`source` in the state that the solver's `field` asks for."""
    solver, place = text.message, _place_of(text, field, index)
    states = solver.test_state if phase == "TEST" else [solver.train_state] * solver.HasField(field)
    if not states:
        return source
    state = states[index]
    if state.HasField("phase") and state.phase != PHASES[phase]:
        raise InputError(f"{text.path}:{place.line_of('phase')}: {field}: its phase must be {phase}; leave phase out")
    level = state.level if state.HasField("level") else None
    return replace(source, level=level, stages=tuple(state.stage))


def _place_of(text: TextMessage, field: str, index: int) -> TextPlace:
    """The place of the field's value of that number; the whole file if it is not known."""
    places = text.places.fields.get(field, [])
    return places[index] if index < len(places) else text.places


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

    `net` is the training net. `test_nets` are those to test, in Caffe's order, none without `test_iter`. Files that
    `named_weights` names, each with its line, may be missing. Intervals of 0 mean never. `random_seed` is None
    if not given, `clip_gradients` if nothing is clipped. `type` is also that of an old `solver_type`. `warnings` name
    fields without effect here, `only_for_caffe` those for `samovar caffe train` alone. `warm_up_steps` is Samovar's.
    """

    path: Path
    net: NetSource
    test_nets: tuple[TestNet, ...]
    named_weights: tuple[tuple[str, int], ...]
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
    def is_adaptive(self) -> bool:
        """Whether steps are divided by the size of gradients, as Adam's are."""
        return self.type not in PLAIN_TYPES

    def weights(self) -> tuple[Path, ...]:
        """The files of `named_weights`; InputError if one does not exist."""
        return tuple(find_named(name, self.path, f"{self.path}:{line}: weights") for name, line in self.named_weights)

    def starting_weights(self, given: tuple[Path, ...], snapshot: Path | None) -> tuple[Path, ...]:
        """The `given` files, else `weights`; none for a run that resumes a snapshot (as in Caffe)."""
        return () if snapshot is not None else given or self.weights()


def load_solver(path: Path) -> CaffeSolver:
    """Read a solver's prototxt; InputError with file and line for a missing, wrong or unsupported field.
    Fields that only NVCaffe or Intel Caffe have are skipped with a warning."""
    if not {"layer", "layers"}.isdisjoint(field_names(path)):
        raise InputError(f"{path}: is a net (it has layers), not a solver; give the solver whose net: names it")
    text = read_text(path, "SolverParameter", FOREIGN_FIELDS)
    solver = text.message
    check_solver(text)
    as_written = {name: getattr(solver, name) for name in _AS_WRITTEN}
    loaded = CaffeSolver(
        **as_written,
        path=path,
        net=train_net(text),
        test_nets=test_nets(text),
        named_weights=tuple(
            (name.strip(), _place_of(text, "weights", index).line)
            for index, written in enumerate(solver.weights)
            for name in written.split(",")
        ),
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
    try:
        solver_config(loaded)
    except InputError as error:
        field = str(error).partition(":")[0]
        raise InputError(f"{text.path}:{text.places.line_of(field)}: {error}") from None
    return loaded


def solver_config(solver: CaffeSolver) -> SolverConfig:
    """The settings of the update; raises InputError "field: reason"."""
    schedule = (solver.lr_policy, solver.base_lr, solver.gamma, solver.power, solver.stepsize, solver.stepvalue)
    names = [field.name for field in fields(SolverConfig) if field.name != "policy"]
    policy = PolicyConfig(*schedule, solver.max_iter, solver.warm_up_steps)
    return SolverConfig(policy=policy, **{name: getattr(solver, name) for name in names})


def _snapshot_prefix(text: TextMessage) -> Path:
    """As in Caffe: without a prefix the solver file's name; for a folder, the solver file's name in it."""
    if not text.message.HasField("snapshot_prefix"):
        return text.path.with_suffix("")
    written = text.message.snapshot_prefix
    prefix = Path(written)
    try:
        if min(written, default=" ") < " ":
            raise ValueError(r"has a control character, such as the newline that \n is here (write / or \\)")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            Path(f"{written}_iter_1000000000.solverstate.h5..4194304.partial").stat()  # as long as publish_file's
    except (OSError, ValueError) as error:  # a name that no file can have
        reason, line = getattr(error, "strerror", None) or error, text.places.line_of("snapshot_prefix")
        raise InputError(f"{text.path}:{line}: snapshot_prefix: {reason}; give a shorter, plain path") from None
    return prefix / text.path.stem if prefix.is_dir() or written.endswith("/") else prefix


_INTERVALS = ("stepsize", "display", "average_loss", "test_interval", "snapshot")
_SHOWN = ("base_lr", "max_iter", "gamma", "stepsize", "stepvalue", *_INTERVALS[1:])


def with_large_batch(caffe: CaffeSolver, batch_size: int, large: LargeBatch) -> tuple[CaffeSolver, tuple[str, ...]]:
    """The solver `caffe` for steps of `large.batch_size` samples instead of `batch_size`, and its changes as text.

    With k times as many samples a step, each number of steps is divided by k: max_iter (rounded up), stepsize,
    stepvalue, and the intervals of display, test and snapshot. A gamma that acts once a step acts k times as much.
    Momentum and weight decay stay. Raises InputError if the step would be smaller, or cannot be cut into iter_size
    parts.
    """
    own = batch_size * caffe.iter_size
    if large.batch_size < own:
        raise InputError(
            f"--large-batch {large.batch_size}: is smaller than the solver's own step of {own} samples; "
            f"give more than {own}, or leave it out"
        )
    if large.batch_size % caffe.iter_size:
        raise InputError(
            f"--large-batch {large.batch_size}: cannot be cut into iter_size {caffe.iter_size} equal parts; "
            f"give a multiple of {caffe.iter_size}"
        )
    times = large.batch_size / own
    max_iter = math.ceil(caffe.max_iter / times)
    warm_up_steps = math.ceil(max_iter / 10) if large.warm_up_steps is None else large.warm_up_steps
    intervals: dict[str, Any] = {name: _fewer(getattr(caffe, name), times) for name in _INTERVALS}
    changed = replace(
        caffe,
        base_lr=caffe.base_lr * large.rate_factor(times),
        gamma=_gamma(caffe, times),
        max_iter=max_iter,
        stepvalue=tuple(_fewer(value, times) for value in caffe.stepvalue),
        warm_up_steps=warm_up_steps,
        **intervals,
    )
    return changed, (*changes(caffe, changed), f"warm-up over {warm_up_steps:,} steps")


def _gamma(caffe: CaffeSolver, times: float) -> float:
    """A gamma that acts once a step acts k times as much; one that acts at drops stays."""
    if caffe.lr_policy in ("inv", "sigmoid"):
        return caffe.gamma * times
    if caffe.lr_policy == "step" and caffe.stepsize < times:  # several drops in one larger step
        return float(caffe.gamma ** (times / caffe.stepsize))
    return float(caffe.gamma**times) if caffe.lr_policy == "exp" else caffe.gamma


def _fewer(steps: int, times: float) -> int:
    """The number of larger steps, at least 1; 0 stays 0, for never."""
    return max(1, round(steps / times)) if steps > 0 else steps


def changes(before: CaffeSolver, after: CaffeSolver) -> Iterator[str]:
    """The fields that differ between two solvers: "max_iter 1,280 -> 32"."""
    for name in _SHOWN:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{name} {_shown(old)} -> {_shown(new)}"


def _shown(value: float | int | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def learned_net(path: Path, named: str) -> Path:
    """The caffemodel that a solverstate names: from its own folder, as they were saved, else as Caffe finds it."""
    candidates = (path.parent / Path(named).name, Path(named))
    for candidate in candidates:
        if is_there(candidate) and candidate.is_file():
            return candidate
    raise InputError(f"{path}: its weights {named!r} are neither at {candidates[0]} nor at {candidates[1]}")
