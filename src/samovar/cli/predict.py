"""`samovar predict`: how a net would train on a described cluster, simulated with the strategies' own code."""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from samovar.cli import flags
from samovar.cli.command import OUTPUT, HelpAll, gathered, load
from samovar.cli.flags import own_strategy, settings_of_strategies
from samovar.cli.predict_tables import Shown, show_prediction
from samovar.collectives.cost import require_messages
from samovar.config import BATCH_MODES, RECIPES
from samovar.core.errors import InputError, require_choice
from samovar.core.host import num_available_cpus
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.core.modules import require_optional
from samovar.launch.limits import require_room
from samovar.launch.wishes import state_folder
from samovar.predict.cluster import HERE, Cluster, load_cluster, preset_names
from samovar.predict.kept import Kept
from samovar.predict.learning import subjects_for, taught
from samovar.predict.plans import plans_for, whole_powers
from samovar.predict.prediction import Question, error_bars, least_periods, predicted, verdicts
from samovar.predict.work import volumes
from samovar.report.profile import Profile, load_profile, profile_of
from samovar.report.tables import print_json
from samovar.report.wording import counted
from samovar.strategies.catalog import asked_for
from samovar.strategies.settings import FACTORS
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import AUTO, KINDS, NONE, declared_settings

ALL = "all"
_MOST_WORKERS = 4096
_CLUSTER = f"{', '.join(preset_names())}; or a .toml file. Default: {HERE}."
_WORKERS = "1..128 (doubled each time), or 2,6,12."
_SHAPE = "Of an input without data; one for each."
_THREADS = "Compute threads of a worker that is timed here. Default: the cores, divided by a node's workers."
_RECIPE = f"auto: as `samovar train`; shares the batch. Default: {NONE}."
_PER_WORKER, _GLOBAL = BATCH_MODES
_BATCH_MODE = f"per-worker, or global: all share the batch. Default: {_PER_WORKER}."
_STRATEGY = "all, or names with commas."
_CALIBRATION = "A record of `samovar doctor`, for the cluster `here`. Default: what it kept last."


class NetFlags(NamedTuple):
    """The net, its batch, and how long it trains."""

    solver: Annotated[Path | None, flags.DATA("FILE", "Caffe solver (prototxt).")] = None
    net: Annotated[Path | None, flags.DATA("FILE", "Or a net (prototxt).")] = None
    profile: Annotated[Path | None, flags.DATA("FILE", "Or a profile of its layers.")] = None
    shape: Annotated[list[str] | None, flags.DATA("NAME=N,C,H,W", _SHAPE)] = None
    batch: Annotated[int | None, flags.DATA("N", "Samples a step. Default: the net's.", min=1)] = None
    batch_mode: Annotated[str, flags.DATA("MODE", _BATCH_MODE, choices=BATCH_MODES, show_default=False)] = _PER_WORKER
    recipe: Annotated[str, flags.DATA("NAME", _RECIPE, choices=RECIPES, show_default=False)] = NONE
    epochs: Annotated[float | None, flags.DATA("N", "Length. Default: the solver's.", min=0)] = None
    epoch_samples: Annotated[int | None, flags.DATA("N", "Samples of an epoch, for --epochs.", min=1)] = None


class ClusterFlags(NamedTuple):
    """The cluster, and how many of its workers."""

    cluster: Annotated[str, flags.WORKERS("NAME|FILE", _CLUSTER, choices=preset_names(), show_default=False)] = HERE
    workers: Annotated[str, flags.WORKERS("RANGE", _WORKERS)] = "1..16"
    threads_per_worker: Annotated[int | None, flags.WORKERS("N", _THREADS, hidden=True, min=1)] = None
    calibration: Annotated[Path | None, flags.WORKERS("FILE", _CALIBRATION, hidden=True)] = None


