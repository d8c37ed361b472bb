"""Files of named tensors, safetensors and torch's own, read without running anything in them."""

import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from safetensors import SafetensorError

from samovar.core.errors import InputError
from samovar.formats.caffe.files import HDF5_MAGIC, read_file

NamedArrays: TypeAlias = dict[str, npt.NDArray[np.float32]]

MAX_STATE_BYTES = 1 << 36
_ZIP_MAGIC, _PICKLE_MAGIC = b"PK\x03\x04", b"\x80"
_HEADER_SIZE_BYTES = 8  # of safetensors: how long its header is
_STATE_KEYS = ("state_dict", "model_state_dict", "model")  # where checkpoints keep it beside an epoch and the like
_WRAPPER_PREFIX = "module."  # DistributedDataParallel's


def is_named_file(path: Path) -> bool:
    """Whether `path` begins as a safetensors file or one of torch.save does; False where it cannot be read."""
    return is_safetensors(path) or is_torch_file(path)


def is_safetensors(path: Path) -> bool:
    start = _start(path)
    size = int.from_bytes(start[:_HEADER_SIZE_BYTES], "little")
    return start[_HEADER_SIZE_BYTES : _HEADER_SIZE_BYTES + 1] == b"{" and 2 <= size < 1 << 40


def is_torch_file(path: Path) -> bool:
    return _start(path).startswith((_ZIP_MAGIC, _PICKLE_MAGIC))


def read_named(path: Path) -> NamedArrays:
    """The tensors of a safetensors file or a torch state_dict, by name, as float32 in C order.

    A torch file is read with `weights_only`: tensors and plain containers, no code; what lies in it under
    "state_dict" or "model" is taken, and a prefix "module." of all names is dropped. Raises InputError, naming the
    file, where it holds anything else, is damaged, or claims more than its bytes.
    """
    tensors = _read_safetensors(path) if is_safetensors(path) else _read_torch(path)
    return {name: _as_float32(path, name, tensor) for name, tensor in tensors.items()}


def metadata_of(path: Path) -> dict[str, str]:
    """The texts beside a safetensors file's tensors."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: is not a sound safetensors file, or was cut short: {error}") from None


def _start(path: Path) -> bytes:
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(len(HDF5_MAGIC) + 1)
    except (OSError, ValueError):
        return b""


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    content = read_file(path, "safetensors", MAX_STATE_BYTES)
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path}: is not a sound safetensors file, or was cut short: {error}") from None


def _read_torch(path: Path) -> dict[str, torch.Tensor]:
    size_bytes = path.stat().st_size
    try:
        _require_stored(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd about a file is said in the error, or does not matter
            found = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # damaged archives and pickles raise whatever they lead to
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: is not a torch file of plain tensors, or was cut short; nothing in it was run. Save "
            f"model.state_dict() with torch.save, or take safetensors ({type(error).__name__}: {reason[:200]})"
        ) from None
    tensors = _state_dict(path, found)
    for name, tensor in tensors.items():
        if tensor.numel() * tensor.element_size() > size_bytes:
            raise InputError(f"{path}: '{name}' claims to be larger than the file ({size_bytes} bytes); it is damaged")
    return tensors


def _require_stored(path: Path) -> None:
    """A torch file's parts lie in it as they are: a packed one could be of any size."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        packed = [part.filename for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise InputError(f"{path}: its part '{packed[0]}' is compressed, which torch.save never does; is it a .npz?")


def _state_dict(path: Path, found: object) -> dict[str, torch.Tensor]:
    for key in _STATE_KEYS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"{path}: holds a {type(found).__name__}, not a state_dict: names with tensors")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(f"{path}: {name!r} is a {type(value).__name__}; a state_dict holds tensors by name")
    cut: Callable[[str], str] = str
    if all(name.startswith(_WRAPPER_PREFIX) for name in found):
        cut = _without_wrapper
    return {cut(name): value for name, value in found.items()}


def _without_wrapper(name: str) -> str:
    return name.removeprefix(_WRAPPER_PREFIX)


def _as_float32(path: Path, name: str, tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized or tensor.is_meta:
        raise InputError(f"{path}: '{name}' is {tensor.dtype}, {tensor.layout}; weights are dense real numbers")
    array: npt.NDArray[np.float32] = tensor.detach().to(torch.float32).contiguous().numpy()
    return array
