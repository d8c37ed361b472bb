"""The flags that several commands share, and those of `samovar train` that come to it as one value.

A flag that few would set is declared with `hidden=True`: --help leaves it out, --help-all shows it.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from samovar.core.large_batch import RATE_SCALINGS
from samovar.core.trace import TraceWindow
from samovar.launch.limits import MOST_THREADS_PER_CORE
from samovar.strategies.box_terms import MEAN, STOP_RULES
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import COLLECTIVES

# The panels of a help.
DATA, WORKERS, SHARING, OUTPUT = "Data and files", "Workers", "How workers share", "Output and help"


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        metavar="",
        is_eager=True,
        callback=_show_all,
        help="Show every flag, also those that few set.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", metavar="", help="Show errors only.", rich_help_panel=OUTPUT)]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON document instead.", rich_help_panel=OUTPUT)
]
Strategy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"{', '.join(STRATEGIES)}; or your own, as FILE.py:NAME or MODULE:NAME. Default: sync.",
        show_default=False,
        rich_help_panel=SHARING,
        autocompletion=lambda: list(STRATEGIES),
    ),
]
Collective = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"How gradients are summed: {', '.join(COLLECTIVES)}.",
        rich_help_panel=SHARING,
        hidden=True,
        autocompletion=lambda: list(COLLECTIVES),
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The machine by which auto decides, from `samovar doctor --save`. Default: a nominal machine.",
        rich_help_panel=SHARING,
        hidden=True,
    ),
]
Exact = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Share the batch in K slices, summed in one order. The result has the same bits for any number of workers "
        "up to K.",
        rich_help_panel=WORKERS,
        hidden=True,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="fp32 or bf16.",
        rich_help_panel=WORKERS,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="auto, cpu, cuda or cuda:N. Default: cpu.", show_default=False, rich_help_panel=WORKERS
    ),
]
Trace = Annotated[
    str | None,
    typer.Option(metavar="steps=A-B", help="Record these steps as a timeline.", rich_help_panel=OUTPUT),
]
HoldData = Annotated[
    bool,
    typer.Option(
        "--hold-data",
        metavar="",
        help="Decode the training set once, into the memory of all workers.",
        rich_help_panel=DATA,
        hidden=True,
    ),
]
BatchMode = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        help="global: all workers share the net's batch_size. Default: per-worker.",
        show_default=False,
        rich_help_panel=WORKERS,
    ),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        metavar="",
        help=f"Allow more than {MOST_THREADS_PER_CORE} compute threads for each core.",
        rich_help_panel=WORKERS,
        hidden=True,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="How long a worker waits for another before it gives up.",
        rich_help_panel=WORKERS,
        hidden=True,
    ),
]


class OnMachine(NamedTuple):
    """How much of this machine a run takes."""

    workers: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Worker processes; auto: as many as are fastest. Default: 1.",
            show_default=False,
            rich_help_panel=WORKERS,
        ),
    ] = "1"
    threads_per_worker: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Compute threads of each. Default: auto.", rich_help_panel=WORKERS),
    ] = None
    oversubscribe: Oversubscribe = False


class Async(NamedTuple):
    """Of workers that each go at their own speed."""

    stop_rule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"By whose steps a run ends where workers do not wait for each other: {', '.join(STOP_RULES)}. "
            f"Default: {MEAN}.",
            rich_help_panel=SHARING,
            hidden=True,
        ),
    ] = None
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            metavar="",
            help="Record the order of updates at the center, for --replay.",
            rich_help_panel=SHARING,
            hidden=True,
        ),
    ] = False
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Repeat a run that had --record, with the same bits. FOLDER is its run folder.",
            rich_help_panel=SHARING,
            hidden=True,
        ),
    ] = None


class Boxed(NamedTuple):
    """Of a center that outlives the run."""

    box: Annotated[
        str | None,
        typer.Option(
            metavar="BOX",
            help="The box to train at: a name or HOST:PORT.",
            rich_help_panel=SHARING,
        ),
    ] = None
    join: Annotated[
        bool,
        typer.Option("--join", metavar="", help="Join those who train at the box already.", rich_help_panel=SHARING),
    ] = False
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of a box at HOST:PORT.", rich_help_panel=SHARING)
    ] = None
    buffer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The buffer in the box. Default: the net's name.", rich_help_panel=SHARING, hidden=True
        ),
    ] = None


class LargeBatchFlags(NamedTuple):
    """The recipe for large batches."""

    large_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Larger steps: N samples of all workers together, in the same epochs.",
            rich_help_panel=WORKERS,
            hidden=True,
        ),
    ] = None
    rate_scaling: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"How the learning rate grows with --large-batch: {', '.join(RATE_SCALINGS)}. Default: firecaffe.",
            rich_help_panel=WORKERS,
            hidden=True,
        ),
    ] = None
    warm_up_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Steps in which the learning rate rises with --large-batch. Default: a tenth of all.",
            rich_help_panel=WORKERS,
            hidden=True,
        ),
    ] = None


def trace_of(written: str | None) -> TraceWindow | None:
    """The steps that --trace names; InputError where it names none."""
    return None if written is None else TraceWindow.parse(written)