class AnswerFlags(NamedTuple):
    """The parts of the answer."""

    layers: Annotated[bool, OUTPUT("", "Compare data and model parallelism.", "--layers")] = False
    collectives: Annotated[bool, OUTPUT("", "Compare the plans of an all-reduce.", "--collectives")] = False
    periods: Annotated[bool, OUTPUT("", "Find the shortest period with 90 % of ideal.", "--periods")] = False
    learn: Annotated[bool, OUTPUT("", "Let a small net learn there.", "--learn")] = False
    pictures: Annotated[Path | None, OUTPUT("FOLDER", "Draw the prediction, as PNG and SVG.")] = None
    as_json: Annotated[bool, OUTPUT("", "Print the prediction as JSON.", "--json")] = False


def _predict(
    *,
    net: NetFlags,
    on: ClusterFlags,
    strategy: Annotated[str, flags.SHARING("NAMES", _STRATEGY)] = ALL,
    settings: Mapping[str, object],
    collective: flags.Collective = AUTO,
    answer: AnswerFlags,
    quiet: Annotated[bool, OUTPUT("", "Do not tell what is simulated now.", "--quiet")] = False,
    _help_all: HelpAll = False,
) -> None:
    """Predict how a net would train on a cluster. Strategies run on a simulated one; nothing is measured there."""
    names = tuple(KINDS) if strategy == ALL else tuple(dict.fromkeys(strategy.split(",")))
    for module, is_needed in {"sklearn": answer.learn, "matplotlib": answer.pictures is not None}.items():
        if is_needed:  # said before minutes of work
            require_optional(module)
    question = _question(net, on, names, settings, collective)
    workers, cluster, profile = question.workers, question.cluster, question.profile
    tell = _tell if sys.stderr.isatty() and not (quiet or answer.as_json) else lambda *_: None
    if answer.layers:
        _require_outputs(profile)
    # It raises before anything is simulated.
    subjects = subjects_for(question, load("samovar.predict.digits").digits_for) if answer.learn else None
    found = predicted(question, tell)
    costs = plans_for(cluster, workers[-1]).costs(profile.parameter_bytes) if answer.collectives else []
    batch = question.batch_size if question.shares_batch else question.batch_size * workers[-1]
    layers = volumes(profile, batch) if answer.layers else []
    periods = least_periods(question) if answer.periods else {}
    learned = [] if subjects is None else taught(question, found, subjects, tell)
    bars = error_bars(question, Kept(state_folder()))
    shown = Shown(question, found, verdicts(found), costs, layers, periods, learned, bars)
    if answer.as_json:
        print_json(shown.as_plain())
    else:
        show_prediction(shown)
    if answer.pictures is not None:
        # matplotlib is loaded where pictures are asked for: other predictions do without.
        drawing = load("samovar.predict.pictures")
        for path in drawing.draw(question, found, learned, answer.pictures):
            print(f"drawn: {path}", file=sys.stderr if answer.as_json else sys.stdout)


def predict(words: Sequence[str]) -> Callable[..., None]:
    """The command, with a flag for each setting of the known strategies; `words` may bring one more strategy."""
    own_strategy(words)
    groups: dict[str, Any] = {"net": NetFlags, "on": ClusterFlags, "answer": AnswerFlags}
    settings = [one for one in settings_of_strategies() if one.name != FACTORS.name]  # gradients are simulated whole
    return gathered(_predict, settings=settings, **groups)


def _question(
    net: NetFlags, on: ClusterFlags, names: tuple[str, ...], settings: Mapping[str, object], collective: str
) -> Question:
    kept = Kept(state_folder()).machine() or NOMINAL
    record = kept if on.calibration is None else CalibrationRecord.load(on.calibration)
    cluster, workers = load_cluster(on.cluster, record), _workers(on.workers)
    if cluster.num_nodes(workers[-1]) > 1:
        require_messages(collective)
    fitting = _checked(names, collective, settings)
    profile, samples, passes = _profile(net, cluster, on.threads_per_worker)
    require_choice("--recipe", net.recipe, RECIPES)
    has_recipes = net.recipe != NONE
    batch, is_shared = net.batch or passes * profile.batch_size, has_recipes or _is_global(net.batch_mode)
    trained_on = _samples(net, samples)
    asked = (names, batch, is_shared, collective, fitting, trained_on, has_recipes)
    return Question(profile, cluster, workers, *asked)


