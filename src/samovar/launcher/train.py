"""`samovar.train`, which the command calls too: the checks before a run, then the run and its result."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO, Unpack

from samovar.config import RunConfig, parse_weights
from samovar.core.device import GPU
from samovar.core.errors import InputError, SamovarError
from samovar.core.files import locked
from samovar.core.large_batch import LargeBatch
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.core.trace import TraceWindow
from samovar.core.units import is_count
from samovar.frontends.caffe.solver import load_solver
from samovar.launch.meeting import HostPlace
from samovar.launch.script import Hosts
from samovar.launcher.hosts import place_of, run_on_hosts
from samovar.launcher.job import run_job
from samovar.launcher.other_hosts import Host0
from samovar.launcher.placing import on_device, placed, worker_on_each_gpu
from samovar.launcher.plan import TrainingPlan, find_snapshot, plan_training
from samovar.launcher.started import as_started
from samovar.launcher.sweep import sweep_lines, with_fastest_workers
from samovar.report.console import Console, LogFile
from samovar.report.records import Notice
from samovar.report.result import RunResult
from samovar.report.run_folder import at_folder
from samovar.report.sinks import named_sinks
from samovar.strategies.catalog import asked_for, by_name
from samovar.strategies.config import declared_as, in_python
from samovar.strategies.ours import Settings
from samovar.strategies.traits import AUTO


class TrainSettings(Settings, total=False):
    """The other flags of `samovar train`. One that is left out, or None, has the command's default."""

    collective: str
    transport: Literal["auto", "mpi", "gaspi"] | None
    oversubscribe: bool | None
    shuffle: bool | None
    hold_data: bool | None
    batch_mode: Literal["per-worker", "global"] | None
    recipe: Literal["auto", "none"] | None
    exact: int | None
    large_batch: int | None
    rate_scaling: str | None
    warm_up_steps: int | None
    calibration: CalibrationRecord | str | Path | None
    precision: Literal["fp32", "bf16"] | None
    device: str | None
    trace: str | TraceWindow | None
    metrics: str | Sequence[str] | None
    stop_rule: str | None
    record: bool | None
    replay: str | Path | None
    box: str | None
    join: bool | None
    key_file: str | Path | None
    buffer: str | None
    timeout_s: float | None
    nodes: int | None
    node_rank: int | None
    master_addr: str | None
    master_port: int | None


def train(
    solver: str | Path,
    *,
    workers: int | Literal["auto", "gpu"] = 1,
    strategy: str = "sync",
    threads_per_worker: int | Literal["auto"] | None = None,
    iterations: int | None = None,
    snapshot: str | Path | None = None,
    weights: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    quiet: bool = False,
    **settings: Unpack[TrainSettings],
) -> RunResult:
    """Train a Caffe solver's net on `workers` processes of this machine, as the command `samovar train` does.

    Arguments mean the same as the command's flags (`samovar train --help-all`). Weights, metrics and snapshots are in
    the result's `run_folder`. Progress goes to stdout, warnings to stderr. With `quiet` both go only to samovar.log in
    the folder.

    On the main thread, signals have the same effects as for the command, and their handlers are restored. A first
    Ctrl-C stops the run after a step, with a snapshot and a result that has `stopped_by`. A second one ends it with an
    error. On another thread signals are not handled. Only the folder remains.

    Raises InputError for wrong input. Raises NotFinite, DeadlineExceeded or RankFailed if a rank failed, and else
    another SamovarError. Each has the command's `exit_code`, and its sentence with arguments in place of flags.
    """
    with _errors_in_python():
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        if ":" in strategy:
            declared_as(strategy)  # its settings are arguments, too
        oversubscribe = bool(given.pop("oversubscribe", False))
        key_file = Path(given.pop("key_file")) if "key_file" in given and "box" not in given else None
        place = _place(given, key_file)
        config = _config(Path(solver), strategy, given | {"iterations": iterations, "seed": seed, "weights": weights})
        written, folder = None if snapshot is None else str(snapshot), None if out is None else at_folder(out)
        run = (config, workers, threads_per_worker, oversubscribe, written, folder)
        return run_training(*run, quiet=quiet, place=place, key_file=key_file)


