"""Nets of the shapes that people train, as a torch user writes them."""

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """Two 3x3 convolutions around a shortcut, with batch normalization."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.normalization1 = nn.BatchNorm2d(channels)
        self.convolution2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.normalization2 = nn.BatchNorm2d(channels)
        self.padding = channels - in_channels
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.normalization1(self.convolution1(x)))
        hidden = self.normalization2(self.convolution2(hidden))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.padding))
        return F.relu(hidden + shortcut)


def resnet20(classes: int = 10) -> nn.Sequential:
    """He et al.'s 20 layers for CIFAR-10: 0.27 M parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for width in (16, 32, 64):
        for block in range(3):
            layers.append(Residual(channels, width, 2 if block == 0 and width > 16 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class Transformer(nn.Module):
    """A language model whose output matrix is its embedding; 10 M parameters at (8192, 256, 8, 10, 64)."""

    def __init__(self, tokens: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.encoder(self.embedding(tokens) + self.position[:length], mask=mask, is_causal=True))


def alexnet() -> nn.Sequential:
    """Krizhevsky's net in Caffe's shape, without normalization and dropout: 61 M parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, stride=4), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip
