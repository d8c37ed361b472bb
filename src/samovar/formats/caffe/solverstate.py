"""`.solverstate` and `.solverstate.h5`: the state of a Caffe run; its weights are in the caffemodel that it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from samovar.core.errors import InputError
from samovar.formats.caffe import hdf5
from samovar.formats.caffe.blob import MAX_BINARY_BYTES, decode_blob, encode_blob
from samovar.formats.caffe.hdf5 import array_of, steps_of
from samovar.formats.caffe.schema import packed_message_class, read_binary, utf8


@dataclass(frozen=True, slots=True)
class SolverState:
    """`history` has one float32 array a parameter in the net's order.

    Adam and AdaDelta have two: the first ones of all parameters, then the second ones of all. `current_step` counts
    how often the policies `step` and `multistep` have lowered the rate so far.
    """

    iteration: int
    learned_net: str
    history: Sequence[npt.NDArray[np.float32]]
    current_step: int = 0


def read_solverstate(path: Path) -> SolverState:
    """Read the file, binary or HDF5, with any name.
    Raises InputError, naming it, if it is not a solverstate, is cut short or is damaged."""
    if hdf5.is_hdf5(path):
        return _read_hdf5(path)
    content = read_binary(path, "solverstate", MAX_BINARY_BYTES)
    message = packed_message_class("SolverState")()
    try:
        message.ParseFromString(content)
    except DecodeError:
        message.Clear()
    if not message.HasField("learned_net") or message.iter < 0:
        raise InputError(
            f"{path}: {len(content)} bytes that are not a solverstate, or one that was cut short; "
            "give the .solverstate of a snapshot, not its .caffemodel"
        )
    history = [decode_blob(blob, f"{path}: history blob {i}") for i, blob in enumerate(message.history)]
    learned_net = utf8(message.learned_net, f"{path}: the name of its weights")
    return SolverState(message.iter, learned_net, history, message.current_step)


def encode_solverstate(state: SolverState) -> bytes:
    """The bytes of the binary form, as Caffe reads them. Raises InputError above protobuf's limit of 2 GB."""
    size_bytes = sum(array.nbytes for array in state.history)
    if size_bytes > MAX_BINARY_BYTES:
        raise InputError(
            f"the histories have {size_bytes:,} bytes, and a binary solverstate holds 2 GB; "
            "use its HDF5 form (.solverstate.h5, or snapshot_format: HDF5 in the solver)"
        )
    message = packed_message_class("SolverState")(
        iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step
    )
    for array in state.history:
        encode_blob(message.history.add(), array)
    return bytes(message.SerializeToString(deterministic=True))


def encode_solverstate_hdf5(state: SolverState) -> bytes:
    """The bytes of the HDF5 form, as Caffe reads them."""
    content = bytearray()
    with hdf5.made_in_memory(content) as file:
        file.create_dataset("iter", data=np.array([state.iteration], "<i4"))
        hdf5.put_text(file, "learned_net", state.learned_net)
        file.create_dataset("current_step", data=np.array([state.current_step], "<i4"))
        history = file.create_group("history")
        for index, array in enumerate(state.history):
            history.create_dataset(str(index), data=np.asarray(array, "<f4", order="C"))
    return bytes(content)


def _read_hdf5(path: Path) -> SolverState:
    where = str(path)
    with hdf5.open_hdf5(path, "solverstate") as file:
        history = hdf5.group_of(file, "history", where)
        names = sorted(history, key=lambda name: (len(name), name))
        if names != [str(index) for index in range(len(names))]:
            raise InputError(f"{where}: has the histories {names[:5]}...; they must be numbered from 0")
        return SolverState(
            steps_of(file, "iter", where),
            hdf5.text_of(file, "learned_net", where),
            [array_of(history, name, f"{where}: history") for name in names],
            steps_of(file, "current_step", where),
        )
