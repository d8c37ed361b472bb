"""`.caffemodel` and `.caffemodel.h5`: a net's weights by layer name."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from samovar.core.errors import InputError
from samovar.formats.caffe.blob import MAX_BINARY_BYTES, decode_blob, encode_blob
from samovar.formats.caffe.hdf5 import array_of, group_of, holders, is_hdf5, made_in_memory, open_hdf5
from samovar.formats.caffe.schema import Message, message_class, packed_message_class, read_binary, utf8

Weights: TypeAlias = dict[str, list[npt.NDArray[np.float32]]]

_ABSENT = np.empty(0, np.float32)
_MOST_ABSENT = 16  # of one layer: Caffe's layers have at most 5 arrays

_V1_TYPES = message_class("V1LayerParameter").DESCRIPTOR.fields_by_name["type"].enum_type


class LayerRecord(NamedTuple):
    """A layer as a caffemodel holds it; `blobs` are float32 in logical order (none: no weights)."""

    name: str
    type: str
    bottoms: Sequence[str]
    tops: Sequence[str]
    blobs: Sequence[npt.NDArray[np.float32]]


class StoredNet(NamedTuple):
    """The content of a caffemodel: the net's name and its layers, in the file's order."""

    name: str
    layers: Sequence[LayerRecord]


def read_caffemodel(path: Path) -> Weights:
    """The arrays (float32, C order) of each layer that has any, in the file's order; see `read_stored_net`."""
    return {layer.name: list(layer.blobs) for layer in read_stored_net(path).layers if layer.blobs}


def read_stored_net(path: Path) -> StoredNet:
    """Every layer of a caffemodel, with its arrays as float32 in C order.

    The file may have any name and be binary or HDF5. Layers of the older kinds (V1, V0) keep their old type names
    ("INNER_PRODUCT", "innerproduct"); the old four-number shapes are read, too. HDF5 holds names and arrays alone, and
    an array that layers share only with the first: with others it has no values, shape (0,), or is left out. Raises
    InputError, naming the file, if it is not a caffemodel, is cut short, or shape and data disagree.
    """
    if is_hdf5(path):
        return _read_hdf5(path)
    content = read_binary(path, "caffemodel", MAX_BINARY_BYTES)
    try:
        net = packed_message_class("NetParameter").FromString(content)
    except DecodeError:
        raise InputError(_not_a_caffemodel(path, len(content))) from None
    if not (net.layer or net.layers):
        raise InputError(_not_a_caffemodel(path, len(content)))
    return StoredNet(
        utf8(net.name, f"{path}: the net's name"), [_record(layer, path) for layer in (*net.layers, *net.layer)]
    )


def encode_caffemodel(net_name: str, layers: Iterable[LayerRecord]) -> bytes:
    """The file's bytes: every layer with name, type, bottoms, tops and its blobs as shape and packed floats.
    Raises InputError above protobuf's limit of 2 GB."""
    net = packed_message_class("NetParameter")(name=net_name)
    size_bytes = 0
    for record in layers:
        layer = net.layer.add(name=record.name, type=record.type, bottom=record.bottoms, top=record.tops)
        for array in record.blobs:
            size_bytes += array.nbytes
            if size_bytes > MAX_BINARY_BYTES:
                raise InputError(
                    f"net '{net_name}' has more than 2 GB of weights, the limit of a caffemodel; "
                    "use its HDF5 form (.caffemodel.h5, or snapshot_format: HDF5 in the solver)"
                )
            encode_blob(layer.blobs.add(), array)
    return bytes(net.SerializeToString(deterministic=True))


def encode_caffemodel_hdf5(layers: Iterable[LayerRecord]) -> bytes:
    """The bytes of the HDF5 form: group `data`, in it a group for each layer, in it the arrays by number.
    Caffe cannot read a layer whose name has a slash from this form: the slash divides groups."""
    content = bytearray()
    with made_in_memory(content) as file:
        data = file.create_group("data")
        for record in layers:
            if {"", "."} & set(record.name.split("/")):  # HDF5 would put it elsewhere
                if record.blobs:
                    raise ValueError(f"layer {record.name!r} has '.' or nothing before or after a slash")
                continue
            group = data.require_group(record.name)
            for index, array in enumerate(record.blobs):
                group.create_dataset(str(index), data=np.asarray(array, "<f4", order="C"))
    return bytes(content)


def _read_hdf5(path: Path) -> StoredNet:
    layers: list[LayerRecord] = []
    with open_hdf5(path, "caffemodel") as file:
        for name, group in holders(group_of(file, "data", str(path)), str(path)).items():
            where = f"{path}: layer '{name}'"
            held = {int(member) for member in group if member.isdecimal()}
            length = max(held, default=-1) + 1
            if length - len(held) > _MOST_ABSENT:
                raise InputError(f"{where}: has the arrays {sorted(held)}; those before are missing")
            if held:
                blobs = [array_of(group, str(i), where) if i in held else _ABSENT for i in range(length)]
                layers.append(LayerRecord(name, "", (), (), blobs))
    if not layers:
        raise InputError(f"{path}: holds no weights; give the .caffemodel.h5 of a snapshot, not a .solverstate.h5")
    return StoredNet("", layers)


def _record(layer: Message, path: Path) -> LayerRecord:
    is_v1 = layer.DESCRIPTOR.name == "V1LayerParameter"
    inner = layer.layer if is_v1 and layer.HasField("layer") else layer
    name = utf8(inner.name, f"{path}: a layer's name")
    where = f"{path}: layer '{name}'"
    kind = _V1_TYPES.values_by_number[inner.type].name if isinstance(inner.type, int) else utf8(inner.type, where)
    bottoms, tops = (tuple(utf8(blob, where) for blob in blobs) for blobs in (layer.bottom, layer.top))
    blobs = [decode_blob(blob, f"{where}, blob {i}") for i, blob in enumerate(inner.blobs)]
    return LayerRecord(name, kind, bottoms, tops, blobs)


def _not_a_caffemodel(path: Path, num_bytes: int) -> str:
    return (
        f"{path}: {num_bytes} bytes that are not a caffemodel, or one that was cut short; "
        "give the .caffemodel of a snapshot, not a .solverstate or a .prototxt"
    )
