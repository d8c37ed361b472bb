"""A Caffe net as a torch user writes it: stock modules in NCHW, each blob a tensor by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.spec import LayerSpec

Maker = Callable[[Any, tuple[int, ...]], nn.Module]
_WITHIN_CHANNEL, _AVERAGE = 1, 1  # LRNParameter.NormRegion, PoolingParameter.PoolMethod


class Within(nn.Module):
    """LRN within channels: avg_pool2d of the squares."""

    def __init__(self, size: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = size, alpha, beta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (1 + self.alpha * F.avg_pool2d(x * x, self.size, 1, self.size // 2)) ** self.beta


class Concatenation(nn.Module):
    def forward(self, *bottoms: torch.Tensor) -> torch.Tensor:
        return torch.cat(bottoms, 1)


class Loss(nn.Module):
    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(scores, labels)


class Twin(nn.Module):
    """The layers of a training net; `forward` gives the weighted sum of its losses."""

    def __init__(self, specs: Sequence[LayerSpec], data_shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.specs = [spec for spec in specs if spec.type in _MAKERS]
        unknown = {spec.type for spec in specs} - set(_MAKERS) - {"Data", "Accuracy"}
        if unknown:
            raise SystemExit(f"the torch side of the benchmark has no layers {sorted(unknown)}")
        self.inputs = tuple(data_shapes)
        self.parts = nn.ModuleList()
        blobs = {
            name: torch.zeros(shape, dtype=torch.int64 if len(shape) == 1 else torch.float32)
            for name, shape in data_shapes.items()
        }
        with torch.no_grad():
            for spec in self.specs:
                bottoms = [blobs[name] for name in spec.bottoms]
                part = _MAKERS[spec.type](spec.message, tuple(bottoms[0].shape))
                self.parts.append(part)
                blobs[spec.tops[0]] = part(*bottoms)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        blobs = {name: batch[name] for name in self.inputs}
        losses = []
        for spec, part in zip(self.specs, self.parts, strict=True):
            blobs[spec.tops[0]] = top = part(*[blobs[name] for name in spec.bottoms])
            if spec.type == "SoftmaxWithLoss":
                weight = spec.message.loss_weight[0] if spec.message.loss_weight else 1.0
                losses.append(top if weight == 1 else top * weight)
        return sum(losses[1:], losses[0])


def _convolution(message: Any, shape: tuple[int, ...]) -> nn.Module:
    p = message.convolution_param
    (kernel,), stride, pad = p.kernel_size, next(iter(p.stride), 1), next(iter(p.pad), 0)
    return nn.Conv2d(shape[1], p.num_output, kernel, stride, pad, groups=p.group, bias=p.bias_term)


def _inner_product(message: Any, shape: tuple[int, ...]) -> nn.Module:
    p = message.inner_product_param
    linear = nn.Linear(torch.Size(shape[1:]).numel(), p.num_output, p.bias_term)
    return linear if len(shape) == 2 else nn.Sequential(nn.Flatten(), linear)


def _pooling(message: Any, shape: tuple[int, ...]) -> nn.Module:
    p = message.pooling_param
    kernel = shape[2] if p.global_pooling else p.kernel_size
    kind = nn.AvgPool2d if p.pool == _AVERAGE else nn.MaxPool2d
    return kind(kernel, p.stride, p.pad, ceil_mode=True)


def _normalization(message: Any, _shape: tuple[int, ...]) -> nn.Module:
    p = message.lrn_param
    if p.norm_region == _WITHIN_CHANNEL:
        return Within(p.local_size, p.alpha, p.beta)
    return nn.LocalResponseNorm(p.local_size, p.alpha, p.beta, p.k)


def _activation(_message: Any, _shape: tuple[int, ...]) -> nn.Module:
    return nn.ReLU(inplace=True)


_MAKERS: dict[str, Maker] = {
    "Convolution": _convolution,
    "InnerProduct": _inner_product,
    "Pooling": _pooling,
    "LRN": _normalization,
    "ReLU": _activation,
    "Dropout": lambda message, _shape: nn.Dropout(message.dropout_param.dropout_ratio),
    "Concat": lambda _message, _shape: Concatenation(),
    "SoftmaxWithLoss": lambda _message, _shape: Loss(),
}
