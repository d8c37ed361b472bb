"""`samovar.replicate`: a training loop of the user on several ranks."""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, overload

import torch
from torch import nn

from samovar.api.center import BoxChoice, box_choice
from samovar.api.connect import Joined, join_group
from samovar.api.elastic import ElasticReplica
from samovar.api.figures_wanted import FiguresWanted, figures_wanted, say
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.collectives.engine import PlannedCollectives
from samovar.config import DEFAULT_TIMEOUT_S, RECIPES
from samovar.core.errors import InputError, SamovarError, require_choice, require_whole
from samovar.core.host import keep_freed_memory
from samovar.frontends.torch.optimizers import Given
from samovar.launch.identity import ElasticJob, Identity, elastic_job
from samovar.launch.limits import allocator_is_chosen
from samovar.report.sinks import Place
from samovar.strategies import defaults
from samovar.strategies.base import Strategy
from samovar.strategies.catalog import by_name
from samovar.strategies.config import StrategyConfig, declared_as, in_python, name_of, parse_bucket
from samovar.strategies.ours import Settings, StrategyName
from samovar.strategies.recipe import Recipe
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import AUTO, NONE

_BETWEEN_HOSTS_BUCKET_BYTES = 1 << 23
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class _Process:
    """The ranks that this process has joined, once for all of its replicas."""

    def __init__(self) -> None:
        self._joined: Joined | None = None
        self._team: ProcessGroup | None = None
        self._chosen: dict[str, str] = {}
        self._alone: Joined | None = None
        self._elastic: ElasticReplica | None = None

    def processes(
        self,
        collective: str,
        transport: str,
        key_file: str | Path | None,
        device: torch.device | None,
        timeout_s: float,
    ) -> tuple[Joined, ProcessGroup]:
        _require_own_process()
        _require_limit(timeout_s)
        chosen = {"collective": collective, "transport": transport}
        if self._joined is None or self._team is None:
            if not allocator_is_chosen():
                keep_freed_memory(large_too=False)
            path = Path(key_file) if key_file else None
            self._joined = join_group(timeout_s, collective, None, transport, path, device)
            joined = self._joined
            local_rank = joined.host.ranks.index(joined.group.rank)
            made = (joined.collectives, timeout_s, 0, joined.home, local_rank, joined.heartbeats)
            self._team = ProcessGroup(*made, joined.connect_near, joined.emulated)
            self._chosen = chosen
        for what, value in chosen.items():
            if value not in (AUTO, self._chosen[what]):
                raise InputError(
                    f"replicate: {what} {value!r}, but the first call of this process chose {self._chosen[what]!r}; "
                    "give it in the first call"
                )
        return self._joined, self._team

    def elastic(
        self,
        model: nn.Module,
        optimizer: Given,
        config: StrategyConfig,
        wanted: FiguresWanted,
        timeout_s: float,
        job: ElasticJob,
    ) -> ElasticReplica:
        """This process as a worker of an elastic job."""
        _require_own_process()
        _require_limit(timeout_s)
        if self._elastic is not None and not self._elastic.is_closed:
            raise InputError("replicate: a worker of an elastic job has one replica; close() it first")
        if self._alone is None:
            self._alone = join_group(timeout_s, identity=Identity())
        alone = ProcessGroup(self._alone.collectives, timeout_s, local_rank=job.place)
        self._elastic = replica = ElasticReplica(model, optimizer, alone, config, wanted, timeout_s, job)
        if replica.is_first or replica.step_count:
            say(f"{defaults.described(replica.config)}; {replica.how_it_came}")
        return replica


_process = _Process()


def _require_own_process() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # multiprocessing's own sign
        raise InputError(
            "replicate: a process that multiprocessing started, such as a worker of a DataLoader, runs this script "
            "again; put what the script does under `if __name__ == '__main__':`, or give the DataLoader "
            "multiprocessing_context='fork'"
        )


def _require_limit(timeout_s: object) -> None:
    if not isinstance(timeout_s, Real) or not 0 < float(timeout_s) < 86_400:
        raise InputError(f"replicate: timeout_s is {timeout_s!r}; give seconds, more than 0 and less than a day")


