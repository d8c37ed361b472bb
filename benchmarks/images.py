"""Training batches of a rank and its part of a test set: MNIST, scikit-learn's digits, or random numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from torch import nn

from samovar.data.digits import enlarge, split
from samovar.data.published import parse_idx, read_unpacked

DIGITS = "digits"
_TEST_BATCH = 1000
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
Labelled = tuple[torch.Tensor, torch.Tensor]


def random_images(rank: int, batch: int, shape: tuple[int, ...], num_classes: int) -> Batches:
    """The same batch for ever."""
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(batch, *shape, generator=generator)
    labels = torch.randint(0, num_classes, (batch,), generator=generator)
    while True:
        yield images, labels


@dataclass(frozen=True)
class Images:
    """Images of 28 x 28, values 0 to 1, and their labels."""

    train: Labelled
    test: Labelled

    @classmethod
    def of(cls, data: str) -> "Images":
        """Of `DIGITS`, or of the folder of MNIST's four IDX files."""
        if data == DIGITS:
            found = load_digits()
            images, labels = enlarge(found.images.astype(np.int64)), found.target
            return cls(*(_labelled(images[part], labels[part]) for part in split(labels)))
        return cls(*(_labelled(*_read(Path(data), kind)) for kind in ("train", "t10k")))

    def batches(self, rank: int, world_size: int, batch: int, seed: int) -> Batches:
        """This rank's samples, in another order each epoch."""
        images, labels = self.train
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(labels), generator=generator)[rank::world_size]
            for part in order.split(batch)[:-1]:
                yield images[part], labels[part]

    @torch.no_grad()
    def correct(self, net: nn.Module, rank: int, world_size: int) -> list[int]:
        """How many test images of this rank's part the net names right, and how many there are."""
        images, labels = (values[rank::world_size] for values in self.test)
        parts = zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True)
        return [sum(int((net(part).argmax(1) == truth).sum()) for part, truth in parts), len(labels)]


def _labelled(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]) -> Labelled:
    return torch.from_numpy(images.copy()).unsqueeze(1).float() / 256, torch.from_numpy(labels.copy()).long()


def _read(folder: Path, kind: str) -> list[npt.NDArray[np.uint8]]:
    parts = ((f"{kind}-images-idx3-ubyte", 3), (f"{kind}-labels-idx1-ubyte", 1))
    return [
        parse_idx(read_unpacked(next(folder.glob(f"{name}*")), 1 << 30), name, dimensions) for name, dimensions in parts
    ]
