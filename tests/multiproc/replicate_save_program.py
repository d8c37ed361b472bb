"""A script that saves after every step, while it makes the next one. It tells each step whose file is complete."""

import sys

import torch
from torch import nn

import samovar

SIZE = 1 << 16


def main(path: str) -> None:
    model = nn.Linear(1, SIZE, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    replica = samovar.replicate(model, optimizer, "local-sgd")
    for step in range(1, 100_000):
        optimizer.zero_grad()
        replica.backward(-model.weight.sum())  # each step adds 1 to every weight
        replica.step()
        if step > 1:
            replica.wait_for_save()
            if replica.is_first:
                sys.stdout.write(f"{step - 1}\n")
                sys.stdout.flush()
        replica.save(path, step, wait=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
