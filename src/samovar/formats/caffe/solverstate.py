"""`.solverstate`: iteration and momentum of a Caffe run; the weights lie in the caffemodel it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from samovar.core.errors import InputError
from samovar.formats.caffe.blob import MAX_BINARY_BYTES, decode_blob, encode_blob
from samovar.formats.caffe.files import read_binary
from samovar.formats.caffe.schema import packed_message_class


@dataclass(frozen=True, slots=True)
class SolverState:
    """`history` has one float32 array a parameter in the net's order (two for Adam and AdaDelta)."""

    iteration: int
    learned_net: str
    history: Sequence[npt.NDArray[np.float32]]
    current_step: int = 0


def read_solverstate(path: Path) -> SolverState:
    """Read the file; raises InputError, naming it, where it is no solverstate, is cut short or is damaged."""
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
    return SolverState(message.iter, message.learned_net, history, message.current_step)


def encode_solverstate(state: SolverState) -> bytes:
    """The file's bytes, as Caffe reads them."""
    message = packed_message_class("SolverState")(
        iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step
    )
    for array in state.history:
        encode_blob(message.history.add(), array)
    content: bytes = message.SerializeToString(deterministic=True)
    return content
