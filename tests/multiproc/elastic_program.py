"""A worker of an elastic job: `elastic_program.py FOLDER STRATEGY STEPS [DOOMED]`.

It tells in FOLDER where it is and what it has seen. If its launcher's number is DOOMED, it stays in its third round
until somebody kills it. With TEST_PAUSE_S it pauses in each step, and begins when FOLDER/begin exists, or, with
TEST_NAME, when FOLDER/come-NAME does.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar

PERIOD, BATCH, NUM_SAMPLES, RATE = 4, 8, 480, 0.05


def data() -> TensorDataset:
    """Points of three classes; a fifth of the labels are wrong, so that the loss has a floor."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_SAMPLES, 6, generator=generator)
    labels = (x @ torch.randn(6, 3, generator=generator)).argmax(1)
    wrong = torch.rand(NUM_SAMPLES, generator=generator) < 0.2
    labels[wrong] = torch.randint(3, (int(wrong.sum()),), generator=generator)
    return TensorDataset(x, labels, torch.arange(NUM_SAMPLES))


class Teller:
    """Files in a folder, one for each kind and process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._progress = (folder / f"steps-{os.getpid()}").open("a", buffering=1)

    def tell(self, name: str, content: object) -> None:
        new = self.folder / f".{name}-{os.getpid()}"
        new.write_text(json.dumps(content))
        new.replace(self.folder / f"{name}-{os.getpid()}.json")

    def progress(self, step: int, world_size: int) -> None:
        """A line for each step: the step, the number of workers, and the time."""
        self._progress.write(f"{step} {world_size} {time.monotonic()}\n")


def main() -> None:
    folder, num_steps = Path(sys.argv[1]), int(sys.argv[3])
    strategy: Any = sys.argv[2]
    doomed = sys.argv[4:] == [os.environ["RANK"]]
    pause_s = float(os.environ.get("TEST_PAUSE_S", "0"))
    teller = Teller(folder)
    torch.manual_seed(int(os.environ["RANK"]))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    name, replicate = os.environ.get("TEST_NAME"), samovar.replicate  # which imports much
    teller.tell("there", {"worker": name or f"rank {os.environ['RANK']}"})
    while "TEST_PAUSE_S" in os.environ and not (folder / (f"come-{name}" if name else "begin")).exists():
        time.sleep(0.002)
    replica = replicate(model, optimizer, strategy, sync_period_steps=PERIOD)
    assert not replica._figures.is_foreseen, "its step is not that of a worker alone"
    first, seen = replica.step_count, []
    teller.tell("began", {"step": first, "worker": name})
    shard = replica.shard(DataLoader(data(), BATCH, shuffle=True, drop_last="TEST_PAUSE_S" in os.environ))
    while replica.step_count < num_steps:
        epoch = shard.epoch
        for x, y, numbers in shard:
            seen.append([epoch, replica.step_count, numbers.tolist()])
            if doomed and replica.step_count == 2 * PERIOD + 1:
                teller.tell("doomed", {"seen": seen})
                time.sleep(1000)
            time.sleep(pause_s)
            optimizer.param_groups[0]["lr"] = RATE * (1.0 - replica.step_count / num_steps)
            optimizer.zero_grad()
            replica.backward(nn.functional.cross_entropy(model(x), y))
            replica.step()
            teller.progress(replica.step_count, replica.world_size)
            if replica.step_count == num_steps:
                break
    replica.finish()
    x, y, _ = data().tensors
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model(x), y))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    state = {"step": replica.step_count, "world_size": replica.world_size, "loss": loss, "weights": weights}
    teller.tell("ended", {"seen": seen, **state})


if __name__ == "__main__":
    main()