def _in_short(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Errors name arguments instead of flags, and their tracebacks end at the caller's line."""

    @wraps(function)
    def call(*given: _Given.args, **named: _Given.kwargs) -> _Made:
        try:
            return function(*given, **named)
        except SamovarError as error:
            if isinstance(error, InputError):
                error.args = (in_python(str(error)),)
            raise error.with_traceback(None) from None

    return call


@overload
def replicate(
    model: nn.Module,
    optimizer: Given,
    strategy: StrategyName = ...,
    *,
    collective: str = ...,
    transport: str = ...,
    timeout_s: float = ...,
    box: str | Sequence[str] | None = ...,
    buffer: str | None = ...,
    key_file: str | Path | None = ...,
    join: bool = ...,
    compare_weights_steps: int | None = ...,
    recipe: Literal["auto", "none"] = ...,
    metrics: Place | Sequence[Place] | None = ...,
    trace: str | None = ...,
    **settings: Unpack[Settings],
) -> Replica: ...
@overload
def replicate(model: nn.Module, optimizer: Given, strategy: type[Strategy], **settings: Any) -> Replica: ...
@_in_short
def replicate(
    model: nn.Module,
    optimizer: Given,
    strategy: str | type[Strategy] = "sync",
    *,
    collective: str = AUTO,
    transport: str = AUTO,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    box: str | Sequence[str] | None = None,
    buffer: str | None = None,
    key_file: str | Path | None = None,
    join: bool = False,
    compare_weights_steps: int | None = None,
    recipe: str = NONE,
    metrics: Place | Sequence[Place] | None = None,
    trace: str | None = None,
    **settings: Any,
) -> Replica:
    """Train `model` with one or several optimizers on all ranks of this job. Each rank gives the same arguments.

    The first call waits for all ranks, and no wait is longer than `timeout_s`. Rank 0 sends its weights to all.

    - `strategy`: its name, or your own: the class, "module:Name" or "file.py:Name". `settings` are its own.
    - `collective`: the plan of the all-reduce. `transport`: "shm", "gloo", "nccl", "tcp", "mpi" or "gaspi", once.
    - `box`: the center's server: a name on this host, "HOST:PORT", or a list to divide the center. `buffer`: the
      center's name there. `join`: start from its weights. `key_file`: the key of the box, of "tcp", of a center.
    - `recipe`: "auto" makes ranks learn as well as one. `compare_weights_steps`: with `sync`, how often to compare.
    - `metrics`: a folder, "tensorboard", "wandb", "mlflow", a `samovar.Sink`, or a list. `trace`: "steps=20-30".

    Raises InputError for a wrong argument, or one that differs between ranks; DeadlineExceeded if a rank is missing.
    """
    config, has_bucket = _config(strategy, collective, settings, compare_weights_steps)
    wanted = figures_wanted(metrics, trace, has_center=config.needs_center)
    choice = _box(config, recipe, transport, box, buffer, key_file, join, type(model).__name__)
    if (job := elastic_job()) is not None:
        return _process.elastic(model, optimizer, config, _of_worker(wanted, choice, transport, recipe), timeout_s, job)
    joined, team = _process.processes(collective, transport, key_file, _device_of(model), timeout_s)
    config = _fitted(config, joined, has_box=choice is not None, cuts_by_itself=not has_bucket)
    made = (team, config, timeout_s, choice, compare_weights_steps, wanted)
    return _described(Replica(model, optimizer, *made, recipe=_used(recipe, config, joined)), joined)


def _of_worker(wanted: FiguresWanted, box: BoxChoice | None, transport: str, recipe: str) -> FiguresWanted:
    """The figures of a worker of an elastic job. Raises InputError for what such a job has no use for."""
    if box is not None:
        raise InputError("replicate: box: an elastic job (samovar run --elastic) has no use for a box; leave it out")
    if recipe == AUTO:
        raise InputError("replicate: recipe='auto': the number of an elastic job's ranks is not known; leave it out")
    if transport != AUTO:
        raise InputError(
            f"replicate: transport {transport!r}: an elastic job exchanges in shared memory inside a host and over tcp "
            "between hosts; leave transport out"
        )
    if wanted.trace is not None or wanted.metrics.sinks:
        raise InputError(
            f"{wanted.what}: each worker of an elastic job has a folder of its own for its figures; give one folder, "
            "without trace and other sinks"
        )
    return wanted.of_worker()


def _device_of(model: nn.Module) -> torch.device | None:
    """The device on which the model seems to train. It is checked when all ranks have met."""
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters if parameter.requires_grad), None)


def _box(
    config: StrategyConfig,
    recipe: str,
    transport: str,
    box: str | Sequence[str] | None,
    buffer: str | None,
    key_file: str | Path | None,
    join: bool,
    model_name: str,
) -> BoxChoice | None:
    """The choice of a box. Raises InputError if the strategy has nothing to put into one, or no such recipe."""
    key_of_box = None if box is None and (transport == "tcp" or config.needs_center) else key_file
    choice = box_choice(box, buffer, key_of_box, join, model_name)
    _require_recipe(config, recipe, choice)
    if choice is not None and not config.is_async:
        raise InputError(f"replicate: box: {config.name} has no center for a box; choose async-easgd, for example")
    return choice


