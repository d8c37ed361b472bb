"""The flags that several commands share, those of `samovar train` that come as one value, and strategies' settings."""

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from samovar.cli.command import OUTPUT, Panel
from samovar.config import BATCH_MODES, RECIPES
from samovar.core.device import AUTO, CPU, CUDA, GPU, PRECISIONS
from samovar.core.large_batch import RATE_SCALINGS
from samovar.core.trace import TraceWindow
from samovar.launch.identity import LIBRARIES
from samovar.launch.limits import MOST_THREADS_PER_CORE
from samovar.report.sinks import named_sinks
from samovar.strategies.box_terms import MEAN, STOP_RULES
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import COLLECTIVES, declared_as
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import KINDS, Setting, Value, declared_settings

DATA, WORKERS, SHARING = Panel("Data and files"), Panel("Workers"), Panel("How workers share")
HOSTS = Panel("Several hosts")

_HOLD = "Decode the training set once, into the memory of all workers."
_WORKERS = "Processes, auto or gpu. Default: 1."
_MANY = f"Allow more than {MOST_THREADS_PER_CORE} compute threads for each core."
_DEVICE = "auto, cpu, cuda or cuda:N. Default: cpu."
_TIMEOUT = "How long a worker waits for another before it gives up."
_BATCH = "per-worker, or one global batch."
_RECIPE = "auto: learn as one worker does. Default: auto, but none for sync."
_EXACT = "Sum the batch in K slices, in one order: the same bits with any number of workers up to K."
_LARGE = "Larger steps: N samples, of all workers together."
_RATE = f"How the learning rate grows with --large-batch: {', '.join(RATE_SCALINGS)}. Default: firecaffe."
_WARM_UP = "Steps in which the learning rate rises with --large-batch. Default: a tenth of all."
_STRATEGY = f"{', '.join(STRATEGIES)}; or your own, as FILE.py:NAME or MODULE:NAME. Default: sync."
_COLLECTIVE = f"How gradients are summed: {', '.join(COLLECTIVES)}."
_TRANSPORT = "mpi or gaspi: exchange in windows of that library. mpi needs mpiexec, gaspi GPI-2."
_CALIBRATION = "The machine by which auto decides, from `samovar doctor --save`. Default: a nominal machine."
_STOP = f"By whose steps a run ends, if workers do not wait for each other: {', '.join(STOP_RULES)}. Default: {MEAN}."
_RECORD = "Record the order of updates at the center, for --replay."
_REPLAY = "Repeat the run in this run folder, made with --record, with the same bits."
_NUMBER, _PORT = "Number of this host, from 0.", "A free port of host 0."
_ADDRESS = "Name or address of host 0, as the others see it."
_KEY = "The job's key, the same file on all hosts. Host 0 makes a missing one."
_FILE = "Start the command on these hosts over ssh: a name on each line, this host first."
_SSH = "The program of ssh, and its flags."
_METRICS = "Give the figures to tensorboard, wandb, mlflow or FILE.py:NAME, too."
_BUFFER = "The buffer in the box. Default: the net's name."

Precision = Annotated[str, WORKERS("NAME", "fp32 or bf16.", choices=PRECISIONS)]
Device = Annotated[str, WORKERS("NAME", _DEVICE, choices=(AUTO, CPU, CUDA), show_default=False)]
Oversubscribe = Annotated[bool, WORKERS("", _MANY, "--oversubscribe", hidden=True)]
Timeout = Annotated[float, WORKERS("SECONDS", _TIMEOUT, hidden=True)]
Threads = Annotated[int | None, WORKERS("N", "Compute threads of each. Default: cores / workers.")]
Strategy = Annotated[str, SHARING("NAME", _STRATEGY, choices=STRATEGIES, show_default=False)]


Nodes = Annotated[int, HOSTS("N", "Number of hosts. Start this command on each.")]
NodeRank = Annotated[int | None, HOSTS("K", _NUMBER)]
MasterAddress = Annotated[str | None, HOSTS("HOST", _ADDRESS)]
MasterPort = Annotated[int | None, HOSTS("PORT", _PORT)]
KeyFile = Annotated[Path | None, HOSTS("FILE", _KEY)]


class HostFlags(NamedTuple):
    """Which of several hosts this is."""

    nodes: Annotated[int, WORKERS("N", "Number of hosts. See --help-all.", show_default=False)] = 1
    node_rank: Annotated[int | None, HOSTS("K", _NUMBER, hidden=True)] = None
    master_addr: Annotated[str | None, HOSTS("HOST", _ADDRESS, hidden=True)] = None
    master_port: Annotated[int | None, HOSTS("PORT", _PORT, hidden=True)] = None
    hosts: Annotated[Path | None, HOSTS("FILE", _FILE, hidden=True)] = None
    ssh: Annotated[str, HOSTS("COMMAND", _SSH, hidden=True)] = "ssh"


class DataFlags(NamedTuple):
    """How long a run is, and in which order it reads."""

    iterations: Annotated[int | None, DATA("N", "Steps in all. Default: the solver's.")] = None
    seed: Annotated[int | None, DATA("N", "Of weights and data order.")] = None
    shuffle: Annotated[bool, DATA("", "Use a new sample order every epoch.", "--shuffle")] = False
    hold_data: Annotated[bool, DATA("", _HOLD, "--hold-data", hidden=True)] = False


class OnMachine(NamedTuple):
    """How much of this machine a run takes."""

    workers: Annotated[str, WORKERS("N|NAME", _WORKERS, choices=(AUTO, GPU), show_default=False)] = "1"
    threads_per_worker: Annotated[str | None, WORKERS("N|auto", "Compute threads of each. Default: auto.")] = None
    oversubscribe: Oversubscribe = False


