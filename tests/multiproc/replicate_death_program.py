"""One rank of a job that trains with `sync` until one rank ends: `replicate_death_program.py HOW VICTIM STEP`.

Others print the error that ends them.
"""

import os
import signal
import sys
import time

import torch
import torch.nn.functional as F

import samovar
from samovar.core.errors import SamovarError
from tests.multiproc.replicate_nets import batches, perceptron

TIMEOUT_S = 120.0


class BadData(Exception):
    """What a user's own code may raise."""


def end(how: str, rank: int) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "os._exit":
        os._exit(3)
    if how == "exit":
        sys.exit(0)
    raise BadData(f"sample 7 of rank {rank} is bad\nand this is a second line")


def main() -> None:
    how, victim, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    replica = samovar.replicate(model, optimizer, timeout_s=TIMEOUT_S)
    print(f"process {os.getpid()}", flush=True)
    for number, (x, y) in enumerate(batches(replica.rank, 1_000_000)):
        if replica.rank == victim and number == step:
            print(f"ended at {time.time()}", flush=True)
            end(how, replica.rank)
        optimizer.zero_grad()
        replica.backward(F.cross_entropy(model(x), y))
        replica.step()


if __name__ == "__main__":
    try:
        main()
    except SamovarError as error:
        print(f"{type(error).__name__} at {time.time()}: {error}", flush=True)
        sys.exit(error.exit_code)
