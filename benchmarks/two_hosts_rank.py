"""One rank on its own host: Samovar and DistributedDataParallel (gloo) on the same nets, links and data, in turn.

    two_hosts_rank.py speed OUT       samples/s of the AlexNet shape
    two_hosts_rank.py gradients OUT   the same where both exchange gradients: DDP, sync, sync with bf16
    two_hosts_rank.py accuracy OUT    seconds of training until LeNet reaches an accuracy on MNIST

Started with torchrun's variables; rank 0 writes what it measured to OUT, as JSON.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_nets import alexnet, lenet

import samovar
from samovar.formats.idx import parse_idx
from samovar.formats.packed import read_unpacked

STRATEGY = {"strategy": "sync-easgd", "sync_period_steps": 8, "overlap": "period"}
PERIOD = 8
TIMEOUT_S = 600.0


Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Samovar:
    """A strategy of Samovar; `sync-easgd`, its exchange spread over the period, where none is given."""

    def __init__(self, model: nn.Module, rate: float, batches: Batches, **strategy: object) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        self.model = model
        self.replica = samovar.replicate(model, optimizer, timeout_s=TIMEOUT_S, **(strategy or STRATEGY))
        self._optimizer = optimizer
        self._batches = batches

    def step(self) -> None:
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        self.replica.backward(F.cross_entropy(self.model(images), labels))
        self.replica.step()

    def settle(self) -> None:
        """Complete the exchange under way, so that the link is free for the other side."""
        with self.replica.evaluating():
            pass

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        with self.replica.evaluating():
            return accuracy(self.model, images, labels)


class Ddp:
    """The same loop with DistributedDataParallel."""

    def __init__(self, model: nn.Module, rate: float, batches: Batches, bucket_mib: int = 25) -> None:
        self.model = DistributedDataParallel(model, bucket_cap_mb=bucket_mib)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self._batches = batches

    def step(self) -> None:
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()
        self._optimizer.step()

    def settle(self) -> None:
        """Nothing is under way after a step."""

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        return accuracy(self.model.module, images, labels)


Side = Samovar | Ddp


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        correct = sum(
            int((model(part).argmax(1) == truth).sum())
            for part, truth in zip(images.split(1000), labels.split(1000), strict=True)
        )
    return correct / len(labels)


def random_images(rank: int) -> Batches:
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(16, 3, 227, 227, generator=generator)
    labels = torch.randint(0, 1000, (16,), generator=generator)
    while True:
        yield images, labels


def seconds(steps: int, side: Side) -> float:
    started_s = time.perf_counter()
    for _ in range(steps):
        side.step()
    return time.perf_counter() - started_s


def block(side: Side, warm_steps: int, steps: int) -> float:
    """Samples per second of both ranks over `steps` steps; a full period goes before, an unfinished exchange after."""
    dist.barrier()
    seconds(warm_steps, side)
    rate = 2 * 16 * steps / seconds(steps, side)
    side.settle()
    return rate


def speed(pairs: int, ddp_steps: int) -> dict[str, list[float]]:
    torch.manual_seed(1)
    rank = dist.get_rank()
    ours, theirs = Samovar(alexnet(), 1e-4, random_images(rank)), Ddp(alexnet(), 1e-4, random_images(rank))
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(pairs):
        rates["ours"].append(block(ours, PERIOD, 2 * PERIOD))
        rates["theirs"].append(block(theirs, 1, ddp_steps))
    return rates


def gradients(pairs: int, steps: int, codec: str, bucket_mib: int) -> dict[str, list[float]]:
    """Samples/s where gradients are exchanged: `sync` (compressed by a codec, or "none") and DDP, in turn."""
    compression = {} if codec == "none" else {"compress": codec, "always_compresses": True}
    sides: dict[str, Side] = {}
    for name, make in {
        "ours": partial(Samovar, strategy="sync", **compression),
        "theirs": partial(Ddp, bucket_mib=bucket_mib),
    }.items():
        torch.manual_seed(1)
        sides[name] = make(alexnet(), 1e-4, random_images(dist.get_rank()))
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(pairs):
        for name, side in sides.items():
            rates[name].append(block(side, 1, steps))
    for name, side in sides.items():
        require_equal_ranks(name, side.model)
    return rates


def require_equal_ranks(name: str, model: nn.Module) -> None:
    """Both ranks must end with the same bits, and finite ones."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        assert parameter.isfinite().all(), name
        digest.update(parameter.detach().numpy().tobytes())
    mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    theirs = mine.clone()
    dist.broadcast(theirs, 0)
    assert torch.equal(mine, theirs), f"{name}: the ranks' weights differ"


class Mnist:
    """Training batches of this rank, and the test set."""

    def __init__(self, folder: Path) -> None:
        self._images, self._labels = self._read(folder, "train")
        self.test = self._read(folder, "t10k")

    def batches(self, rank: int, seed: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self._labels), generator=generator)[rank::2]
            for part in order.split(64)[:-1]:
                yield self._images[part], self._labels[part]

    @staticmethod
    def _read(folder: Path, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = Mnist._array(folder, f"{kind}-images-idx3-ubyte", 3)
        labels = Mnist._array(folder, f"{kind}-labels-idx1-ubyte", 1)
        return torch.from_numpy(images).unsqueeze(1).float() / 256, torch.from_numpy(labels).long()

    @staticmethod
    def _array(folder: Path, name: str, num_dimensions: int) -> npt.NDArray[np.uint8]:
        path = next(folder.glob(f"{name}*"))
        return parse_idx(read_unpacked(path, 1 << 30), path.name, num_dimensions).copy()


def seconds_to(goal: float, side: Side, mnist: Mnist) -> tuple[float, int]:
    """Training seconds, and steps, until the accuracy is reached; tested every 100 steps, which is not counted."""
    spent_s, steps = 0.0, 0
    reached = torch.zeros(1)
    while not reached:
        assert steps < 6000, f"{type(side).__name__} does not reach {goal}"
        dist.barrier()
        spent_s += seconds(100, side)
        steps += 100
        reached = torch.tensor([float(side.accuracy(*mnist.test) >= goal)])
        dist.broadcast(reached, 0)
    side.settle()
    return spent_s, steps


def time_to_accuracy(goal: float, folder: Path, seeds: int) -> dict[str, list[float]]:
    mnist = Mnist(folder)
    rank = dist.get_rank()
    found: dict[str, list[float]] = {"ours": [], "theirs": [], "our steps": [], "their steps": []}
    for seed in range(seeds):
        torch.manual_seed(seed)
        start = lenet().state_dict()
        sides: list[tuple[str, str, Callable[..., Side]]] = [
            ("ours", "our steps", Samovar),
            ("theirs", "their steps", Ddp),
        ]
        for name, steps_name, side in sides:
            model = lenet()
            model.load_state_dict(start)
            spent_s, steps = seconds_to(goal, side(model, 0.01, mnist.batches(rank, seed)), mnist)
            found[name].append(spent_s)
            found[steps_name].append(steps)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["speed", "gradients", "accuracy"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--ddp-steps", type=int, default=2)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--bucket-mib", type=int, default=25)
    parser.add_argument("--goal", type=float, default=0.985)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Not the port of the variables, where Samovar's ranks meet.
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{master}:{port}",
        rank=int(os.environ["RANK"]),
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    if given.task == "speed":
        found = speed(given.pairs, given.ddp_steps)
    elif given.task == "gradients":
        found = gradients(given.pairs, given.ddp_steps, given.codec, given.bucket_mib)
    else:
        found = time_to_accuracy(given.goal, given.data, given.pairs)
    if dist.get_rank() == 0:
        given.out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
