"""A training run before it starts: its settled configuration, the place of its momentum, its snapshot, its folder."""

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from samovar.checkpoint.store import SnapshotStore
from samovar.config import RunConfig
from samovar.core.clock import local_now
from samovar.core.device import CPU
from samovar.core.errors import InputError
from samovar.frontends.caffe.solver import load_solver, solver_config
from samovar.frontends.caffe.spec import is_there
from samovar.report.run_folder import DEFAULT_PARENT, RunFolder, config_of, create_run_folder, run_folders_of
from samovar.solver.policy import SolverConfig
from samovar.strategies.box_terms import MEAN
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import MomentumShares, by_recipe, resolved, shared_momentum
from samovar.strategies.traits import ALWAYS, AUTO, KINDS, NONE

LATEST: Final = "latest"
IF_ANY: Final = "auto"
_WITH_MOMENTUM = ("SGD", "Nesterov")  # of others a center can keep none
# Where a run computes, and what it leaves behind, does not change what it computes.
_NO_MATTER_TO_REPLAY = (
    *("replay", "record", "out", "keeps_snapshot", "timeout_s", "stop_rule", "hosts", "metrics"),
    *("cpus", "num_taken_cpus", "oversubscribed", "sweep"),
)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A checked configuration and its folder; `is_new` if the folder was made for it."""

    config: RunConfig
    folder: RunFolder
    is_new: bool
    display_steps: int
    notices: tuple[str, ...]


def plan_training(config: RunConfig, snapshot: str | None, out: Path | None) -> TrainingPlan:
    """Check the solver, settle the strategy, find the snapshot, make the run folder; raises InputError."""
    solver = load_solver(config.model)
    sharing = config.strategy
    if config.used_recipe is not None:
        sharing = by_recipe(sharing, config.workers, is_adaptive=solver.is_adaptive)
    sharing, _, _ = with_momentum(sharing, solver_config(solver), config.workers)
    sharing = _with_factors(replace(config, strategy=sharing), solver.iter_size)
    config = replace(config, strategy=resolved(sharing, config.workers))
    if config.is_async:
        config = replace(config, stop_rule=config.stop_rule or MEAN)
    net_name = solver.net.name()
    if config.box is not None:
        # Only now: it imports what speaks with a box, and most runs have one of their own.
        boxes = importlib.import_module("samovar.box.endpoints")
        config = replace(config, buffer=config.buffer or boxes.buffer_name(net_name))
        boxes.require_fitting(config.box, config.key_file, config.buffer, config.timeout_s, joins=config.join)
    if snapshot == LATEST:
        out = out or _last_run(net_name)
    found, notices = find_snapshot(net_name, snapshot, out)
    weights = () if snapshot == IF_ANY and found is not None else config.weights
    solver.starting_weights(weights, found)  # which must exist
    config = replace(config, snapshot=found, weights=weights)
    if config.replay is not None:
        _require_same(config, config.replay)
    _require_not_ended(out, found)
    is_new = out is None or not is_there(out)
    folder = create_run_folder(out, net_name, config.strategy.name, local_now())
    # Ranks know how often a solver for larger steps is to be shown.
    display_steps = solver.display if config.large_batch is None else 1
    config = replace(config, out=folder.path, keeps_snapshot=_is_own(found, folder))
    return TrainingPlan(config, folder, is_new, display_steps, notices)


def _with_factors(config: RunConfig, iter_size: int) -> StrategyConfig:
    """The strategy, with factors where gradients travel between hosts, except by a plan that was asked for.

    Raises InputError if `--factors always` cannot be.
    """
    sharing, asked = config.strategy, config.strategy.factors
    if sharing.traits.setting("factors") is None or asked == NONE:
        return sharing
    between = config.hosts is not None and len(config.hosts.hosts) > 1
    by_itself = between and sharing.collective == AUTO and not sharing.divides_updates
    reasons = {
        f"workers with {sharing.name} send gradients whole": sharing.exchanges_weights,
        f"--exact {config.exact} sums slices in a tree of its own": config.exact is not None,
        f"iter_size {iter_size} adds up gradients before they travel": iter_size > 1,
        f"with --device {config.device} there is no product of factors": config.device != CPU,
    }
    reason = next((text for text, holds in reasons.items() if holds), "")
    if asked == ALWAYS and reason:
        raise InputError(f"--factors {ALWAYS}: {reason}; leave one of them out")
    takes = asked == ALWAYS or (not reason and (between if asked == AUTO else by_itself))
    return replace(sharing, factors=(asked or AUTO) if takes else None)


def _require_not_ended(out: Path | None, snapshot: Path | None) -> None:
    """A run is not overwritten, nor mixed with another one; but it may resume from its own snapshot."""
    if out is None or not is_there(out) or not out.is_dir():
        return
    folder = RunFolder(out)
    if folder.metrics.exists() and not folder.config.exists():
        raise InputError(f"--out {out}: has the figures of a loop (metrics.jsonl); give another folder")
    has_ended, has_saved = folder.result.exists(), not SnapshotStore(folder.snapshots).is_empty()
    has_more = has_ended or has_saved
    # One that began with the same snapshot begins once more: its lines beyond that are dropped.
    if not has_more and (
        snapshot is None or not folder.metrics.exists() or config_of(folder).get("snapshot") == str(snapshot)
    ):
        return
    if not _is_own(snapshot, folder):
        has = "a finished run (result.json)" if has_ended else "a run that did not end"
        more = ", or continue with that run: --snapshot latest" if has_more else ""
        raise InputError(f"--out {out}: has {has}; give another folder{more}")


def _is_own(snapshot: Path | None, folder: RunFolder) -> bool:
    return snapshot is not None and snapshot.resolve().is_relative_to(folder.snapshots.resolve())


def find_snapshot(net_name: str, snapshot: str | None, out: Path | None) -> tuple[Path | None, tuple[str, ...]]:
    """The snapshot of --snapshot, and sentences about damaged ones; InputError if there is none, except for `auto`."""
    if snapshot == IF_ANY:
        if out is None:
            raise InputError("--snapshot auto: looks for snapshots in the folder of the run; give --out, too")
        store = SnapshotStore(RunFolder(out).snapshots)
        return (None, ()) if store.is_empty() else store.latest()
    if snapshot == LATEST:
        return SnapshotStore(RunFolder(out or _last_run(net_name)).snapshots).latest()
    given = None if snapshot is None else Path(snapshot)
    if given is not None and not is_there(given):
        raise InputError(
            f"--snapshot {given}: does not exist; give a snapshot folder, a .solverstate, 'latest' or 'auto'"
        )
    if given is not None and given.name == LATEST and given.is_file():  # it names the newest one beside it
        return SnapshotStore(given.parent).latest()
    return given, ()


def _require_same(config: RunConfig, replay: Path) -> None:
    """Refuse to repeat a run with other settings than its own."""
    recorded = RunFolder(replay)
    if not recorded.order(0).is_file():
        raise InputError(f"--replay {replay}: is not the folder of a run with --record; give one")
    here, there = config.by_name(), RunConfig.load(recorded.config, imports=False).by_name()
    different = [name for name, value in here.items() if value != there[name] and name not in _NO_MATTER_TO_REPLAY]
    if different:
        name = different[0]
        raise InputError(
            f"--replay {replay}: was recorded with {name} {there[name]}, this run has {here[name]}; give what that run "
            "was given"
        )
    if missing := [rank for rank in range(config.workers) if not recorded.order(rank).is_file()]:
        raise InputError(f"--replay {replay}: has no record of rank {missing[0]}; was it lost? Record the run again")


def _last_run(net_name: str) -> Path:
    """The folder under runs/ of this net's run that began last; raises InputError if that run saved no snapshot."""
    runs = [path for path in run_folders_of(net_name, KINDS) if RunFolder(path).config.exists()]
    runs.sort(key=lambda path: RunFolder(path).config.stat().st_mtime_ns)  # each start writes it
    saved = [path for path in runs if (path / "snapshots" / LATEST).exists()]
    if not saved:
        raise InputError(
            f"--snapshot latest: no run of net {net_name!r} with a snapshot under {DEFAULT_PARENT}/; "
            "give the run folder with --out"
        )
    if saved[-1] != runs[-1]:  # another run, with settings of its own
        earlier = f"begin again without it, or continue an earlier run with --out {saved[-1]}"
        raise InputError(f"--snapshot latest: the last run, {runs[-1]}, saved none; {earlier}")
    return saved[-1]


