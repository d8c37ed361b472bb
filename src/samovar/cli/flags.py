"""The flags that several commands share, and those of `samovar train` that come to it as one value.

A flag that few would set is declared with `hidden=True`: --help leaves it out, --help-all shows it.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from samovar.cli.output_flags import output_flag
from samovar.config import BATCH_MODES
from samovar.core.device import AUTO, CPU, CUDA, PRECISIONS
from samovar.core.large_batch import RATE_SCALINGS
from samovar.core.trace import TraceWindow
from samovar.launch.limits import MOST_THREADS_PER_CORE
from samovar.strategies.box_terms import MEAN, STOP_RULES
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import COLLECTIVES

# An option in the panel of this title.
data_flag = partial(typer.Option, rich_help_panel="Data and files")
worker_flag = partial(typer.Option, rich_help_panel="Workers")
sharing_flag = partial(typer.Option, rich_help_panel="How workers share")

Precision = Annotated[str, worker_flag(metavar="NAME", help="fp32 or bf16.", autocompletion=lambda: list(PRECISIONS))]
Device = Annotated[
    str,
    worker_flag(
        metavar="NAME",
        help="auto, cpu, cuda or cuda:N. Default: cpu.",
        show_default=False,
        autocompletion=lambda: [AUTO, CPU, CUDA],
    ),
]
Oversubscribe = Annotated[
    bool,
    worker_flag(
        "--oversubscribe",
        metavar="",
        help=f"Allow more than {MOST_THREADS_PER_CORE} compute threads for each core.",
        hidden=True,
    ),
]
Timeout = Annotated[
    float, worker_flag(metavar="SECONDS", help="How long a worker waits for another before it gives up.", hidden=True)
]
Threads = Annotated[int | None, worker_flag(metavar="N", help="Compute threads of each. Default: cores / workers.")]
Trace = Annotated[str | None, output_flag(metavar="steps=A-B", help="Record these steps as a timeline.")]


class DataFlags(NamedTuple):
    """From what a run starts, and in which order it reads."""

    iterations: Annotated[int | None, data_flag(metavar="N", help="Steps in all. Default: the solver's.")] = None
    seed: Annotated[int | None, data_flag(metavar="N", help="Of weights and data order.")] = None
    shuffle: Annotated[bool, data_flag("--shuffle", metavar="", help="Use a new sample order every epoch.")] = False
    hold_data: Annotated[
        bool,
        data_flag(
            "--hold-data",
            metavar="",
            help="Decode the training set once, into the memory of all workers.",
            hidden=True,
        ),
    ] = False


class OnMachine(NamedTuple):
    """How much of this machine a run takes."""

    workers: Annotated[
        str,
        worker_flag(
            metavar="N|auto", help="Worker processes; auto: as many as are fastest. Default: 1.", show_default=False
        ),
    ] = "1"
    threads_per_worker: Annotated[
        str | None, worker_flag(metavar="N|auto", help="Compute threads of each. Default: auto.")
    ] = None
    oversubscribe: Oversubscribe = False


class BatchFlags(NamedTuple):
    """How samples of a step are divided."""

    batch_mode: Annotated[
        str,
        worker_flag(
            metavar="MODE",
            help="global: all workers share the net's batch_size. Default: per-worker.",
            show_default=False,
            autocompletion=lambda: list(BATCH_MODES),
        ),
    ] = BATCH_MODES[0]
    exact: Annotated[
        int | None,
        worker_flag(
            metavar="K",
            help="Sum the batch in K slices, in one order: the same bits with any number of workers up to K.",
            hidden=True,
        ),
    ] = None


class LargeBatchFlags(NamedTuple):
    """The recipe for large batches."""

    large_batch: Annotated[
        int | None,
        worker_flag(metavar="N", help="Larger steps: N samples, of all workers together.", hidden=True),
    ] = None
    rate_scaling: Annotated[
        str | None,
        worker_flag(
            metavar="NAME",
            help=f"How the learning rate grows with --large-batch: {', '.join(RATE_SCALINGS)}. Default: firecaffe.",
            hidden=True,
            autocompletion=lambda: list(RATE_SCALINGS),
        ),
    ] = None
    warm_up_steps: Annotated[
        int | None,
        worker_flag(
            metavar="N",
            help="Steps in which the learning rate rises with --large-batch. Default: a tenth of all.",
            hidden=True,
        ),
    ] = None


Strategy = Annotated[
    str,
    sharing_flag(
        metavar="NAME",
        help=f"{', '.join(STRATEGIES)}; or your own, as FILE.py:NAME or MODULE:NAME. Default: sync.",
        show_default=False,
        autocompletion=lambda: list(STRATEGIES),
    ),
]


class PlanFlags(NamedTuple):
    """By which plan gradients are summed."""

    collective: Annotated[
        str,
        sharing_flag(
            metavar="NAME",
            help=f"How gradients are summed: {', '.join(COLLECTIVES)}.",
            hidden=True,
            autocompletion=lambda: list(COLLECTIVES),
        ),
    ] = AUTO
    calibration: Annotated[
        Path | None,
        sharing_flag(
            metavar="FILE",
            help="The machine by which auto decides, from `samovar doctor --save`. Default: a nominal machine.",
            hidden=True,
        ),
    ] = None


class Async(NamedTuple):
    """Of workers that each go at their own speed."""

    stop_rule: Annotated[
        str | None,
        sharing_flag(
            metavar="NAME",
            help="By whose steps a run ends, if workers do not wait for each other: "
            f"{', '.join(STOP_RULES)}. Default: {MEAN}.",
            hidden=True,
            autocompletion=lambda: list(STOP_RULES),
        ),
    ] = None
    record: Annotated[
        bool,
        sharing_flag("--record", metavar="", help="Record the order of updates, for --replay.", hidden=True),
    ] = False
    replay: Annotated[
        Path | None,
        sharing_flag(metavar="FOLDER", help="Repeat this run, made with --record, bit for bit.", hidden=True),
    ] = None


class Boxed(NamedTuple):
    """Of a center that outlives the run."""

    box: Annotated[str | None, sharing_flag(metavar="BOX", help="The box to train at: a name or HOST:PORT.")] = None
    join: Annotated[bool, sharing_flag("--join", metavar="", help="Join those who train at the box already.")] = False
    key_file: Annotated[Path | None, sharing_flag(metavar="FILE", help="The key of a box at HOST:PORT.")] = None
    buffer: Annotated[
        str | None, sharing_flag(metavar="NAME", help="The buffer in the box. Default: the net's name.", hidden=True)
    ] = None


def trace_of(written: str | None) -> TraceWindow | None:
    """The steps that --trace names; InputError where it names none."""
    return None if written is None else TraceWindow.parse(written)
