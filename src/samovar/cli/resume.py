"""Where a run starts that continues another one: Samovar's snapshots, or a pair of files by Caffe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.checkpoint.reading import read_snapshot
from samovar.core.errors import InputError
from samovar.core.stateful import State
from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.formats.caffe.solverstate import read_solverstate
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.weights import match_weights


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Steps done, weights and momentum by parameter name."""

    step: int
    weights: State
    momentum: State
    notices: tuple[str, ...] = ()


def resume_from(path: Path, net: CaffeNet) -> ResumePoint:
    """The state in a snapshot folder or a `.solverstate`; InputError where it is damaged or of another net."""
    if path.is_dir():
        snapshot = read_snapshot(path)
        return ResumePoint(snapshot.step, snapshot.parts["weights"], snapshot.parts["momentum"])
    return _from_caffe(path, net)


def _from_caffe(path: Path, net: CaffeNet) -> ResumePoint:
    state = read_solverstate(path)
    names = [info.name for info in net.parameter_infos]
    if len(state.history) != len(names):
        raise InputError(
            f"{path}: holds momentum for {len(state.history)} parameters, {net.path} has {len(names)}; "
            "give the solverstate of this net"
        )
    model = _learned_net(path, state.learned_net)
    matched = match_weights(net, read_caffemodel(model), model)
    if matched.missing:
        raise InputError(f"{model}: lacks the layers {list(matched.missing)} of {net.path}; resume needs all")
    notice = (
        f"{path}: a solverstate knows no data position; reading goes on where {state.iteration} steps of this "
        "configuration would have ended (Caffe starts at the first record)"
    )
    return ResumePoint(state.iteration, dict(matched.arrays), _momentum(path, net, state.history), (notice,))


def _momentum(path: Path, net: CaffeNet, history: Sequence[npt.NDArray[np.float32]]) -> State:
    momentum: State = {}
    for info, array in zip(net.parameter_infos, history, strict=True):
        if array.size != info.parameter.numel():
            raise InputError(
                f"{path}: momentum of {info.name!r} has {array.size} values, the parameter {info.parameter.numel()}; "
                "give the solverstate of this net"
            )
        momentum[info.name] = array.reshape(tuple(info.parameter.shape))
    return momentum


def _learned_net(path: Path, named: str) -> Path:
    """The caffemodel that a solverstate names: from the working folder, else beside the solverstate."""
    candidates = (Path(named), path.parent / Path(named).name)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise InputError(f"{path}: its weights {named!r} are neither at {candidates[0]} nor at {candidates[1]}")