def with_momentum(
    strategy: StrategyConfig, solver: SolverConfig, num_workers: int, are_all: bool = True
) -> tuple[StrategyConfig, SolverConfig, tuple[str, ...]]:
    """The strategy and the solver's settings, with momentum where the strategy keeps it, and what to tell the user.

    Call it before the strategy is resolved. A center that many workers move keeps less momentum than one worker's
    solver: see `async_sgd.center_momentum`. If only these workers move it (`are_all`), the solver's rate changes as in
    `shared_momentum`. Raises InputError if the strategy needs a momentum and the solver has none.
    """
    momentum = solver.momentum if solver.type in _WITH_MOMENTUM else 0.0
    shares = shared_momentum(strategy, momentum, num_workers)
    factor = shares.rate_factor if are_all else 1.0
    own = of_worker(solver, shares, factor)
    notices = shares.notices
    if factor != 1.0:
        one = f"one with momentum {momentum:g}" if momentum else "one"
        notices = (*notices, _other_rate(strategy, solver, own.policy.base_lr, num_workers, one))
    return shares.config, own, notices


def of_worker(solver: SolverConfig, shares: MomentumShares, rate_factor: float) -> SolverConfig:
    """A worker's solver: its share of the momentum, in the form that this needs, and `rate_factor` times the rate."""
    policy = replace(solver.policy, base_lr=solver.policy.base_lr * rate_factor)
    if solver.type not in _WITH_MOMENTUM:
        return replace(solver, policy=policy)
    form = "Nesterov" if shares.is_nesterov else solver.type
    return replace(solver, type=form, momentum=shares.worker, policy=policy)


def _other_rate(strategy: StrategyConfig, solver: SolverConfig, rate: float, num_workers: int, one: str) -> str:
    return (
        f"{strategy.name}: a worker's base_lr is {rate:g} instead of {solver.policy.base_lr:g}, with which "
        f"{num_workers} of them move the center as fast as {one} moves its weights"
    )
