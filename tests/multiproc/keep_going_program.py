"""A user's script at a center whose ranks are killed: `keep_going_program.py STRATEGY VICTIM LIVES [HOW]`.

Rank VICTIM kills itself in each of its first LIVES lives, or stops itself if HOW is `stops`. The others train until it
has finished.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import cast

import torch

import samovar
from samovar.strategies.ours import StrategyName

STEPS = 30


def main() -> None:
    strategy, victim, lives = cast(StrategyName, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    life = int(os.environ["SAMOVAR_LIFE"])
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    first = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    replica = samovar.replicate(model, optimizer, strategy)
    begins = "from the center" if not torch.equal(first, model.weight) else "at the start"
    print(f"life {life} of rank {replica.rank} begins {begins}")
    ended = Path("victim-ended")

    def step() -> None:
        optimizer.zero_grad()
        replica.backward(model(torch.ones(2, 4)).sum())
        replica.step()

    for number in range(STEPS):
        step()
        if replica.rank == victim and life < lives and number == STEPS // 2:
            os.kill(os.getpid(), signal.SIGSTOP if "stops" in sys.argv else signal.SIGKILL)
    if replica.rank == victim:
        ended.touch()
    while not ended.exists() and "lost" not in sys.argv:
        step()
        time.sleep(0.001)
    replica.finish()
    print(f"rank {replica.rank} finished")


if __name__ == "__main__":
    main()
