"""Handwritten digits with a small convolutional net on any number of ranks: mnist_plain.py with a few lines changed.

    python examples/torch/mnist.py                        scikit-learn's 1,797 digits, one rank
    python examples/torch/mnist.py --data FOLDER          MNIST, its four published files
    samovar run -n 4 examples/torch/mnist.py              four ranks; torchrun, mpiexec and srun work too

--strategy takes any name. async-sgd, async-msgd and hogwild-sgd need --momentum 0. At a center an epoch shows the
center of that moment, and in the end all ranks have the same weights.

With --checkpoint FOLDER the script saves after each epoch, and resumes when it is started again, with any number of
ranks. SIGUSR1 (a scheduler's "your time is nearly over") ends it after the epoch, with exit code 75. The model has a
buffer that says whether one came. Ranks in step evaluate with the mean of their buffers, so all of them end after the
same epoch.
"""

import argparse
import gzip
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar

EXIT_PREEMPTED = 75


def mnist(folder: Path, name: str) -> TensorDataset:
    """The images (N, 1, 28, 28) and labels (N,) of "train" or "t10k": IDX files, plain or gzipped."""
    arrays = []
    for kind, header_bytes in (("images-idx3", 16), ("labels-idx1", 8)):
        path = folder / f"{name}-{kind}-ubyte"
        content = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
        arrays.append(torch.from_numpy(np.frombuffer(content, np.uint8, offset=header_bytes).copy()))
    return TensorDataset(arrays[0].reshape(-1, 1, 28, 28) / 255, arrays[1].long())


def digits() -> tuple[TensorDataset, TensorDataset]:
    """scikit-learn's digits as images (N, 1, 24, 24), a fifth of them for the test."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - MNIST does without scikit-learn

    bundled = load_digits()
    images = nn.functional.interpolate(torch.tensor(bundled.images[:, None] / 16, dtype=torch.float32), scale_factor=3)
    labels = torch.tensor(bundled.target)
    is_test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~is_test], labels[~is_test]), TensorDataset(images[is_test], labels[is_test])


def net() -> nn.Module:
    """LeNet's shape, for images of 24x24 or 28x28 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2, ceil_mode=True)),
        *(nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(800, 100), nn.ReLU(), nn.Linear(100, 10)),
    )


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """The share of the test images that `model` recognizes."""
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in DataLoader(test, 200))
    return right / len(test)


class Checkpoint:
    """Saves `parts` in folder/epoch_<number>/rank_<rank>_of_<ranks>.pt, and keeps the last two epochs."""

    def __init__(self, folder: Path | None, *parts, rank: int = 0, world_size: int = 1) -> None:
        self.folder, self.parts, self.rank, self.world_size = folder, parts, rank, world_size

    def path(self, epoch: int, rank: int, world_size: int) -> Path:
        return self.folder / f"epoch_{epoch}" / f"rank_{rank}_of_{world_size}.pt"

    def save(self, epoch: int) -> None:
        """Save the whole epoch or nothing, even if this process is killed."""
        if self.folder is not None:
            path = self.path(epoch, self.rank, self.world_size)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save([part.state_dict() for part in self.parts], path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
            for old in self.folder.glob(f"epoch_{epoch - 2}/rank_{self.rank}_of_*.pt"):
                old.unlink()

    def load(self) -> int:
        """Load the last epoch that all ranks of its run saved, also if these were more or fewer. Gives its number."""
        paths = [] if self.folder is None else list(self.folder.glob("epoch_*/rank_*_of_*.pt"))
        saved = Counter((int(path.parent.name[6:]), int(path.stem.partition("_of_")[2])) for path in paths)
        complete = [epoch_and_size for epoch_and_size, count in saved.items() if count == epoch_and_size[1]]
        if not complete:
            if paths and self.rank == 0:
                print(f"no epoch in {self.folder} was saved by all ranks; training begins with the first epoch")
            return 0
        epoch, world_size = max(complete)
        states = torch.load(self.path(epoch, self.rank % world_size, world_size), weights_only=True)
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
        if world_size != self.world_size and self.rank == 0:
            print(f"epoch {epoch} was saved by {world_size} ranks; {self.world_size} continue")
        return epoch


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder of MNIST's four files")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--strategy", default="sync", help="how ranks share what they learn")
    parser.add_argument("--checkpoint", type=Path, help="folder to save to, and to resume from")
    arguments = parser.parse_args()
    stop_signals = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: stop_signals.append(number))

    torch.manual_seed(1)
    train, test = digits() if arguments.data is None else [mnist(arguments.data, name) for name in ("train", "t10k")]
    model = net()
    model.register_buffer("stop_asked", torch.zeros(()))
    optimizer = torch.optim.SGD(model.parameters(), arguments.learning_rate, arguments.momentum)
    replica = samovar.replicate(model, optimizer, strategy=arguments.strategy)
    batches = replica.shard(DataLoader(train, arguments.batch_size, shuffle=True))
    checkpoint = Checkpoint(arguments.checkpoint, replica, rank=replica.rank, world_size=replica.world_size)
    for epoch in range(checkpoint.load(), arguments.epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            replica.backward(loss)
            replica.step()
        model.get_buffer("stop_asked").fill_(bool(stop_signals))
        with torch.no_grad(), replica.evaluating():
            stops = bool(model.get_buffer("stop_asked") > 0)
            if replica.is_first:
                print(f"epoch {epoch + 1}: accuracy {accuracy(model, test):.4f} on {len(test)} test images")
        model.get_buffer("stop_asked").zero_()  # a run that resumes begins without
        checkpoint.save(epoch + 1)
        if stops:
            return EXIT_PREEMPTED
    replica.finish()
    if replica.is_first:
        print(f"in the end: accuracy {accuracy(model, test):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