def run_training(
    config: RunConfig,
    workers: int | str,
    threads_per_worker: int | str | None,
    oversubscribe: bool,
    snapshot: str | None,
    out: Path | None,
    *,
    quiet: bool = False,
    output: TextIO | None = None,
    place: HostPlace | None = None,
    key_file: Path | None = None,
) -> RunResult:
    """Train as `config` says, on this number of workers ("gpu": one on each) and threads, or "auto"; see `train`.

    Progress goes to `output`; None is stdout. `place` is this host's in a run on several; workers are those here.
    `key_file` is the key of hosts that a launcher such as torchrun tells.
    """
    run = partial(_on_this_host, config, threads_per_worker, oversubscribe, snapshot, out, quiet, output)
    result = as_started(workers, place, key_file, config.timeout_s, run, config.transport)
    assert result is not None, "a training run has a result"
    return result


def _on_this_host(
    config: RunConfig,
    threads_per_worker: int | str | None,
    oversubscribe: bool,
    snapshot: str | None,
    out: Path | None,
    quiet: bool,
    output: TextIO | None,
    workers: int | str,
    place: HostPlace | None,
) -> RunResult:
    with ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        # A service may have neither.
        output, errors = (nothing, nothing) if quiet else (output or sys.stdout or nothing, sys.stderr or nothing)
        if workers == GPU:
            config, workers = worker_on_each_gpu(config)
        config = on_device(config, config.device)
        num_workers, num_threads = count_of("--workers", workers), count_of("--threads-per-worker", threads_per_worker)
        if config.exact is not None and threads_per_worker is None:
            num_threads = 1  # a number that follows from that of workers would change the bits with it
        if num_workers is not None:
            config = placed(config, num_workers, num_threads, oversubscribe)
        else:  # on several hosts each chooses its own, and a snapshot is host 0's
            name, is_alone = load_solver(config.model).net.name(), place is None
            found = find_snapshot(name, snapshot, out)[0] if is_alone else None
            num_hosts = place.num_hosts or 1 if place is not None else 1
            config = with_fastest_workers(config, num_threads, found, Console(output, errors), num_hosts)
        if place is not None:
            return _on_hosts(config, place, snapshot, out, output, errors)
        return _run(plan_training(config, snapshot, out), output=output, errors=errors)


def _on_hosts(
    config: RunConfig, place: HostPlace, snapshot: str | None, out: Path | None, output: TextIO, errors: TextIO
) -> RunResult:
    def lead(config: RunConfig) -> tuple[RunConfig, Callable[[Host0], RunResult]]:
        plan = plan_training(config, snapshot, out)
        return plan.config, partial(_run, plan, output=output, errors=errors)

    result = run_on_hosts(config, place, Console(output, errors), lead, has_snapshot=snapshot is not None)
    assert result is not None, "host 0 gives a result or an error"
    return result


def _run(plan: TrainingPlan, others: Host0 | None = None, *, output: TextIO, errors: TextIO) -> RunResult:
    """If no training began because of wrong input, delete the new folder: it would only hold a configuration."""
    path = plan.folder.path
    lock = locked(path, f"--out {path}: another run trains there now; give another folder, or wait for its end")
    try:
        return _shown(plan, others, output, errors)
    except BaseException as error:
        is_input = getattr(error, "exit_code", InputError.exit_code) == InputError.exit_code
        if is_input and plan.is_new and not plan.folder.metrics.exists():
            shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _shown(plan: TrainingPlan, others: Host0 | None, output: TextIO, errors: TextIO) -> RunResult:
    log = LogFile(plan.folder.log)
    console = Console(output, errors, log=log, display_steps=max(1, plan.display_steps))
    try:
        for text in sweep_lines(plan.config.sweep):
            log.write(text)
        for text in plan.notices:
            console.show(Notice(level="warning", text=text))
        result = run_job(plan.config, plan.folder, console, others=others)
        assert result is not None
        return result
    except SamovarError as error:
        console.failed(str(error))
        raise
    finally:
        console.close()
        log.close()


def count_of(name: str, given: int | str | None) -> int | None:
    """A number, or None for `auto` and None; InputError for anything else."""
    if given in (None, AUTO):
        return None
    if type(given) is int:
        return given
    if not isinstance(given, str) or not is_count(given):
        raise InputError(f"{name}: got {given!r}; give a number or 'auto'")
    return int(given)


