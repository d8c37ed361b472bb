"""`samovar convert`: the kinds of files, and their readers and writers."""

import contextlib
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.core.files import start_of, write_whole
from samovar.formats.caffe.blob import encode_mean, read_mean
from samovar.formats.caffe.caffemodel import StoredNet
from samovar.formats.caffe.hdf5 import is_hdf5, open_hdf5
from samovar.formats.caffe.solverstate import encode_solverstate, encode_solverstate_hdf5, read_solverstate
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net, sized
from samovar.frontends.caffe.module import load
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.onnx_export import encode_onnx
from samovar.frontends.caffe.spec import PHASES
from samovar.frontends.caffe.weight_files import SUFFIXES, encode_stored, lacks_arrays, read_stored
from samovar.frontends.caffe.weights import load_weights, match_weights, require_all

WEIGHTS, STATE, MEAN = "weights", "a solver state", "a mean image"
_TARGETS = {  # the longest suffix that fits counts; ".h5" alone is of the source's kind
    **{suffix: (WEIGHTS, kind) for suffix, kind in SUFFIXES.items()},
    ".solverstate.h5": (STATE, "solverstate.h5"),
    ".onnx": (WEIGHTS, "onnx"),
    ".solverstate": (STATE, "solverstate"),
    ".binaryproto": (MEAN, "binaryproto"),
    ".npy": (MEAN, "npy"),
}
_NPY_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True, slots=True)
class _Converted:
    content: bytes
    summary: str
    notices: tuple[str, ...] = ()


def convert(source: Path, target: Path, model: Path | None, force: bool) -> list[str]:
    """Write the content of `source` as `target`; sentences about what was done.

    The target is whole or as before. Raises InputError if the source is damaged or of another kind than the target's
    suffix, if the target exists without `force`, and if it cannot be written.
    """
    holds = kind_of(source)
    kind = _target_kind(target, holds)
    _require_free(source, target, force)
    made = _CONVERSIONS[holds](source, kind, model)
    write_whole(target, made.content)
    return [*made.notices, f"{target}: {made.summary}, {len(made.content):,} bytes"]


def kind_of(source: Path) -> str:
    """The file's kind: WEIGHTS, STATE or MEAN; InputError if it does not exist."""
    if not source.is_file():
        found = "is not a regular file" if source.exists() else f"no such file (looked from {Path.cwd()})"
        raise InputError(f"{source}: {found}; give the file's name")
    if is_hdf5(source):
        with open_hdf5(source, "file of Caffe") as file:
            return STATE if "history" in file else WEIGHTS
    if start_of(source, len(_NPY_MAGIC)) == _NPY_MAGIC or source.name.endswith((".binaryproto", ".npy")):
        return MEAN
    return STATE if source.name.endswith(".solverstate") else WEIGHTS


def read_mean_file(path: Path) -> npt.NDArray[np.float32]:
    """A mean image (C, H, W) of a `.binaryproto` or `.npy`; InputError if it is neither."""
    return _read_npy(path) if start_of(path, len(_NPY_MAGIC)) == _NPY_MAGIC else read_mean(path)


def _target_kind(target: Path, holds: str) -> str:
    name = target.name.lower()
    if name.endswith(".h5") and not name.endswith((".caffemodel.h5", ".solverstate.h5")):
        name += {WEIGHTS: ".caffemodel.h5", STATE: ".solverstate.h5"}.get(holds, "")
    found = next((suffix for suffix in _TARGETS if name.endswith(suffix)), None)
    allowed = ", ".join(suffix for suffix, (what, _) in _TARGETS.items() if what == holds)
    if found is None:
        raise InputError(f"{target}: a file with this suffix cannot be written; for {holds} give {allowed}")
    what, kind = _TARGETS[found]
    if what != holds:
        raise InputError(f"{target}: is the name of {what}, but the source holds {holds}; give {allowed}")
    return kind


def _require_free(source: Path, target: Path, force: bool) -> None:
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"{target}: cannot be a file; give a file's name in a folder that exists")
    if target.exists() and target.samefile(source):
        raise InputError(f"{target}: is the source itself; give another name")
    if os.path.lexists(target) and not force:
        raise InputError(f"{target}: exists already; give another name, or --force to replace it")


