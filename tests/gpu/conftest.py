"""The libraries of the GPU are loaded before the first test: they keep descriptors for as long as the process lives."""

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture(scope="session", autouse=True)
def _loaded_gpu(_loaded: None) -> None:
    if torch.cuda.is_available():
        images = torch.ones(2, 3, 8, 8, device="cuda", requires_grad=True)
        F.linear(F.conv2d(images, images).flatten(1), torch.ones(3, 2, device="cuda")).sum().backward()
        torch.cuda.synchronize()