def _place(given: dict[str, Any], key_file: Path | None) -> HostPlace | None:
    """This host's place in a run on several, whose arguments are taken out of `given`."""
    _require_kinds({name: given[name] for name in _PLACE if name in given})
    nodes = given.pop("nodes", 1)
    return place_of(Hosts.of(nodes, *(given.pop(name, None) for name in _PLACE[1:])), key_file)


def _config(solver: Path, strategy: str, given: dict[str, Any]) -> RunConfig:
    _require_kinds(given)
    run: dict[str, Any] = {name: given.pop(name) for name in list(given) if name in _OWN}
    collective = run.pop("collective", AUTO)
    settings = by_name(given, "train", _OWN)
    large = [run.pop(name, None) for name in ("large_batch", "rate_scaling", "warm_up_steps")]
    calibration, trace, weights = (run.pop(name, None) for name in ("calibration", "trace", "weights"))
    if calibration is not None and not isinstance(calibration, CalibrationRecord):
        calibration = CalibrationRecord.load(Path(calibration))
    paths: dict[str, Any] = {name: Path(run.pop(name)) for name in ("replay", "key_file") if name in run}
    return RunConfig(
        "train",
        solver,
        weights=_paths(weights),
        strategy=asked_for(strategy, collective, settings),
        calibration=calibration or NOMINAL,
        large_batch=large_batch_of(*large),
        trace=TraceWindow.parse(trace) if isinstance(trace, str) else trace,
        metrics=named_sinks(run.pop("metrics", None), "--metrics"),
        **paths,
        **run,
    )


# Of `train` itself; what is not among them is a setting of the strategy.
_PLACE = ("nodes", "node_rank", "master_addr", "master_port")
_WHOLE = ("iterations", "seed", "exact", "large_batch", "warm_up_steps", "nodes", "node_rank", "master_port")
_YES_OR_NO = ("shuffle", "hold_data", "record", "join")
_OWN = {
    *("workers", "threads_per_worker", "iterations", "snapshot", "weights", "out", "seed"),
    *TrainSettings.__annotations__,
} - Settings.__annotations__.keys()
_NAMES = {f"--{name.replace('_', '-')}": name for name in _OWN} | {"--timeout": "timeout_s"}


def _require_kinds(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name in _WHOLE and value is not None and type(value) is not int:
            raise InputError(f"--{name.replace('_', '-')}: got {value!r}; give a whole number")
        if name in _YES_OR_NO and type(value) is not bool:
            raise InputError(f"--{name.replace('_', '-')}: got {value!r}; give True or False")
    timeout_s = given.get("timeout_s", 1.0)
    if type(timeout_s) not in (int, float):
        raise InputError(f"--timeout: got {timeout_s!r}; give seconds")


def large_batch_of(batch_size: int | None, rate_scaling: str | None, warm_up_steps: int | None) -> LargeBatch | None:
    """The recipe of three flags; InputError if the last two are given without the first."""
    if batch_size is None:
        for flag, value in (("--rate-scaling", rate_scaling), ("--warm-up-steps", warm_up_steps)):
            if value is not None:
                raise InputError(f"{flag} {value}: belongs to --large-batch; give that too, or leave it out")
        return None
    return LargeBatch(batch_size, rate_scaling or "firecaffe", warm_up_steps)


def _paths(weights: str | Path | Sequence[str | Path] | None) -> tuple[Path, ...]:
    if weights is None or isinstance(weights, str):
        return parse_weights(weights)
    return (weights,) if isinstance(weights, Path) else tuple(map(Path, weights))


@contextmanager
def _errors_in_python() -> Iterator[None]:
    """In errors about flags, which the command shares, name the arguments; commands and paths stay as they are."""
    try:
        yield
    except SamovarError as error:
        error.args = (re.sub(r"`[^`]*`|(?<![\w./-])--[a-z-]*[a-z]", _argument, str(error)), *error.args[1:])
        raise


def _argument(found: re.Match[str]) -> str:
    written = found[0]
    return written if written.startswith("`") else _NAMES.get(written, in_python(written))
