"""What a run came to: result.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samovar.core.errors import InputError
from samovar.report.plain import from_plain, to_plain
from samovar.report.run_folder import write_json_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSetting:
    """How fast a setting of `--workers auto` was: samples of all workers; None where the run cannot be shared so."""

    workers: int
    threads_per_worker: int
    samples_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """How a worker that waits for nobody got on; its last life's speed, and counts over all lives of its rank.

    `staleness[k]` of its updates of the center found k updates of others that it had not seen; the last counts all that
    are more. `lock_wait_s` is what it lost to others at the center; `refused` of its
    updates were not finite and did not come there. `distance` is ||x - c|| / ||c|| as it was measured
    last.
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
class RunResult:
    """The figures of a finished run; None where the run has no such figure.

    `samples` counts all workers' samples, `seconds` the training loop without start-up, `bytes_sent_per_step` what one
    rank sends on average, to the center alone where workers wait for nobody. `replicas_equal` is None where ranks need
    not agree. `stopped_by` names the signal that ended the run early. `precision` is that of convolutions and inner
    products. `buckets` says how sync cut the model ("3 buckets (auto)"), `bucket_sizes_bytes` into what; `sweep` is
    what `--workers auto` stood on. `data_bytes_fetched_per_step` is what one rank reads of `--hold-data` from others on
    average, read-ahead included. `stop_rule` and `by_worker` are there for workers that wait for nobody. `compress` is
    how gradients or differences were to be compressed, `is_compressed` whether they still were at the end.

    `transport` is what weights and gradients went by: "shm" (mapped memory), "tcp", or "shm, tcp" where some did by
    each. `box` is where the center was, as --box names it, and `buffer` its name there; None: with the run itself.
    `peak_memory_bytes` is the most memory that each rank had, what it shares with others included; empty where workers
    wait for nobody, or the system does not tell. `refused_by_rank` counts each rank's updates that were not finite and
    did not come to the center that ranks in step share. `run_folder` is what `samovar.train` adds; no file has it.
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
    stop_rule: str | None = None
    by_worker: tuple[WorkerFigures, ...] = ()
    compress: str | None = None
    is_compressed: bool | None = None
    box: str | None = None
    buffer: str | None = None
    peak_memory_bytes: tuple[int, ...] = ()
    refused_by_rank: tuple[int, ...] = ()
    run_folder: Path | None = None


def write_result(path: Path, result: RunResult) -> None:
    """Put `result` at `path`, whole or not at all; raises InputError where the disk refuses."""
    values = to_plain(result)
    del values["run_folder"]  # which may be moved
    write_json_atomic(path, values)


def read_result(path: Path) -> RunResult:
    """The result at `path`; raises InputError naming the file and the field that does not fit."""
    try:
        return from_plain(RunResult, json.loads(path.read_bytes()))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a run's result.json") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no result of a run: {error}; give a run's result.json") from error
