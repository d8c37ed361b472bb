"""The state that a new worker of an elastic job gets, as a file in memory."""

import os

import numpy as np
import torch

from samovar.api.elastic_state import packed, unpacked


def test_buffers_that_share_a_tensor_come_to_a_new_worker() -> None:
    """Each block of a transformer registers the same mask."""
    mask = torch.tril(torch.ones(4, 4))
    buffers = {"first.mask": mask[None], "second.mask": mask[None, None]}
    content, descriptor = packed({"weights": np.ones(4, np.float32), "strategy": {}, "replica": {}, "buffers": buffers})
    found = unpacked(content, descriptor)["buffers"]
    os.close(descriptor)
    assert all(torch.equal(found[name], buffer) for name, buffer in buffers.items())
