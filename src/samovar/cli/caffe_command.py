"""`samovar caffe`: Caffe's commands, flags and log, on the functions that `samovar train` and the others use.

Flags have the form in which Caffe (gflags) reads them.
"""

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli.flags import own_strategy, written_type
from samovar.config import PHASES, RunConfig, parse_weights
from samovar.core.device import CUDA
from samovar.core.errors import InputError, nearest
from samovar.core.units import is_count
from samovar.formats.caffe.text import read_text
from samovar.frontends.caffe.solver import CaffeSolver, load_solver
from samovar.frontends.caffe.solver_checks import FOREIGN_FIELDS
from samovar.launch.meeting import HostPlace
from samovar.launch.processes import AT_ONCE, DEFAULT_EFFECTS, SignalEffect
from samovar.launcher.hosts import run_anywhere
from samovar.launcher.job import exit_code_of, remove_unfinished
from samovar.launcher.placing import on_device, placed
from samovar.launcher.started import as_started
from samovar.report.caffe_log import CaffeLog
from samovar.report.console import Console
from samovar.report.result import RunResult
from samovar.strategies.catalog import asked_for
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import AUTO, declared_settings

COMMANDS = ("train", "test", "time", "device_query")
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_HELP = ("-h", "-help", "--help")
_GPUS = Path("/proc/driver/nvidia/gpus")
_USAGE = """samovar caffe COMMAND -FLAG VALUE ...   (or -FLAG=VALUE; one dash or two)

  train         -solver FILE [-weights FILE,FILE | -snapshot FILE.solverstate]
                [-level N] [-stage A,B] [-gpu N]
                [-sigint_effect stop|snapshot|none]
                [-sighup_effect stop|snapshot|none]
  test          -model FILE -weights FILE,FILE [-iterations 50]
                [-level N] [-stage A,B] [-gpu N]
  time          -model FILE [-iterations 50] [-phase TRAIN|TEST]
                [-level N] [-stage A,B] [-gpu N]
  device_query  [-gpu all]

Flags that Caffe does not have: -workers N and -threads_per_worker N, and for
train also -strategy NAME and its settings, such as -sync_period N.
Snapshots go to the solver's snapshot_prefix.
"""


CAFFE_EFFECTS = (SignalEffect.STOP, SignalEffect.SNAPSHOT, SignalEffect.NONE)
# Flags of glog, the library that writes Caffe's log: this log always goes to stderr, in full.
_OF_GLOG = ("log_dir", "logbufsecs", "minloglevel", "stderrthreshold", "v", "vmodule", "max_log_size")
_OF_GLOG_ON_OFF = ("logtostderr", "alsologtostderr", "colorlogtostderr", "log_prefix")


@dataclass(frozen=True, slots=True)
class CaffeFlags:
    """The given flags, with Caffe's names, meanings and defaults, except for the last four, which are Samovar's."""

    command: str
    solver: Path | None = None
    model: Path | None = None
    weights: tuple[Path, ...] = ()
    snapshot: Path | None = None
    gpu: str | None = None
    iterations: int = 50
    phase: str | None = None
    level: int = 0
    stage: tuple[str, ...] = ()
    sigint_effect: SignalEffect = SignalEffect.STOP
    sighup_effect: SignalEffect = SignalEffect.SNAPSHOT
    workers: int = 1
    threads_per_worker: int | None = None
    strategy: str = "sync"
    settings: Mapping[str, object] = field(default_factory=dict)

    def require(self, name: str, example: str) -> Path:
        """The file of flag `name`; InputError if it is missing or no file."""
        path: Path | None = getattr(self, name)
        if path is None:
            raise InputError(f"-{name} is missing; give the {example}")
        if not path.is_file():
            raise InputError(f"-{name} {path}: no such file; give the {example}")
        return path


def parse_caffe_flags(words: Sequence[str]) -> CaffeFlags:
    """The command and its flags: `-flag value`, `-flag=value`, one dash or two; the last wins, and empty text is none.

    Raises InputError for an unknown command or flag, and for a value that the flag cannot have.
    """
    own_strategy(words, ("-strategy", "--strategy"))
    settings = {own[0].spellings[-1]: own[0] for own in declared_settings().values() if own[0].has_flag}
    readers = {**_READERS, **{name: _OF_TYPE[written_type(setting)] for name, setting in settings.items()}}
    commands: list[str] = []
    values: dict[str, object] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            commands.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if _is_of_glog(name, bool(equals), rest):
            continue
        if name not in readers:
            known = nearest(f"-{name}", [f"-{flag}" for flag in readers])
            raise InputError(f"{word}: samovar caffe has no such flag; {known}")
        if not equals:
            value = _next_word(name, rest)
        values[name] = readers[name](name, value)
    given = {setting.name: values.pop(name) for name, setting in settings.items() if name in values}
    return dataclasses.replace(CaffeFlags(_command(commands)), **values, settings=given)  # type: ignore[arg-type]


