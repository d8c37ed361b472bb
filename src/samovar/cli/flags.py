"""The flags of commands: those that several share, those that come to one as one value, and strategies' settings."""

import inspect
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from samovar.core.device import DEVICES
from samovar.core.errors import InputError
from samovar.core.large_batch import RATE_SCALINGS
from samovar.core.trace import TraceWindow
from samovar.launch.limits import MOST_THREADS_PER_CORE
from samovar.strategies.box_terms import MEAN, STOP_RULES
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import COLLECTIVES
from samovar.strategies.own import declared_as
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import KINDS, Setting, Value, declared_settings

Strategy = Annotated[
    str,
    typer.Option(
        metavar="NAME|MODULE:NAME|FILE.py:NAME",
        help=f"How workers share what they learn: {', '.join(STRATEGIES)}; or one of your own.",
    ),
]
Collective = Annotated[str, typer.Option(help=f"How gradients are summed: {', '.join(COLLECTIVES)}.")]
Exact = Annotated[
    int | None,
    typer.Option(
        help="Share the batch in so many slices, summed in one order: the same bits for any workers up to it."
    ),
]
Precision = Annotated[
    str,
    typer.Option(help="Of convolutions and inner products: fp32, or bf16 with fp32 weights, statistics and update."),
]
Device = Annotated[
    str, typer.Option(help=f"Where nets compute: {DEVICES}; auto: CUDA where it is there, else the CPU.")
]
Trace = Annotated[
    str | None, typer.Option(help="Record these steps of all ranks as a timeline, for example steps=20-30.")
]
HoldData = Annotated[
    bool,
    typer.Option("--hold-data", help="Read and decode the training set once, into the memory of all workers together."),
]
BatchMode = Annotated[
    str, typer.Option(help="Whose batch_size the net gives: per-worker (as Caffe's multi-GPU) or global.")
]
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


class Async(NamedTuple):
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


def own_strategy(words: Sequence[str], flags: tuple[str, ...] = ("--strategy",)) -> None:
    """Import the strategy of the user's own that these words ask for, if any: its settings are flags, too."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if flag in flags and ":" in (given := value if equals else following):
            declared_as(given)


def settings_of_strategies() -> list[inspect.Parameter]:
    """A flag for each setting of all strategies; None is the strategy's default."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[written_type(own[0]) | None, typer.Option(own[0].flag, help=_help(name, own))],
        )
        for name, own in declared_settings().items()
        if own[0].has_flag
    ]


def written_type(setting: Setting) -> type[Value]:
    """Of what is written after the flag: --bucket takes words, too."""
    return str if setting.name == BUCKET.name else setting.kind


def _help(name: str, declared: Sequence[Setting]) -> str:
    """What it means, what it may be, and whose it is."""
    by_choices: dict[tuple[str, ...], list[str]] = {}
    for strategy, kind in KINDS.items():
        if (setting := kind.traits.setting(name)) is not None:
            by_choices.setdefault(setting.choices, []).append(strategy)
    if len(by_choices) > 1:
        parts = [f"{', '.join(names)}: {', '.join(choices)}" for choices, names in by_choices.items()]
        return f"{declared[0].help} {'; '.join(parts)}. Default: {_default(declared)}."
    ((choices, owners),) = by_choices.items()
    others = [strategy for strategy in KINDS if strategy not in owners]
    whose = ", ".join(owners) if len(owners) <= len(others) else f"all but {', '.join(others)}"
    allowed = f" One of: {', '.join(choices)}." if choices else ""
    return f"{declared[0].help}{allowed} For {whose}; default: {_default(declared)}."


def _default(declared: Sequence[Setting]) -> str:
    words = {setting.default_words.replace("`", "") for setting in declared}
    return words.pop() if len(words) == 1 else "by strategy"


def gathered(function: Callable[..., None], **groups: type[Any] | Sequence[inspect.Parameter]) -> Callable[..., None]:
    """A command: in place of each parameter that is in `groups`, a flag for each field of its named tuple, or for each
    of its parameters, which come as a dictionary. Types and defaults are the flags'.
    """
    flags = {name: _flags(group) if isinstance(group, type) else list(group) for name, group in groups.items()}

    def command(**values: Any) -> None:
        for name, group in groups.items():
            given = {flag.name: values.pop(flag.name) for flag in flags[name]}
            values[name] = group(**given) if isinstance(group, type) else given
        function(**values)

    own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [flag for one in own for flag in flags.get(one.name, [one])]
    _require_different(parameters)
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _flags(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    fields = inspect.signature(group).parameters
    return [fields[name].replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY) for name in fields]


def _require_different(parameters: Sequence[inspect.Parameter]) -> None:
    names = [parameter.name for parameter in parameters]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--strategy: its setting {twice[0]} is called as another flag; give it another name")


def trace_of(written: str | None) -> TraceWindow | None:
    """The steps that --trace names; InputError where it names none."""
    return None if written is None else TraceWindow.parse(written)
