"""A training loop that continues from its last save when an engine starts it again. All engines start it:

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/engines/loop.py
    mpiexec -n 2 python examples/engines/loop.py
    python examples/engines/ray_loop.py                    Ray starts two workers that call `train`

If a worker is lost, the others end, and the engine starts all of them again. The file of --saved must be in a folder
that all hosts share.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar

SAVE_EVERY_STEPS = 50


def train(saved: Path, epochs: int) -> None:
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with samovar.replicate(model, optimizer) as replica:
        batches = replica.shard(DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True))
        if saved.exists():
            replica.load(saved)
            if replica.is_first:
                print(f"continues after step {replica.step_count}", flush=True)
        while batches.epoch < epochs:
            for x, y in batches:
                optimizer.zero_grad()
                replica.backward(nn.functional.cross_entropy(model(x), y))
                replica.step()
                if replica.step_count % SAVE_EVERY_STEPS == 0:
                    replica.save(saved)
        replica.save(saved)
        if replica.is_first:
            right = int((model(images).argmax(1) == labels).sum())
            print(f"step {replica.step_count}: {right} of {len(labels)} digits are right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--saved", type=Path, default=Path("saved.safetensors"))
    parser.add_argument("--epochs", type=int, default=10)
    train(**vars(parser.parse_args()))
