"""Named arrays as one safetensors file: written as a stream, without a second copy of the data."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

Array: TypeAlias = npt.NDArray[Any]

# Of NumPy's types, whose names torch shares.
DTYPE_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
_ALIGNMENT_BYTES = 8


def chunks(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """The safetensors file of `arrays`, piece by piece: header, then each array's bytes.

    Arrays keep shape and values, and come out C-contiguous and little-endian.
    Cost: one pass over the data; a copy only of arrays that are strided or big-endian.
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    yield header({name: _entry(arrays[name]) for name in names}, metadata)
    for name in names:
        yield _little_endian_bytes(arrays[name])


def header(entries: Mapping[str, tuple[str, Sequence[int], int]], metadata: Mapping[str, str] | None = None) -> bytes:
    """The first bytes of a safetensors file whose data follow in this order: code, shape and bytes of each tensor."""
    fields: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, (code, shape, num_bytes) in entries.items():
        assert name != "__metadata__", "safetensors keeps the name __metadata__ for itself"
        fields[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}
        offset += num_bytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def parse(data: bytes) -> dict[str, Array]:
    """The arrays of a safetensors file, writable; raises ValueError if `data` is not one."""
    try:
        loaded = safetensors.numpy.load(data)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"not a safetensors file of NumPy types: {error}") from error
    return {name: array if array.flags.writeable else array.copy() for name, array in loaded.items()}


def _entry(array: Array) -> tuple[str, Sequence[int], int]:
    assert array.dtype.name in DTYPE_CODES, f"no safetensors code for {array.dtype}"
    return DTYPE_CODES[array.dtype.name], array.shape, array.nbytes


def _little_endian_bytes(array: Array) -> memoryview:
    stored = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return stored.reshape(-1).view(np.uint8).data
