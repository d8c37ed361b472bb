"""A user's script whose first rank is busy for a while: `replicate_busy_program.py STRATEGY SECONDS [WHAT]`.

WHAT happens to that rank meanwhile: it is `stopped`, or `killed`; nothing without it.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import cast

import torch
from torch import nn

import samovar
from samovar.strategies.ours import StrategyName

TIMEOUT_S, START_S = 5.0, 100.0
SIGNALS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}


def replicated(strategy: StrategyName, timeout_s: float) -> tuple[nn.Linear, torch.optim.Optimizer, samovar.Replica]:
    torch.manual_seed(1)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    return model, optimizer, samovar.replicate(model, optimizer, strategy, timeout_s=timeout_s)


def main() -> None:
    strategy, seconds = cast(StrategyName, sys.argv[1]), float(sys.argv[2])
    replicated(strategy, START_S)[2].close()  # on a busy machine ranks start far apart
    model, optimizer, replica = replicated(strategy, TIMEOUT_S)
    for part in range(2):
        for _ in range(20):
            optimizer.zero_grad()
            replica.backward(model(torch.ones(2, 4)).sum())
            replica.step()
        if replica.is_first and part == 0:
            with replica.busy():
                Path("busy").write_text(str(os.getpid()))
                for what in sys.argv[3:]:
                    os.kill(os.getpid(), SIGNALS[what])
                time.sleep(seconds)
    replica.finish()
    print(f"rank {replica.rank} finished")


if __name__ == "__main__":
    main()