def _command(given: Sequence[str]) -> str:
    if len(given) != 1 or given[0] not in COMMANDS:
        what = f"got {' '.join(given)!r}" if given else "no command"
        raise InputError(f"samovar caffe: {what}; give one of: {', '.join(COMMANDS)}")
    return given[0]


def _next_word(name: str, rest: list[str]) -> str:
    if not rest:
        raise InputError(f"-{name} needs a value; write -{name} VALUE or -{name}=VALUE")
    return rest.pop(0)


def _is_of_glog(name: str, has_value: bool, rest: list[str]) -> bool:
    """Whether a flag is glog's; its value is taken away."""
    if name in _OF_GLOG_ON_OFF or name.removeprefix("no") in _OF_GLOG_ON_OFF:
        return True
    if name in _OF_GLOG:
        if not has_value:
            _next_word(name, rest)
        return True
    return False


def _path(_name: str, value: str) -> Path | None:
    return Path(value) if value else None


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InputError(f"-{name} {value}: is not a whole number; give one") from None


def _real(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"-{name} {value}: is not a number; give one") from None


def _truth(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InputError(f"-{name} {value}: give true or false")
    return value == "true"


def _count(name: str, value: str) -> int:
    number = _number(name, value)
    if number < 1:
        raise InputError(f"-{name} {value}: give at least 1")
    return number


def _names(_name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _phase(name: str, value: str) -> str | None:
    if value and value not in PHASES:
        raise InputError(f"-{name} {value}: give one of: {', '.join(PHASES)}")
    return value or None


def _effect(name: str, value: str) -> SignalEffect:
    effects = {effect.value: effect for effect in CAFFE_EFFECTS}
    if value not in effects:
        raise InputError(f"-{name} {value}: give one of: {', '.join(effects)}")
    return effects[value]


_OF_TYPE: dict[type, Callable[[str, str], object]] = {int: _number, float: _real, bool: _truth, str: lambda _, v: v}
_READERS: dict[str, Callable[[str, str], object]] = {
    "solver": _path,
    "model": _path,
    "weights": lambda _name, value: parse_weights(value) if value else (),
    "snapshot": _path,
    "gpu": lambda _name, value: value or None,
    "iterations": _count,
    "phase": _phase,
    "level": _number,
    "stage": _names,
    "sigint_effect": _effect,
    "sighup_effect": _effect,
    "workers": _count,
    "threads_per_worker": _count,
    "strategy": _OF_TYPE[str],
}


def caffe(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND [-FLAG VALUE]...", help=f"One of: {', '.join(COMMANDS)}.")
    ] = None,
) -> None:
    """Caffe's own commands, flags and log lines: train, test, time, device_query."""
    if not words or any(word in _HELP for word in words):
        typer.echo(_USAGE, nl=False)
        raise typer.Exit
    given = parse_caffe_flags(words)
    commands = {"train": _train, "test": _test, "time": _time, "device_query": _device_query}
    raise typer.Exit(commands[given.command](given, CaffeLog(sys.stderr, given.command)))


def _train(given: CaffeFlags, log: CaffeLog) -> int:
    path = given.require("solver", "solver to train, samovar caffe train -solver solver.prototxt")
    if given.snapshot is not None:
        given.require("snapshot", ".solverstate to resume from")
        if given.weights:
            raise InputError("-snapshot and -weights exclude each other: a snapshot holds weights; give one")
    solver = load_solver(path)
    _require_place_for_snapshots(solver)
    settings = {BUCKET.name: "model", **given.settings}
    sharing = asked_for(given.strategy, AUTO, settings)
    config = RunConfig("train", path, given.weights, given.snapshot, workers=given.workers, strategy=sharing)
    if config.is_async:
        raise InputError(
            f"-strategy {given.strategy}: Caffe's log counts the steps of workers that step together; use "
            f"`samovar train --strategy {given.strategy}`"
        )
    config = _on_device(config, given, log, solver.solver_mode)
    _introduce(given, solver, log)
    effects = {**DEFAULT_EFFECTS, signal.SIGINT: given.sigint_effect, signal.SIGHUP: given.sighup_effect}
    try:
        return _run(config, given, log, effects)
    finally:
        remove_unfinished(solver.snapshot_prefix)


def _test(given: CaffeFlags, log: CaffeLog) -> int:
    model = given.require("model", "net to test, samovar caffe test -model net.prototxt -weights net.caffemodel")
    if not given.weights:
        raise InputError("-weights is missing; give the .caffemodel to test")
    config = RunConfig("test", model, given.weights, workers=given.workers, iterations=given.iterations)
    config = _on_device(config, given, log)
    log.entry("caffe.cpp:281", f"Running for {given.iterations} iterations.")
    return _run(replace(config, hdf5_out=Path()), given, log)


def _time(given: CaffeFlags, log: CaffeLog) -> int:
    model = given.require("model", "net to time, samovar caffe time -model net.prototxt")
    config = RunConfig("time", model, iterations=given.iterations, phase=given.phase or "TRAIN", is_solver=False)
    return _run(_on_device(config, given, log), given, log)


def _device_query(given: CaffeFlags, log: CaffeLog) -> int:
    log.entry("caffe.cpp:138", f"Querying GPUs {given.gpu or 'all'}")
    found = sorted(_GPUS.glob("*/information"))
    for number, path in enumerate(found):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            log.entry("common.cpp:186", f"Device {number}: {' '.join(line.split())}")
    if not found:
        log.entry("common.cpp:186", "No GPU that NVIDIA's driver shows; nets compute on the CPU.", "W")
    return 0


def _run(config: RunConfig, given: CaffeFlags, log: CaffeLog, effects: Mapping[int, SignalEffect] = AT_ONCE) -> int:
    """The job, in the state and on the cores that the flags ask for."""
    config = replace(config, level=given.level, stages=given.stage, by_caffe=True)

    def run(workers: int | str, place: HostPlace | None) -> RunResult | None:
        own = placed(config, int(workers), given.threads_per_worker)
        return run_anywhere(own, place, log, Console(sys.stderr, sys.stderr), effects)

    if config.job == "time":
        return exit_code_of(run(config.workers, None))
    return exit_code_of(as_started(config.workers, None, None, config.timeout_s, run))


def _on_device(config: RunConfig, given: CaffeFlags, log: CaffeLog, solver_mode: str = "CPU") -> RunConfig:
    """On the GPU that -gpu names, else on the CPU; say so where a solver takes a GPU by default."""
    if given.gpu is None:
        if solver_mode == "GPU":
            log.entry("samovar", "solver_mode is GPU (Caffe's default); this run computes on the CPU", "W")
        log.entry("caffe.cpp:197", "Use CPU.")
        return config
    if not is_count(given.gpu):
        raise InputError(
            f"-gpu {given.gpu}: give the number of one GPU, such as 0; to train on several, samovar train "
            "--device cuda --workers N"
        )
    config = on_device(config, f"{CUDA}:{int(given.gpu)}")
    log.entry("caffe.cpp:190", f"Using GPUs {given.gpu}")
    return config


def _introduce(given: CaffeFlags, solver: CaffeSolver, log: CaffeLog) -> None:
    parameters = read_text(solver.path, "SolverParameter", FOREIGN_FIELDS).message
    log.entry("solver.cpp:45", f"Initializing solver from parameters: \n{parameters}".rstrip())
    place = f"from {solver.net.origin}" if solver.net.text is None else f"specified in {solver.net.origin}."
    log.entry("solver.cpp:102", f"Creating training net {place}")
    weights = solver.starting_weights(given.weights, given.snapshot)
    _finetuning(log, weights)
    for number, test in enumerate(solver.test_nets):
        log.entry("solver.cpp:190", f"Creating test net (#{number}) specified by {test.source.origin}")
        _finetuning(log, weights)
    if given.snapshot is not None:
        log.entry("caffe.cpp:229", f"Resuming from {given.snapshot}")


def _finetuning(log: CaffeLog, weights: Sequence[Path]) -> None:
    for path in weights:
        log.entry("solver.cpp:72", f"Finetuning from {path}")


def _require_place_for_snapshots(solver: CaffeSolver) -> None:
    """Refuse now what the first snapshot would find out, maybe after hours."""
    folder = solver.snapshot_prefix.parent
    if (solver.snapshot or solver.snapshot_after_train) and not (folder.is_dir() and os.access(folder, os.W_OK)):
        what = "cannot be written to" if folder.is_dir() else "does not exist"
        raise InputError(
            f"{solver.path}: snapshot_prefix '{solver.snapshot_prefix}': folder {folder} {what}; make it, or change "
            "snapshot_prefix"
        )
