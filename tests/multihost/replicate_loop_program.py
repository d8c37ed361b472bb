"""A rank of a user's loop: `replicate_loop_program.py STRATEGY TIMEOUT_S [STEPS STOPPED]`.

Prints a line of JSON after each step, and goes on until an exchange fails; with STEPS until it has made so many, and
rank STOPPED stops itself in the middle of them.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

import samovar
from samovar import _native
from samovar.core.errors import SamovarError

PERIOD_STEPS = 2


def main() -> None:
    _native.die_with_parent()
    torch.set_num_threads(1)
    strategy, timeout_s, (steps, stopped) = sys.argv[1], float(sys.argv[2]), map(int, sys.argv[3:] or (0, -1))
    numbers = range(steps) if steps else itertools.count()
    try:
        train(strategy, timeout_s, numbers, stopped, steps // 2)
    except SamovarError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def train(strategy: Any, timeout_s: float, numbers: Iterable[int], stopped: int, stops_at: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings: dict[str, Any] = {} if strategy == "sync" else {"sync_period_steps": PERIOD_STEPS}
    replica = samovar.replicate(model, optimizer, strategy=strategy, timeout_s=timeout_s, **settings)
    for number in numbers:
        optimizer.zero_grad()
        replica.backward(model(torch.full((4, 5), 1.0 + replica.rank)).square().mean())
        replica.step()
        print(json.dumps({"step": number}), flush=True)
        if (replica.rank, number) == (stopped, stops_at):
            os.kill(os.getpid(), signal.SIGSTOP)
    replica.finish()
    with replica.evaluating():
        print(json.dumps({"weights": model.weight.tolist()}), flush=True)


if __name__ == "__main__":
    main()
