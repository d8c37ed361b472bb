"""Small nets of the shapes that people train, each with its data and loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    """A language model whose output matrix is its embedding."""

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
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.encoder(self.embedding(tokens) + self.position[:length], mask=mask, is_causal=True))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A net, its loss, and a batch from a generator of random numbers."""

    net: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    batch: Callable[[torch.Generator], Batch]

    def batches(self, rank: int, count: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1000 + rank)
        return (self.batch(generator) for _ in range(count))


def classify(net: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def predict_next(net: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())


def _images(generator: torch.Generator) -> Batch:
    return torch.randn(4, 3, 12, 12, generator=generator), torch.randint(0, 10, (4,), generator=generator)


def _text(generator: torch.Generator) -> Batch:
    tokens = torch.randint(0, 40, (4, 13), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def _series(generator: torch.Generator) -> Batch:
    return torch.randn(8, 10, 8, generator=generator), torch.randint(0, 5, (8,), generator=generator)


CASES = {
    "resnet": Case(resnet20, classify, _images),
    "transformer": Case(lambda: Transformer(40, 32, 4, 2, 12), predict_next, _text),
    "lstm": Case(Lstm, classify, _series),
}

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=1e-3),
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01),
}