class BatchFlags(NamedTuple):
    """How the samples of a step are divided."""

    batch_mode: Annotated[str | None, WORKERS("MODE", _BATCH, choices=BATCH_MODES, show_default=False)] = None
    recipe: Annotated[str | None, WORKERS("NAME", _RECIPE, choices=RECIPES)] = None
    exact: Annotated[int | None, WORKERS("K", _EXACT, hidden=True)] = None


class LargeBatchFlags(NamedTuple):
    """The recipe for large batches."""

    large_batch: Annotated[int | None, WORKERS("N", _LARGE, hidden=True)] = None
    rate_scaling: Annotated[str | None, WORKERS("NAME", _RATE, choices=tuple(RATE_SCALINGS), hidden=True)] = None
    warm_up_steps: Annotated[int | None, WORKERS("N", _WARM_UP, hidden=True)] = None


Collective = Annotated[str, SHARING("NAME", _COLLECTIVE, choices=COLLECTIVES, hidden=True)]


class PlanFlags(NamedTuple):
    """By which plan gradients are summed, and how they travel."""

    collective: Collective = AUTO
    transport: Annotated[str, SHARING("NAME", _TRANSPORT, choices=(AUTO, *LIBRARIES), hidden=True)] = AUTO
    calibration: Annotated[Path | None, SHARING("FILE", _CALIBRATION, hidden=True)] = None


class Async(NamedTuple):
    """Of workers that each go at their own speed."""

    stop_rule: Annotated[str | None, SHARING("NAME", _STOP, choices=STOP_RULES, hidden=True)] = None
    record: Annotated[bool, SHARING("", _RECORD, "--record", hidden=True)] = False
    replay: Annotated[Path | None, SHARING("FOLDER", _REPLAY, hidden=True)] = None


class Boxed(NamedTuple):
    """Of a center that outlives the run."""

    box: Annotated[str | None, SHARING("BOX", "The box to train at: a name or HOST:PORT.")] = None
    join: Annotated[bool, SHARING("", "Join those who train at the box already.", "--join")] = False
    key_file: Annotated[Path | None, SHARING("FILE", "The key of a box at HOST:PORT, or of all hosts.")] = None
    buffer: Annotated[str | None, SHARING("NAME", _BUFFER, hidden=True)] = None


class FigureFlags(NamedTuple):
    """Of a run's figures, besides those that each run shows and writes."""

    trace: Annotated[str | None, OUTPUT("steps=A-B", "Record these steps as a timeline.")] = None
    metrics: Annotated[str | None, OUTPUT("NAME", _METRICS, hidden=True)] = None

    def checked(self) -> dict[str, Any]:
        """The settings of a run; InputError if one cannot be used."""
        trace = None if self.trace is None else TraceWindow.parse(self.trace)
        return {"trace": trace, "metrics": named_sinks(self.metrics, "--metrics")}


def own_strategy(words: Sequence[str], flags: tuple[str, ...] = ("--strategy",)) -> None:
    """Import the user's own strategy that these words ask for, if any: its settings become flags too."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if flag in flags and ":" in (given := value if equals else following):
            declared_as(given)


def settings_of_strategies() -> list[inspect.Parameter]:
    """A flag for each setting of all strategies; None is the strategy's default."""
    return [_parameter(name, own) for name, own in declared_settings().items() if own[0].has_flag]


def written_type(setting: Setting) -> type[Value]:
    """The type of what is written after the flag: --bucket takes words too."""
    return str if setting.name == BUCKET.name else setting.kind


def _parameter(name: str, declared: Sequence[Setting]) -> inspect.Parameter:
    setting = declared[0]
    choices = tuple(dict.fromkeys(choice for one in declared for choice in one.choices))
    text = _help(name, declared).replace("[", "\\[")  # which would be markup
    option = SHARING(setting.metavar, text, setting.flag, choices=choices, hidden=setting.is_advanced)
    annotation: object = Annotated[written_type(setting) | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(name: str, declared: Sequence[Setting]) -> str:
    """Its meaning, its choices, and the strategies that have it."""
    by_choices: dict[tuple[str, ...], list[str]] = {}
    for strategy, kind in KINDS.items():
        if (setting := kind.traits.setting(name)) is not None:
            by_choices.setdefault(setting.choices, []).append(strategy)
    if len(by_choices) > 1:
        parts = [f"{_listed(names)}: {', '.join(choices)}" for choices, names in by_choices.items()]
        return f"{declared[0].help} {'. '.join(parts)}. Default: {_default(declared)}."
    ((choices, owners),) = by_choices.items()
    allowed = f" One of: {', '.join(choices)}." if choices else ""
    return f"{declared[0].help}{allowed} For {_listed(owners)}. Default: {_default(declared)}."


def _listed(owners: Sequence[str]) -> str:
    """Names of strategies in few words: "sync, slowmo", "all but sync", "all *easgd"."""
    others = [strategy for strategy in KINDS if strategy not in owners]
    endings = [name[place:] for name in owners[:1] for place in range(len(name))]
    for ending in endings if len(owners) > 2 else ():
        if all(name.endswith(ending) for name in owners) and not any(name.endswith(ending) for name in others):
            return f"all *{ending}"
    return ", ".join(owners) if len(owners) <= len(others) else f"all but {', '.join(others)}"


def _default(declared: Sequence[Setting]) -> str:
    words = {setting.default_words.replace("`", "") for setting in declared}
    return words.pop() if len(words) == 1 else "by strategy"