def _fitted(config: StrategyConfig, joined: Joined, *, has_box: bool, cuts_by_itself: bool) -> StrategyConfig:
    """The settings for these hosts. Raises InputError if there is no place for a center."""
    if joined.home.kept is not None:
        _require_own_speed(config, has_box=has_box)
    if len(joined.hosts) == 1:
        return replace(config, factors=None) if config.factors == AUTO else config
    if config.needs_center and not has_box:
        _require_home(config, joined)
    if config.exchanges_weights:
        return config
    size = _BETWEEN_HOSTS_BUCKET_BYTES if cuts_by_itself else config.bucket_size_bytes
    return replace(config, bucket_size_bytes=size, factors=config.factors or AUTO)


def _used(recipe: str, config: StrategyConfig, joined: Joined) -> Recipe | None:
    return config.traits.recipe if recipe == AUTO and joined.group.world_size > 1 else None


def _require_recipe(config: StrategyConfig, recipe: str, choice: BoxChoice | None) -> None:
    """Raises InputError if there is none."""
    require_choice("replicate: recipe", recipe, RECIPES)
    if recipe == AUTO and config.traits.recipe is None:
        raise InputError(f"replicate: recipe='auto': {config.name} declares no recipe; leave it out")
    if recipe == AUTO and choice is not None:
        raise InputError(
            "replicate: recipe='auto': ranks at a box come and go, so their number is not known; leave it out"
        )


def _require_own_speed(config: StrategyConfig, *, has_box: bool) -> None:
    """Raises InputError if ranks of this strategy cannot come back one by one."""
    if config.traits.is_async and not config.traits.in_groups and not has_box:
        return
    raise InputError(
        f"replicate: samovar run --keep-going is for strategies whose ranks wait for no other rank, at a center of the "
        f"job's own, such as shm-easgd; {'leave out box' if has_box else f'{config.name} is none of them'}. Start "
        "without --keep-going, or with --max-restarts alone, which starts all ranks again"
    )


def _require_home(config: StrategyConfig, joined: Joined) -> None:
    """Raises InputError if ranks on several hosts cannot reach a center of the job's own."""
    if config.traits.in_turn and not isinstance(joined.collectives, PlannedCollectives):
        raise InputError(
            f"replicate: {config.name}: ranks pass the turn to each other through windows, and gloo has none; give "
            "transport='tcp' and a key file"
        )
    if not joined.is_one_host and joined.home.key_file is None and joined.home.windows is None:
        raise InputError(
            f"replicate: {config.name}: the center is on the first of {len(joined.hosts)} hosts, and ranks on the "
            "others need the job's key. Name its file by key_file='FILE', SAMOVAR_KEY_FILE or `samovar run "
            "--key-file`. If there is none, rank 0 makes it: copy it to the other hosts and start again. Or give a box"
        )


def _config(
    strategy: str | type[Strategy], collective: str, settings: dict[str, Any], compared: int | None
) -> tuple[StrategyConfig, bool]:
    """The settings, and whether they include the size of buckets. Raises InputError."""
    name = strategy if isinstance(strategy, str) else name_of(strategy)
    if ":" in name:
        declared_as(name)
    named = by_name(settings, "replicate", list(signature(replicate).parameters)[:-1])  # the last takes all settings
    given = {setting: value for setting, value in named.items() if value is not None}
    bucket = given.pop(BUCKET.name, None)
    size = parse_bucket(bucket) if isinstance(bucket, str) else bucket
    config = StrategyConfig.given(name, given, collective=collective, bucket_size_bytes=size)
    if config.divides_updates:
        raise InputError(
            "replicate: overlap='full' and owner='parts' update each bucket, or its parts, on one rank, but a torch "
            "optimizer updates all at once; choose overlap='backward', or leave both out"
        )
    if compared is not None:
        require_whole("replicate: compare_weights_steps", compared, least=1)
        if config.exchanges_weights or config.needs_center:
            raise InputError(f"replicate: compare_weights_steps: {config.name} keeps no weights equal; leave it out")
    return config, bucket is not None


def _described(replica: Replica, joined: Joined) -> Replica:
    if not replica.is_first:
        return replica
    for sentence in (*replica.notices, *defaults.warnings(replica.config, replica.num_workers)):
        warnings.warn(in_python(sentence), stacklevel=4)  # the line that calls replicate
    if replica.world_size > 1:
        hosts = "one host" if joined.is_one_host else "; ".join(map(str, joined.hosts))
        say(f"{defaults.described(replica.config)}; {replica.world_size} ranks on {hosts}{_of_recipe(replica)}")
    return replica


def _of_recipe(replica: Replica) -> str:
    factor = replica.rate_factor
    batch = "; recipe auto: a loader's batch is that of all ranks" if replica.recipe else ""
    return f"{batch}; learning rates times {factor:g}" if factor != 1.0 else batch
