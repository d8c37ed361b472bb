"""`samovar train` and `samovar test`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli import flags
from samovar.cli.flags import Async, Boxed, LargeBatchFlags, OnMachine, gathered
from samovar.config import DEFAULT_TIMEOUT_S, RunConfig, parse_weights
from samovar.core.device import CPU, FP32
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.launcher.job import exit_code_of, run_without_folder
from samovar.launcher.placing import on_device, placed
from samovar.launcher.train import large_batch_of, run_training
from samovar.report.console import Console
from samovar.strategies.catalog import asked_for
from samovar.strategies.traits import AUTO

Workers = Annotated[int, typer.Option(help="Worker processes on this machine.")]
Threads = Annotated[int | None, typer.Option(help="Compute threads of each worker; default: cores / workers.")]
Calibration = Annotated[
    Path | None,
    typer.Option(help="What auto stands on: a file by `samovar doctor --save`; default: a nominal machine."),
]
Snapshot = Annotated[
    str | None,
    typer.Option(help="Go on from a snapshot folder or a .solverstate, or from the 'latest' one of the run."),
]
Timeout = Annotated[float, typer.Option(help="Seconds that any rank waits for another before it gives up.")]


def _train(
    *,
    solver: Annotated[Path, typer.Option(help="Caffe solver (prototxt).")],
    weights: Annotated[
        str | None, typer.Option(help="Start from .caffemodel files, by layer name; several with commas.")
    ] = None,
    snapshot: Snapshot = None,
    on: OnMachine,
    strategy: flags.Strategy = "sync",
    settings: Mapping[str, object],
    collective: flags.Collective = AUTO,
    calibration: Calibration = None,
    asynchronous: Async,
    boxed: Boxed,
    batch_mode: flags.BatchMode = "per-worker",
    exact: flags.Exact = None,
    large: LargeBatchFlags,
    seed: Annotated[int | None, typer.Option(help="Seed of fillers and data order; default: the solver's.")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="A new sample order every epoch.")] = False,
    hold_data: flags.HoldData = False,
    iterations: Annotated[int | None, typer.Option(help="Steps in all; default: the solver's max_iter.")] = None,
    precision: flags.Precision = FP32,
    device: flags.Device = CPU,
    trace: flags.Trace = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/<time>-<net>-<strategy>.")] = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Train a Caffe solver's net."""
    sharing = asked_for(strategy, collective, settings)
    config = RunConfig("train", solver, parse_weights(weights), strategy=sharing, calibration=_record(calibration))
    config = replace(config, batch_mode=batch_mode, exact=exact, seed=seed, shuffle=shuffle, iterations=iterations)
    config = replace(config, large_batch=large_batch_of(*large), precision=precision, timeout_s=timeout)
    config = replace(
        config, hold_data=hold_data, trace=flags.trace_of(trace), **asynchronous._asdict(), **boxed._asdict()
    )
    config = replace(config, device=device)
    raise typer.Exit(exit_code_of(run_training(config, *on, snapshot, out)))


def train(words: Sequence[str]) -> Callable[..., None]:
    """The command, with a flag for each setting of the strategies that there are; `words` may bring one more."""
    flags.own_strategy(words)
    settings = flags.settings_of_strategies()
    return gathered(_train, on=OnMachine, settings=settings, asynchronous=Async, boxed=Boxed, large=LargeBatchFlags)


def _record(calibration: Path | None) -> CalibrationRecord:
    """What `auto` stands on."""
    return NOMINAL if calibration is None else CalibrationRecord.load(calibration)


def test(
    model: Annotated[Path, typer.Option(help="Caffe net (prototxt) with a TEST phase.")],
    weights: Annotated[str, typer.Option(help="A .caffemodel, or several with commas.")],
    iterations: Annotated[int | None, typer.Option(help="Test batches; default: 50, as Caffe.")] = None,
    workers: Workers = 1,
    threads_per_worker: Threads = None,
    precision: flags.Precision = FP32,
    device: flags.Device = CPU,
    out: Annotated[Path | None, typer.Option(help="Folder for what HDF5Output layers write.")] = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Mean outputs of a net over a number of test batches."""
    config = RunConfig("test", model, parse_weights(weights), workers=workers, iterations=iterations)
    config = on_device(replace(config, timeout_s=timeout, hdf5_out=out, precision=precision), device)
    run_without_folder(placed(config, workers, threads_per_worker), Console(sys.stdout, sys.stderr))
