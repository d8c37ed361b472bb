"""Weights out of any file that holds some, into a net."""

from collections.abc import Sequence
from pathlib import Path

import torch

from samovar.formats.caffe.caffemodel import Weights, read_caffemodel
from samovar.frontends.caffe.naming import as_weights
from samovar.frontends.caffe.net import CaffeNet
from samovar.frontends.caffe.state_files import is_named_file, read_named
from samovar.frontends.caffe.weights import match_weights


def read_weights(path: Path, net: CaffeNet) -> Weights:
    """The arrays of each layer: of a caffemodel in any form, a safetensors file or a torch state_dict of `net`.

    Raises InputError, naming the file, where it is none of these or is damaged.
    """
    return as_weights(net, read_named(path), path) if is_named_file(path) else read_caffemodel(path)


def read_into(net: CaffeNet, paths: Sequence[Path]) -> tuple[str, ...]:
    """Put the files' arrays into the net, those of later files over those of earlier ones; notices as sentences.

    Raises InputError, with the net unchanged, where a file fits nowhere or differs in shape.
    """
    matched = [match_weights(net, read_weights(path, net), path) for path in paths]
    arrays = {name: array for match in matched for name, array in match.arrays.items()}
    with torch.no_grad():
        for info in net.parameter_infos:
            if info.name in arrays:
                info.parameter.copy_(torch.from_numpy(arrays[info.name]))
    missing = [layer for layer in matched[0].missing if all(layer in match.missing for match in matched)]
    files = ", ".join(map(str, paths))
    return (f"{files}: has no layers {missing}; they start from their fillers",) if missing else ()
