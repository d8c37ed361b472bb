"""A user's script that saves after each step, and resumes where all ranks saved: `replicate_restart_program.py KILLS`.

Rank 1 kills itself once in each of the first KILLS attempts. In the end each rank writes its weights.
"""

import os
import random
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar

EPOCHS, NUM_SAMPLES = 2, 60


def last_saved(world_size: int) -> int | None:
    steps = [int(path.stem.partition("_")[0]) for path in Path().glob("*_*.pt")]
    return max((step for step in steps if steps.count(step) == world_size), default=None)


def save(state: object, step: int, rank: int) -> None:
    new = Path(f".{rank}.new")
    torch.save(state, new)
    new.replace(f"{step}_{rank}.pt")


def main() -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    replica = samovar.replicate(model, optimizer)
    x = torch.arange(float(NUM_SAMPLES))[:, None] / NUM_SAMPLES
    shard = replica.shard(DataLoader(TensorDataset(x), batch_size=3, shuffle=True))
    step = last_saved(replica.world_size)
    if step is not None:
        replica.load_state_dict(torch.load(f"{step}_{replica.rank}.pt", weights_only=True))
    print(f"attempt {attempt} begins after step {replica.step_count}")
    killed_at = random.Random(attempt).randint(5 * attempt + 2, 5 * attempt + 5)
    for _ in range(shard.epoch, EPOCHS):
        for (batch,) in shard:
            optimizer.zero_grad()
            replica.backward((model(batch) - batch.sin()).square().mean())
            replica.step()
            if replica.rank == 1 and attempt < int(sys.argv[1]) and replica.step_count == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            save(replica.state_dict(), replica.step_count, replica.rank)
    replica.finish()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    Path(f"weights-{replica.rank}").write_bytes(weights)


if __name__ == "__main__":
    main()
