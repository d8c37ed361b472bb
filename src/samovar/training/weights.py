"""What a net starts from: the files of --weights, or of the solver's `weights`."""

from collections.abc import Sequence
from pathlib import Path

from samovar.config import RunConfig
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.solver import CaffeSolver
from samovar.frontends.caffe.weights import match_weights, read_weights

_MOST_NAMES = 20


def starting_weights(config: RunConfig, caffe: CaffeSolver) -> tuple[Path, ...]:
    """The command line's, else the solver's; none for a run that goes on from a snapshot (as in Caffe)."""
    if config.snapshot is not None:
        return ()
    return config.weights or caffe.weights


def load_weights(net: CaffeNet, paths: Sequence[Path]) -> tuple[str, ...]:
    """Put the arrays of the files into the net, the last file that holds a layer wins; what did not match, in words.

    Raises InputError where a file is damaged, or fits no layer or not the shapes.
    """
    notices, missing = [], None
    for path in paths:
        matched = match_weights(net, read_weights(path, net), path)
        for info in net.parameter_infos:
            if info.name in matched.arrays:
                info.parameter.data.numpy()[...] = matched.arrays[info.name]
        missing = [name for name in matched.missing if missing is None or name in missing]
        if matched.ignored:
            notices.append(f"{path}: layers {_listed(matched.ignored)} are not in this net; ignored")
    if missing:
        names = ", ".join(map(str, paths))
        verb = "has" if len(paths) == 1 else "have"
        notices.insert(0, f"{names}: {verb} no layers {_listed(missing)}; they start from their fillers")
    return tuple(notices)


def _listed(names: Sequence[str]) -> str:
    """At most 20 of them: a file may name any number of layers."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{list(names[:_MOST_NAMES])}{more}"
