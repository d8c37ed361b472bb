"""Stochastic pooling: one value of each window, drawn with a chance in proportion to it.

Legend: N samples, C channels, K values of a window, L windows.
Reference: Zeiler and Fergus, Stochastic pooling for regularization, 2013.
"""

import torch
import torch.nn.functional as F

_LEAST = torch.finfo(torch.float32).tiny


def windows_of(
    x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int], output: tuple[int, int]
) -> torch.Tensor:
    """(N, C, K, L): the values of each window in row-major order, zeros where it leaves the image (N, C, H, W)."""
    needed = [(out - 1) * step + size for out, step, size in zip(output, stride, kernel, strict=True)]
    below, right = (max(0, need - have) for need, have in zip(needed, x.shape[2:], strict=True))
    padded = F.pad(x, (0, right, 0, below))[:, :, : needed[0], : needed[1]]
    columns = F.unfold(padded, kernel, stride=stride)
    return columns.reshape(len(x), x.shape[1], kernel[0] * kernel[1], -1)


def drawn(windows: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """(N, C, L): of each window the first value at which the sum so far reaches `uniforms` (N, C, L) of the whole."""
    sums = windows.detach().cumsum(2)
    index = (sums < uniforms[:, :, None] * sums[:, :, -1:]).sum(2, keepdim=True)
    return windows.gather(2, index.clamp_max(windows.shape[2] - 1)).squeeze(2)


def expected(windows: torch.Tensor) -> torch.Tensor:
    """(N, C, L): sum(v^2) / sum(v) of each window, the mean of what training draws; 0 of a window of zeros."""
    return windows.square().sum(2) / (windows.sum(2) + _LEAST)
