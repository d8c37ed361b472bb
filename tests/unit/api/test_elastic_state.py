"""The state that a new worker of an elastic job gets, as a file in memory."""

import os

import numpy as np
import torch

from samovar.api.state import packed, take_buffers, unpacked


def test_buffers_that_share_a_tensor_come_to_a_new_worker() -> None:
    """Each block of a transformer registers the same mask."""
    mask = torch.tril(torch.ones(4, 4))
    buffers = {"first.mask": mask[None], "second.mask": mask[None, None]}
    content, descriptor = packed({"weights": np.ones(4, np.float32), "strategy": {}, "replica": {}, "buffers": buffers})
    found = unpacked(content, descriptor)["buffers"]
    os.close(descriptor)
    assert all(torch.equal(found[name], buffer) for name, buffer in buffers.items())


def test_a_cache_that_has_grown_elsewhere_stays_as_it_is() -> None:
    model, cache = torch.nn.BatchNorm1d(2), torch.zeros(2)
    model.register_buffer("cache", cache, persistent=False)
    take_buffers(model, {"running_mean": torch.ones(2), "weight": torch.full((2,), 3.0), "cache": torch.ones(8)})
    found = [tensor.tolist() for tensor in (*model.buffers(), model.weight, cache)]
    assert found == [[1, 1], [1, 1], 0, [0, 0], [3, 3], [0, 0]]  # mean, variance, number of batches, cache
