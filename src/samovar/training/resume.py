"""The start of a run: weights in files, one of Samovar's snapshots, or a pair of files by Caffe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.checkpoint.reading import read_manifest, read_snapshot, verify
from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.core.stateful import State
from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.formats.caffe.solverstate import read_solverstate
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import learned_net
from samovar.frontends.caffe.weights import match_weights
from samovar.solver.flat import history_key
from samovar.strategies.traits import KINDS, NONE

RANK_PART = "rank_{}"
SHARES_BATCH = "shares_batch"  # in a snapshot's configuration, besides its own fields
_COMMON_PARTS = ("weights", "momentum", "strategy", "factors")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Steps done, this rank's weights by parameter name, its solver's state, and its strategy's.

    `momentum` is all that the solver keeps of past steps; empty, it starts from zero. An empty `strategy` starts from
    the weights.
    """

    step: int
    weights: State
    momentum: State
    strategy: State
    notices: tuple[str, ...] = ()


def resume_from(path: Path, net: CaffeNet, config: RunConfig, rank: int) -> ResumePoint:
    """Read a snapshot folder or a `.solverstate`; InputError if it is damaged or of another net."""
    point = _from_folder(path, config, rank) if path.is_dir() else _from_caffe(path, net, config.by_caffe)
    if path.is_dir() and (flags := _changed(read_manifest(path).config, config)):
        notice = f"{path}: saved with other {flags}; steps count on, though they are of other samples now"
        point = replace(point, notices=(*point.notices, notice))
    if not (config.strategy.keep_momentum and point.momentum):
        return point
    notice = f"{path}: its momentum is of one solver; each worker of {config.strategy.name} starts its own from zero"
    return replace(point, momentum={}, notices=(*point.notices, notice))


def _from_folder(path: Path, config: RunConfig, rank: int) -> ResumePoint:
    """Each rank's weights and momentum, for the same number of ranks and the same strategy; else the common weights.

    Asynchronous workers have saved their center alone, for any number of them.
    """
    own = RANK_PART.format(rank)
    snapshot = read_snapshot(path, lambda part: part in (own, *_COMMON_PARTS))
    step, parts = snapshot.step, snapshot.parts
    had, has = _sharing(snapshot.config), _sharing(config.to_json())
    # Ranks that exchange gradients have one momentum; else a snapshot's is that of one worker.
    kind = KINDS.get(str(_strategy_name(snapshot.config)))
    is_common = kind is not None and not kind.traits.exchanges_weights
    momentum = parts["momentum"] if is_common else {}
    taken = " and momentum" if is_common else ", and from zero momentum"
    if is_common and config.strategy.traits.adds_steps:
        taken = ", and the momentum of SGD from zero"
    notice = f"{path}: saved by {had}; {has} start from its weights{taken}"
    if is_common and "strategy" not in parts:
        notices = (notice,) if had != has and config.strategy.exchanges_weights else ()
        return ResumePoint(step, parts["weights"], momentum, parts.get("factors", {}) if had == has else {}, notices)
    if had != has and _codec(snapshot.config) is not None and is_common:
        return ResumePoint(step, parts["weights"], momentum, {}, (f"{notice}, but lose the unsent gradients",))
    if config.is_async and _strategy_name(snapshot.config) == config.strategy.name:
        notice = f"{path}: all workers start from the center that it holds; their momentum starts from zero"
        return ResumePoint(step, parts["weights"], {}, parts.get("strategy", {}), (notice,))
    if had != has:
        return ResumePoint(step, parts["weights"], momentum, {}, (notice,))
    if rank == 0:  # before the run is announced: another rank would find its own damaged part too late
        verify(path)
    weights, own_momentum, kept = (
        _under(f"{part}/", parts[own]) or parts[part] for part in ("weights", "momentum", "strategy")
    )
    return ResumePoint(step, weights, momentum or own_momentum, kept)


def _changed(had: Mapping[str, object], config: RunConfig) -> str:
    """The flags that say which samples a step has, and differ from those of the snapshot."""
    has, names = config.to_json(), ("large_batch", "seed", "shuffle")
    flags = [f"--{name.replace('_', '-')}" for name in names if had.get(name, has[name]) != has[name]]
    shared = had.get(SHARES_BATCH, config.shares_batch)
    if shared != config.shares_batch and (config.workers if shared else had["workers"]) != 1:
        flags.append("--batch-mode, --exact or --recipe")
    return ", ".join(flags)


def _sharing(config: Mapping[str, object]) -> str:
    """The workers and strategy in a run's config.json: "4 workers with sync-easgd"."""
    workers, codec = config.get("workers"), _codec(config)
    compressed = "" if codec is None else f" compressed as {codec}"
    return f"{workers} worker{'' if workers == 1 else 's'} with {_strategy_name(config)}{compressed}"


def _strategy_name(config: Mapping[str, object]) -> object:
    strategy = config.get("strategy")
    return strategy.get("name") if isinstance(strategy, Mapping) else None


def _codec(config: Mapping[str, object]) -> object:
    """The compression of the ranks' messages; None without one."""
    strategy = config.get("strategy")
    compress = strategy.get("compress") if isinstance(strategy, Mapping) else None
    return None if compress == NONE else compress


def _under(prefix: str, state: State) -> State:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _from_caffe(path: Path, net: CaffeNet, by_caffe: bool) -> ResumePoint:
    state = read_solverstate(path)
    names = [info.name for info in net.parameter_infos]
    if len(state.history) not in (len(names), 2 * len(names)):
        raise InputError(
            f"{path}: holds {len(state.history)} histories, but {net.path} has {len(names)} parameters, and each needs "
            "one or two; give the solverstate of this net"
        )
    model = learned_net(path, state.learned_net)
    matched = match_weights(net, read_caffemodel(model), model)
    if matched.missing:
        raise InputError(
            f"{model}: lacks the layers {list(matched.missing)} of {net.path}; give weights that have all layers"
        )
    notice = (
        f"{path}: a solverstate has no data position; reading continues after the records of {state.iteration} steps "
        "of this configuration (Caffe starts at the first record)"
    )
    momentum = _momentum(path, net, state.history)
    return ResumePoint(state.iteration, dict(matched.arrays), momentum, {}, () if by_caffe else (notice,))


def _momentum(path: Path, net: CaffeNet, history: Sequence[npt.NDArray[np.float32]]) -> State:
    momentum: State = {}
    infos = net.parameter_infos
    for place, array in enumerate(history):
        index, info = place // len(infos), infos[place % len(infos)]
        if array.size != info.parameter.numel():
            raise InputError(
                f"{path}: history {place}, of {info.name!r}, has {array.size} values, but the parameter has "
                f"{info.parameter.numel()}; give the solverstate of this net"
            )
        momentum[history_key(info.name, index)] = array.reshape(tuple(info.parameter.shape))
    return momentum
