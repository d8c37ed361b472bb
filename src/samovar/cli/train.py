"""`samovar train` and `samovar test`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli import flags
from samovar.cli.command import gathered
from samovar.cli.flags import Async, Boxed, LargeBatchFlags, OnMachine
from samovar.cli.strategy_flags import own_strategy, settings_of_strategies
from samovar.config import DEFAULT_TIMEOUT_S, RunConfig, parse_weights
from samovar.core.device import CPU, FP32
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.launcher.job import exit_code_of, run_without_folder
from samovar.launcher.placing import on_device, placed
from samovar.launcher.train import large_batch_of, run_training
from samovar.report.console import Console
from samovar.strategies.catalog import asked_for
from samovar.strategies.traits import AUTO

Workers = Annotated[
    int, typer.Option(metavar="N", help="Worker processes on this machine.", rich_help_panel=flags.WORKERS)
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", help="Compute threads of each. Default: auto.", rich_help_panel=flags.WORKERS),
]


def _train(
    *,
    solver: Annotated[Path, typer.Option(metavar="FILE", help="Caffe solver (prototxt).", rich_help_panel=flags.DATA)],
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Start from these .caffemodel files.",
            rich_help_panel=flags.DATA,
        ),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Resume from a snapshot, or 'latest'.",
            rich_help_panel=flags.DATA,
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(metavar="N", help="Steps in all. Default: the solver's.", rich_help_panel=flags.DATA),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of weights and data order.", rich_help_panel=flags.DATA),
    ] = None,
    shuffle: Annotated[
        bool,
        typer.Option("--shuffle", metavar="", help="Use a new sample order every epoch.", rich_help_panel=flags.DATA),
    ] = False,
    hold_data: flags.HoldData = False,
    on: OnMachine,
    device: flags.Device = CPU,
    precision: flags.Precision = FP32,
    batch_mode: flags.BatchMode = "per-worker",
    large: LargeBatchFlags,
    exact: flags.Exact = None,
    timeout: flags.Timeout = DEFAULT_TIMEOUT_S,
    strategy: flags.Strategy = "sync",
    settings: Mapping[str, object],
    collective: flags.Collective = AUTO,
    calibration: flags.Calibration = None,
    asynchronous: Async,
    boxed: Boxed,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Run folder. Default: a new one in runs/.", rich_help_panel=flags.OUTPUT),
    ] = None,
    trace: flags.Trace = None,
    quiet: flags.Quiet = False,
    as_json: flags.Json = False,
    help_all: flags.HelpAll = False,
) -> None:
    """Train a Caffe solver's net on one or several workers."""
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
    own_strategy(words)
    settings = settings_of_strategies()
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
    timeout: flags.Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Mean outputs of a net over a number of test batches."""
    config = RunConfig("test", model, parse_weights(weights), workers=workers, iterations=iterations)
    config = on_device(replace(config, timeout_s=timeout, hdf5_out=out, precision=precision), device)
    run_without_folder(placed(config, workers, threads_per_worker), Console(sys.stdout, sys.stderr))
