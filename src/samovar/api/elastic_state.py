"""The state that a worker of an elastic job hands to those that come: a file in memory, and a few numbers as JSON."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from samovar.core.host import create_empty
from samovar.frontends.torch.neighbours import state_of
from samovar.membership.rounds import Given

_BUFFER = "buffer/"
_STRATEGY = "strategy/"
_WEIGHTS = "weights"


def packed(state: Given) -> tuple[dict[str, Any], int]:
    """Numbers, and the descriptor of a new file with the tensors in safetensors' format, which the caller owns."""
    numbers = {name: value for name, value in state["strategy"].items() if not isinstance(value, np.ndarray)}
    arrays = {f"{_STRATEGY}{name}": value for name, value in state["strategy"].items() if isinstance(value, np.ndarray)}
    tensors = {name: torch.from_numpy(value) for name, value in {**arrays, _WEIGHTS: state["weights"]}.items()}
    # Copies: buffers may share a tensor, which safetensors refuses.
    copies = {name: buffer.detach().to("cpu", copy=True) for name, buffer in state["buffers"].items()}
    buffers = {f"{_BUFFER}{name}": copy.contiguous() for name, copy in copies.items()}
    data = memoryview(safetensors.torch.save({**tensors, **buffers}))
    descriptor = create_empty()
    while data:
        data = data[os.write(descriptor, data) :]
    return {"strategy": numbers, "replica": state["replica"]}, descriptor


def unpacked(content: Mapping[str, Any], descriptor: int) -> Given:
    """The state again. The descriptor stays the caller's."""
    size = os.fstat(descriptor).st_size
    data = bytearray(size)
    view, start = memoryview(data), 0
    while start < size:
        start += os.preadv(descriptor, [view[start:]], start)
    tensors = safetensors.torch.load(bytes(data))
    weights = tensors.pop(_WEIGHTS).numpy()
    buffers = {name.removeprefix(_BUFFER): value for name, value in tensors.items() if name.startswith(_BUFFER)}
    arrays = {
        name.removeprefix(_STRATEGY): value.numpy() for name, value in tensors.items() if name.startswith(_STRATEGY)
    }
    return {
        "weights": weights,
        "strategy": {**content["strategy"], **arrays},
        "buffers": buffers,
        "replica": content["replica"],
    }


@torch.no_grad()
def take_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Take the values of buffers, and of parameters that nothing trains. A cache may have another size here."""
    own, saved = {**dict(model.named_parameters()), **dict(model.named_buffers())}, state_of(model)
    for name, value in buffers.items():
        if name in saved or (name in own and own[name].shape == value.shape):
            own[name].copy_(value)