def _weights(source: Path, kind: str, model: Path | None) -> _Converted:
    if kind == "onnx":
        return _onnx(source, model)
    definition = load_net(model) if model is not None else None
    stored = read_stored(source, definition)
    notices = () if definition is None else _compared(stored, definition, source)
    sizes = [array.size for record in stored.layers for array in record.blobs]
    return _Converted(encode_stored(stored, kind, source), f"{len(sizes)} arrays with {sum(sizes):,} values", notices)


def _compared(stored: StoredNet, model: CaffeNetDefinition, source: Path) -> tuple[str, ...]:
    """Raise InputError if arrays of the net are missing or have another shape; a sentence if shapes are not known."""
    if (net := _built(model)) is not None:
        arrays = {record.name: list(record.blobs) for record in stored.layers if record.blobs}
        require_all(match_weights(net, arrays, source).missing, model.path, source)
        return ()
    names = {spec.name for spec in model.in_phase("TRAIN")}
    lacking = [record.name for record in stored.layers if record.name in names and lacks_arrays(record)]
    require_all(lacking, model.path, source)
    return (f"{model.path}: shapes were not compared with this net; `samovar inspect` says why it cannot be built",)


def _built(model: CaffeNetDefinition) -> CaffeNet | None:
    """The net of the first phase whose inputs are known."""
    for phase in PHASES:
        with contextlib.suppress(InputError):
            definition, shapes = sized(model, phase, {}, None)
            return build_net(definition, phase, shapes, seed=0)
    return None


def _onnx(source: Path, model: Path | None) -> _Converted:
    if model is None:
        raise InputError(f"{source}: an ONNX file also needs the net: give it with --model NET.prototxt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = load(model)
    ignored = load_weights(net.caffe_net, [source], needs_all=True)
    num_values = sum(parameter.numel() for parameter in net.parameters())
    summary = f"net '{net.caffe_net.name}' with {num_values:,} values"
    return _Converted(encode_onnx(net), summary, (*(str(warning.message) for warning in caught), *ignored))


def _state(source: Path, kind: str, model: Path | None) -> _Converted:
    _refuse_model(model)
    state = read_solverstate(source)
    if not all(np.isfinite(array).all() for array in state.history):
        raise InputError(f"{source}: holds values that are NaN or infinite; take an earlier solver state")
    encode = encode_solverstate if kind == "solverstate" else encode_solverstate_hdf5
    summary = f"{len(state.history)} histories after {state.iteration} steps, of the weights {state.learned_net!r}"
    return _Converted(encode(state), summary)


def _mean(source: Path, kind: str, model: Path | None) -> _Converted:
    _refuse_model(model)
    mean = read_mean_file(source)
    if not np.isfinite(mean).all():
        raise InputError(f"{source}: holds values that are NaN or infinite; compute the mean again")
    content = io.BytesIO(encode_mean(mean) if kind == "binaryproto" else b"")
    if kind == "npy":
        np.save(content, mean, allow_pickle=False)
    return _Converted(content.getvalue(), f"mean image of shape {' x '.join(map(str, mean.shape))}")


_CONVERSIONS: dict[str, Callable[[Path, str, Path | None], _Converted]] = {
    WEIGHTS: _weights,
    STATE: _state,
    MEAN: _mean,
}


def _refuse_model(model: Path | None) -> None:
    if model is not None:
        raise InputError(f"--model {model}: only the conversion of weights takes a net; leave it out")


def _read_npy(path: Path) -> npt.NDArray[np.float32]:
    """A mean image (C, H, W) or (H, W) of numbers; the size is checked before anything is read."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the header is parsed as Python's tokens, with the errors of a parser
        raise InputError(f"{path}: is not a sound .npy file of plain numbers: {error}") from None
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or not array.size or array.dtype.kind not in "fiu":
        raise InputError(f"{path}: is {array.dtype} of shape {array.shape}; a mean image has (channels, height, width)")
    return np.array(array, np.float32)
