"""Nets of the shapes that people train, as a torch user writes them."""

import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
from ddp_nets import Transformer, resnet20

__all__ = ["Transformer", "alexnet", "cifar10_full", "lenet", "resnet20"]


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


def lenet() -> nn.Sequential:
    """LeCun's net as Caffe ships it: 431 k parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


def cifar10_full() -> nn.Sequential:
    """Caffe's net for CIFAR-10, `cifar10_full`: 90 k parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU(), nn.LocalResponseNorm(3, 5e-5),
        nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(3, 5e-5),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip
