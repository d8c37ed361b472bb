"""The result of a run: result.json, and how one process tells others that wait for it how the run ended."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed, ReplicasDiffer, SamovarError
from samovar.core.plain import from_plain, to_plain
from samovar.report.run_folder import read_json, write_json_atomic

_ERRORS: Mapping[str, type[SamovarError]] = {
    error.__name__: error for error in (InputError, DeadlineExceeded, NotFinite, RankFailed, ReplicasDiffer)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSetting:
    """The speed of a setting of `--workers auto`: samples of all workers; None if the batch cannot be shared so."""

    workers: int
    threads_per_worker: int
    samples_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """The figures of a worker that does not wait for others: its last life's speed, and counts over all its lives.

    Of its updates of the center, `staleness[k]` found k updates of others that it had not seen; the last counts all
    that are more. `lock_wait_s` are seconds lost to others at the center. `refused` updates were not finite, and did
    not reach the center. `distance` is the last measurement of ||x - c|| / ||c||.
    """

    steps: int
    samples: int
    samples_per_second: float
    loss: float | None
    updates: int
    staleness: tuple[int, ...]
    lock_wait_s: float
    distance: float | None
    is_gone: bool
    restarts: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """Seconds of a mean step, as `samovar predict` has them and as they were. `cluster` is the kind that was predicted.

    `profile` says where the layers' times come from.
    """

    cluster: str
    net: str
    strategy: str
    workers: int
    predicted_s: float
    measured_s: float
    profile: str

    @property
    def error(self) -> float:
        """Above 0 if the run was faster than predicted."""
        return self.predicted_s / self.measured_s - 1

    def __str__(self) -> str:
        off = f"{abs(self.error):.0%} too {'slow' if self.error > 0 else 'fast'}"
        predicted, measured = (f"{1e3 * seconds:.3g} ms" for seconds in (self.predicted_s, self.measured_s))
        return f"predicted {predicted} a step, measured {measured}: {off} (layers {self.profile})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The figures of a finished run; None if the run has no such figure.

    Training leaves `net_unlearned` of the parameters as they are, or as statistics of forward passes.
    `samples` counts all workers' samples, `seconds` the training loop without start-up. `bytes_sent_per_step` is the
    mean of one rank; if workers do not wait for each other, to the center alone. `replicas_equal` is None if ranks may
    differ. `stopped_by` names the signal that ended the run early. `precision` is that of convolutions and inner
    products.

    `buckets` says how sync divided the model ("3 buckets (auto)"), and `bucket_sizes_bytes` into which parts. `sweep`
    has the measurements of `--workers auto`. `data_bytes_fetched_per_step` is the mean that one rank reads from others
    with `--hold-data`, including read-ahead, and `data_bytes_between_hosts_per_step` the part that came from other
    hosts. `data_bytes_held` are in the memory of all ranks together. `stop_rule` and `by_worker` are for workers that
    do not wait for each other. `compress` is the requested compression, and `is_compressed` says whether it was still
    on at the end. `factors` are the parameters whose gradients travelled as factors then. `owner` names
    the ranks that updated a bucket, as --owner does.

    `transport` carried weights and gradients: "shm" (mapped memory), "tcp", or "shm, tcp". `box` is the place of the
    center, as --box names it, and `buffer` its name there; None: in the run itself. `peak_memory_bytes` is the most
    memory of each rank, including shared memory. It is empty if workers do not wait for each other, or the system does
    not say. `refused_by_rank` counts each rank's updates that were not finite, and did not reach a center that ranks
    share in step. `recipe` is "auto" if one was used, and `recipe_changes` says what it changed. `foreseen` compares
    the step time with its prediction, if there can be one. `samovar.train` and `--json` add `run_folder`; result.json
    does not have it.
    """

    net: str
    net_parameters: int
    strategy: str
    collective: str
    transport: str
    workers: int
    threads_per_worker: int
    effective_batch: int
    steps: int
    samples: int
    seconds: float
    samples_per_second: float
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    weights_sha256: str
    replicas_equal: bool | None
    bytes_sent_per_step: float
    stopped_by: str | None
    versions: Mapping[str, str]
    precision: str = "fp32"
    buckets: str = ""
    bucket_sizes_bytes: tuple[int, ...] = ()
    sweep: tuple[SweptSetting, ...] = ()
    data_bytes_fetched_per_step: float = 0.0
    data_bytes_between_hosts_per_step: float = 0.0
    data_bytes_held: int = 0
    stop_rule: str | None = None
    by_worker: tuple[WorkerFigures, ...] = ()
    compress: str | None = None
    is_compressed: bool | None = None
    factors: tuple[str, ...] = ()
    owner: str | None = None
    box: str | None = None
    buffer: str | None = None
    peak_memory_bytes: tuple[int, ...] = ()
    refused_by_rank: tuple[int, ...] = ()
    recipe: str = "none"
    recipe_changes: tuple[str, ...] = ()
    net_unlearned: int = 0
    foreseen: Foreseen | None = None
    run_folder: Path | None = None