def _profile(net: NetFlags, cluster: Cluster, threads: int | None) -> tuple[Profile, int | None, int]:
    """The net, the samples that it trains on, if known, and the passes of a step."""
    given = [path for path in (net.solver, net.net, net.profile) if path is not None]
    if len(given) != 1:
        raise InputError("give one of --solver FILE, --net FILE and --profile FILE: the net to predict")
    if net.profile is not None:
        if threads is not None or net.shape:
            raise InputError("--threads-per-worker and --shape are for a net that is timed here; leave them out")
        return load_profile(net.profile), None, 1
    # What needs torch is imported when it is asked for: a profile does without.
    nets = load("samovar.files.net_profile")
    is_timed = cluster.worker.speed is None
    if threads is not None:
        require_room("--threads-per-worker", 1, threads, None)
    elif cluster.node.workers > 1:
        threads = max(1, num_available_cpus() // cluster.node.workers)
    # A batch is what is timed, if workers have it. What is counted grows with it in any case.
    batch = net.batch if is_timed and not _is_global(net.batch_mode) else None
    timed, training = nets.net_profile(given[0], net.solver is not None, batch, threads, is_timed, net.shape or ())
    profile = replace(profile_of(timed), is_adaptive=training.is_adaptive, divides_updates=not training.clips)
    return profile, training.samples, training.passes


def _samples(net: NetFlags, solvers: int | None) -> float | None:
    if (net.epochs is None) != (net.epoch_samples is None):
        raise InputError("--epochs and --epoch-samples go together: how often, and how many samples")
    if net.epochs is not None and not 0 < net.epochs < math.inf:
        raise InputError(f"--epochs {net.epochs:g}: give a number above 0")
    if net.epochs is None or net.epoch_samples is None:
        return None if solvers is None else float(solvers)
    return net.epochs * net.epoch_samples


def _require_outputs(profile: Profile) -> None:
    unknown = [layer.name for layer in profile.layers if layer.num_parameters and not layer.activation_bytes]
    if unknown:
        raise InputError(
            f"--layers: {profile.net}: layer {unknown[0]!r} lacks its activation_bytes; add the size of its output"
        )


def _is_global(mode: str) -> bool:
    require_choice("--batch-mode", mode, BATCH_MODES)
    return mode == _GLOBAL


def _workers(written: str) -> tuple[int, ...]:
    found = re.fullmatch(r"([0-9]{1,6})\.\.([0-9]{1,6})", written)
    if found:
        numbers = list(whole_powers(int(found[1]), int(found[2]))) if 0 < int(found[1]) <= int(found[2]) else []
    elif re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", written):
        numbers = sorted({int(number) for number in written.split(",")})
    else:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > _MOST_WORKERS:
        raise InputError(f"--workers: got {written!r}; give 1..128, or a list as 2,6,12, of 1 to {_MOST_WORKERS:,}")
    return tuple(numbers)


def _checked(names: Sequence[str], collective: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """The settings as strategies take them. Raises InputError if one fits none of them, or its value is wrong."""
    given = {name: value for name, value in settings.items() if value is not None}
    found: dict[str, Any] = {}
    for name in names:
        kind = KINDS.get(name)
        own = {key: value for key, value in given.items() if kind is None or kind.traits.setting(key) is not None}
        config = asked_for(name, collective, own)
        found |= {key: config[key] for key in own if config[key] is not None}
        if BUCKET.name in own and not config.automatic_buckets:
            found[BUCKET.name] = config.bucket_size_bytes  # None is the whole model
    if unused := [key for key in given if not any(KINDS[name].traits.setting(key) for name in names)]:
        flag = declared_settings()[unused[0]][0].flag
        raise InputError(f"{flag}: none of {', '.join(names)} has this setting; leave it out")
    return found


def _tell(strategy: str, num_workers: int) -> None:
    typer.echo(f"\r\033[Ksimulating {strategy} with {counted(num_workers, 'worker')}", nl=False, err=True)
