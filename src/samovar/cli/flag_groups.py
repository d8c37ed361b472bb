"""Flags that belong together come to a command as one value."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from samovar.core.large_batch import RATE_SCALINGS
from samovar.launch.limits import MOST_THREADS_PER_CORE
from samovar.strategies.box_terms import MEAN, STOP_RULES
from samovar.strategies.catalog import TRAITS
from samovar.strategies.config import COMPRESSIONS, VARIANTS
from samovar.strategies.traits import MAX_REFUSED_PUSHES, NONE

Oversubscribe = Annotated[
    bool,
    typer.Option("--oversubscribe", help=f"Allow more than {MOST_THREADS_PER_CORE} compute threads for each core."),
]


class OnMachine(NamedTuple):
    """How much of this machine a run takes."""

    workers: Annotated[
        str, typer.Option(metavar="N|auto", help="Worker processes on this machine; auto: as many as are fastest.")
    ] = "1"
    threads_per_worker: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Compute threads of each worker; auto (default): cores / workers."),
    ] = None
    oversubscribe: Oversubscribe = False


class Rates(NamedTuple):
    """How workers meet; None is the strategy's default."""

    moving_rate: Annotated[
        float | None,
        typer.Option(help="How far an elastic strategy pulls a worker to the center; default: by strategy."),
    ] = None
    overlap: Annotated[
        str | None,
        typer.Option(
            help="Behind what an exchange runs; default: by strategy. "
            + "; ".join(f"{name}: {', '.join(traits.overlaps)}" for name, traits in TRAITS.items() if traits.overlaps)
            + "."
        ),
    ] = None
    variant: Annotated[
        str | None,
        typer.Option(help=f"How sync-easgd meets its center: {', '.join(VARIANTS)}; default: {VARIANTS[0]}."),
    ] = None
    outer_rate: Annotated[float | None, typer.Option(help="Rate of diloco's outer step; default: 0.7.")] = None
    outer_momentum: Annotated[
        float | None, typer.Option(help="Nesterov momentum of diloco's outer step; default: 0.9.")
    ] = None
    owner: Annotated[
        str | None,
        typer.Option(
            help="Who updates a bucket. --overlap full: one rank each (spread, the default), or rank 0 all (root); "
            "none: each rank its part (parts, the default where ranks map each other's memory), or every rank (all)."
        ),
    ] = None


class Compression(NamedTuple):
    """Of what travels."""

    compress: Annotated[
        str,
        typer.Option(
            help=f"How sync's gradients travel, where the first steps show that it helps: {', '.join(COMPRESSIONS)}. "
            "sync-easgd's differences: none, bf16, int8."
        ),
    ] = NONE
    compress_always: Annotated[
        bool,
        typer.Option("--compress-always", help="Compress from the first step on, without trying whether it helps."),
    ] = False


class AtCenter(NamedTuple):
    """Of strategies with a center; None is the strategy's default."""

    max_staleness: Annotated[
        int | None,
        typer.Option(
            help="Updates of others that a worker may have missed when its own reaches the center; default: any."
        ),
    ] = None
    max_refused_pushes: Annotated[
        int | None,
        typer.Option(
            help="A worker ends as lost when so many of its updates in a row were not finite; the center takes none of "
            f"them. Default: {MAX_REFUSED_PUSHES}."
        ),
    ] = None
    group_size: Annotated[
        int | None, typer.Option(help="Workers of a group of hybrid-easgd; default: up to 4 that divide the workers.")
    ] = None
    read_first: Annotated[
        bool | None,
        typer.Option("--read-first", help="shm-easgd, hybrid-easgd: read the center before the own push is awaited."),
    ] = None
    center_momentum: Annotated[
        float | None,
        typer.Option(help="Momentum of async-msgd's center; default: max(0, 1 - workers x (1 - the solver's))."),
    ] = None


class Free(NamedTuple):
    """Of workers that wait for nobody."""

    stop_rule: Annotated[
        str | None,
        typer.Option(
            help=f"Whose steps end a run of workers that wait for nobody: {', '.join(STOP_RULES)}; default: {MEAN}."
        ),
    ] = None
    record: Annotated[
        bool, typer.Option("--record", help="Write down in which order the center took its updates, for --replay.")
    ] = False
    replay: Annotated[
        Path | None, typer.Option(help="Repeat the run in this folder, made with --record, with the same bits.")
    ] = None


class Boxed(NamedTuple):
    """Of a center that outlives the run."""

    box: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|HOST:PORT[,...]",
            help="Train at this box (`samovar box serve`), where other runs can join, or at several, which hold a part "
            "of the center each; default: one of its own.",
        ),
    ] = None
    join: Annotated[
        bool, typer.Option("--join", help="Train with those who are at the box already, from what they have learned.")
    ] = False
    key_file: Annotated[Path | None, typer.Option(help="The key of a box at HOST:PORT.")] = None
    buffer: Annotated[
        str | None, typer.Option(metavar="NAME", help="The buffer in the box; default: the net's name.")
    ] = None


class LargeBatchFlags(NamedTuple):
    """The recipe for large batches."""

    large_batch: Annotated[
        int | None,
        typer.Option(help="Samples of a step, all workers together, by the large-batch recipe; same epochs."),
    ] = None
    rate_scaling: Annotated[
        str | None,
        typer.Option(help=f"How the rate grows with --large-batch: {', '.join(RATE_SCALINGS)}; default: firecaffe."),
    ] = None
    warm_up_steps: Annotated[
        int | None,
        typer.Option(help="Steps over which it rises to that, with --large-batch; default: a tenth of all."),
    ] = None


def gathered(**groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameters `groups` are named tuples: a flag for each field, in the parameter's place.

    The fields' types and defaults are the flags'.
    """

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            for parameter, group in groups.items():
                values[parameter] = group(**{flag.name: values.pop(flag.name) for flag in _flags(group)})
            function(**values)

        given = inspect.signature(function, eval_str=True).parameters.values()
        flags = [flag for own in given for flag in (_flags(groups[own.name]) if own.name in groups else [own])]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {flag.name: flag.annotation for flag in flags}
        command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
        return command

    return decorated


def _flags(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    fields = inspect.signature(group).parameters
    return [fields[name].replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY) for name in fields]
