"""`samovar train` and `samovar test`."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli import flags
from samovar.cli.command import OUTPUT, HelpAll, Quiet, gathered
from samovar.cli.flags import own_strategy, settings_of_strategies
from samovar.config import DEFAULT_TIMEOUT_S, RunConfig, parse_weights
from samovar.core.device import CPU, FP32
from samovar.core.errors import InputError
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.launch.meeting import HostPlace
from samovar.launch.script import Hosts
from samovar.launcher.hosts import place_of, run_anywhere
from samovar.launcher.job import exit_code_of
from samovar.launcher.over_ssh import started_over_ssh
from samovar.launcher.placing import on_device, placed
from samovar.launcher.started import as_started
from samovar.launcher.train import large_batch_of, run_training
from samovar.report.console import Console
from samovar.report.records import Tested
from samovar.report.run_folder import at_folder
from samovar.report.tables import AnswerDisplay, print_json
from samovar.strategies.catalog import asked_for


def _train(
    *,
    solver: Annotated[Path, flags.DATA("FILE", "Caffe solver (prototxt).")],
    weights: Annotated[str | None, flags.DATA("FILE", "Start from the weights in these files.")] = None,
    snapshot: Annotated[str | None, flags.DATA("FOLDER", "Resume from it, or 'latest', or 'auto'.")] = None,
    data: flags.DataFlags,
    on: flags.OnMachine,
    device: flags.Device = CPU,
    precision: flags.Precision = FP32,
    batch: flags.BatchFlags,
    large: flags.LargeBatchFlags,
    timeout: flags.Timeout = DEFAULT_TIMEOUT_S,
    strategy: flags.Strategy = "sync",
    settings: Mapping[str, object],
    plan: flags.PlanFlags,
    asynchronous: flags.Async,
    boxed: flags.Boxed,
    hosts: flags.HostFlags,
    out: Annotated[Path | None, OUTPUT("FOLDER", "Run folder. Default: a new one in runs/.", parser=at_folder)] = None,
    figures: flags.FigureFlags,
    quiet: Quiet = False,
    as_json: Annotated[bool, OUTPUT("", "Print result.json; progress goes to stderr.", "--json")] = False,
    _help_all: HelpAll = False,
) -> None:
    """Train a Caffe solver's net on one or several workers."""
    key_file, boxed = (None, boxed) if boxed.box is not None else (boxed.key_file, boxed._replace(key_file=None))
    calibration = NOMINAL if plan.calibration is None else CalibrationRecord.load(plan.calibration)
    sharing = asked_for(strategy, plan.collective, settings)
    config = RunConfig("train", solver, parse_weights(weights), strategy=sharing, calibration=calibration)
    config = replace(config, **data._asdict(), **batch._asdict(), **asynchronous._asdict(), **boxed._asdict())
    config = replace(config, large_batch=large_batch_of(*large), precision=precision, device=device)
    config = replace(config, **figures.checked(), timeout_s=timeout, transport=plan.transport)
    output = sys.stderr if as_json else sys.stdout
    with _place(hosts, on.workers, key_file) as (workers, place):
        on = on._replace(workers=workers)
        result = run_training(config, *on, snapshot, out, quiet=quiet, output=output, place=place, key_file=key_file)
    if as_json and result.run_folder is not None:  # else another process of the run has it, and prints
        print_json(result)
    raise typer.Exit(exit_code_of(result))


@contextmanager
def _place(given: flags.HostFlags, workers: str, key_file: Path | None) -> Iterator[tuple[str, HostPlace | None]]:
    """The number of workers here, and this host's place in a run on several."""
    if given.hosts is None:
        yield workers, place_of(Hosts.of(*given[:4]), key_file)
        return
    if given.nodes != 1 or given.node_rank is not None or given.master_port is not None:
        raise InputError("--hosts: gives every host its place; leave --nodes, --node-rank and --master-port out")
    with started_over_ssh(given.hosts, given.ssh, sys.argv[1:], workers, given.master_addr, key_file) as found:
        yield found


_GROUPS = {
    "data": flags.DataFlags,
    "on": flags.OnMachine,
    "batch": flags.BatchFlags,
    "large": flags.LargeBatchFlags,
    "plan": flags.PlanFlags,
    "asynchronous": flags.Async,
    "boxed": flags.Boxed,
    "figures": flags.FigureFlags,
    "hosts": flags.HostFlags,
}


def train(words: Sequence[str]) -> Callable[..., None]:
    """The command, with a flag for each setting of the known strategies; `words` may bring one more strategy."""
    own_strategy(words)
    return gathered(_train, settings=settings_of_strategies(), **_GROUPS)


def test(
    model: Annotated[Path, flags.DATA("FILE", "Caffe net (prototxt) with a TEST phase.")],
    weights: Annotated[str, flags.DATA("FILE", "A .caffemodel, .safetensors or state_dict; several with commas.")],
    iterations: Annotated[int | None, flags.DATA("N", "Test batches. Default: 50.")] = None,
    workers: Annotated[int, flags.WORKERS("N", "Worker processes on this machine.")] = 1,
    threads_per_worker: flags.Threads = None,
    precision: flags.Precision = FP32,
    device: flags.Device = CPU,
    timeout: flags.Timeout = DEFAULT_TIMEOUT_S,
    nodes: flags.Nodes = 1,
    node_rank: flags.NodeRank = None,
    master_addr: flags.MasterAddress = None,
    master_port: flags.MasterPort = None,
    key_file: flags.KeyFile = None,
    out: Annotated[Path | None, OUTPUT("FOLDER", "Folder for what HDF5Output layers write.", parser=at_folder)] = None,
    as_json: Annotated[bool, OUTPUT("", "Print the outputs and the loss as JSON.", "--json")] = False,
    _help_all: HelpAll = False,
) -> None:
    """Test a net: the mean of its outputs over several batches."""
    config = RunConfig("test", model, parse_weights(weights), workers=workers, iterations=iterations)
    config = on_device(replace(config, timeout_s=timeout, hdf5_out=out, precision=precision), device)
    display = AnswerDisplay(Tested, print_json) if as_json else Console(sys.stdout, sys.stderr)
    place = place_of(Hosts.of(nodes, node_rank, master_addr, master_port), key_file)

    def run(workers: int | str, place: HostPlace | None) -> None:
        own = placed(config, int(workers), threads_per_worker)
        run_anywhere(own, place, display, Console(sys.stderr, sys.stderr))

    as_started(workers, place, key_file, timeout, run)