def output_named(outputs: Mapping[str, float], kind: str) -> float | None:
    """The output of a test of this name, else the first whose name contains it."""
    names = [kind] if kind in outputs else [name for name in outputs if kind in name.lower()]
    return outputs[names[0]] if names else None


def write_result(path: Path, result: RunResult) -> None:
    """Write `result` to `path`, whole or not at all; raises InputError if the disk refuses."""
    values = to_plain(result)
    del values["run_folder"]  # which may be moved
    write_json_atomic(path, values)


def with_figures_of(before: Path, result: RunResult) -> RunResult:
    """`result`; if it was resumed at its end and made no step, with the figures of the training, which `before` has."""
    if result.samples or not before.exists():
        return result
    trained = read_result(before)
    if (trained.steps, trained.weights_sha256) != (result.steps, result.weights_sha256):
        return result
    tested = {name: getattr(result, name) for name in ("test_loss", "test_accuracy")}
    return replace(trained, stopped_by=result.stopped_by, **tested)


def unlike(recorded: Path, result: RunResult) -> str:
    """A sentence if `result`, which repeats a whole run, has other weights than the result at `recorded`."""
    if result.stopped_by is not None or not recorded.exists():
        return ""
    try:
        theirs, own = read_result(recorded).weights_sha256, result.weights_sha256
    except InputError as error:
        return f"--replay: weights were not compared: {error}"
    why = "the solver, its net, the data or the machine is another one; repeat the run with its own"
    return "" if theirs == own else f"--replay: weights {own[:8]}… are not those in {recorded} ({theirs[:8]}…): {why}"


def read_result(path: Path) -> RunResult:
    """The result at `path`; raises InputError naming the file and the field that does not fit."""
    try:
        return _checked(from_plain(RunResult, read_json(path)))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a run's result.json") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not the result of a run: {error}; give a run's result.json") from error


def _checked(result: RunResult) -> RunResult:
    """Raises ValueError for figures that no run has, and nobody can compute with."""
    if len({len(one.staleness) for one in result.by_worker}) > 1:
        raise ValueError("RunResult.by_worker has rows of staleness of different lengths")
    if result.foreseen is not None and not result.foreseen.measured_s > 0:
        raise ValueError(f"RunResult.foreseen.measured_s is {result.foreseen.measured_s}, not above 0")
    return result


def told(outcome: RunResult | BaseException | None) -> dict[str, Any]:
    """The outcome as JSON can hold it."""
    if isinstance(outcome, BaseException):
        code = getattr(outcome, "exit_code", SamovarError.exit_code)
        return {"error": str(outcome) or type(outcome).__name__, "kind": type(outcome).__name__, "exit_code": code}
    return {"result": None if outcome is None else to_plain(replace(outcome, run_folder=None))}


def heard(message: Mapping[str, Any]) -> RunResult | SamovarError | None:
    """The outcome that `told` gave."""
    if "error" in message:
        return error_of(message["kind"], message["error"], message["exit_code"])
    return None if message["result"] is None else from_plain(RunResult, message["result"])


def error_of(kind: str, sentence: str, exit_code: int, otherwise: type[SamovarError] = SamovarError) -> SamovarError:
    """An error that another process reported; `otherwise` is the class of one whose kind has no class here."""
    error = _ERRORS.get(kind, otherwise)(sentence)
    error.exit_code = exit_code
    return error
