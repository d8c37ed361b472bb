"""A rank of a user's script on several hosts: `replicate_program.py STRATEGIES [KILLED]`, told who it is by variables.

With one strategy after the other it adds whole numbers to weights of whole numbers, so that every sum is exact, and
prints as JSON where it stands. Of ranks that KILLED names (with commas) each kills itself in the middle of its steps;
with "all" they wait there to be killed. A rank "loads N" loads its own state there, while the others train on.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from typing import Any

import torch
from torch import nn

import samovar
from samovar import _native
from samovar.core.errors import InputError

STEPS = 4
TIMEOUT_S = 100.0


def main() -> None:
    _native.die_with_parent()
    torch.set_num_threads(1)
    strategies, killed = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    for strategy in strategies.split(","):
        try:
            run(strategy, killed)
        except InputError as error:
            say(strategy=strategy, refused=str(error))


def run(strategy: Any, killed: str) -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.arange(8.0), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"sync_period_steps": 1, "timeout_s": TIMEOUT_S}
    if strategy != "async-sgd":
        settings["moving_rate"] = 0.5
    if strategy == "hybrid-easgd":
        settings["group_size"] = int(os.environ["GROUP_SIZE"])
    replica = samovar.replicate(model, optimizer, strategy, **settings)
    for number in range(STEPS):
        if number == STEPS // 2:
            end_where_told(replica.rank, killed)
            if killed == f"loads {replica.rank}":
                replica.load_state_dict(replica.state_dict())
        replica.backward(model(torch.ones(1, 3)).sum())
        replica.step(partial(add, model, (number + 1) * (1 + 4 * replica.rank)))
    own = values(model)
    replica.finish()
    say(strategy=strategy, own=own, center=values(model))


def end_where_told(rank: int, killed: str) -> None:
    if killed == "all":
        say(waits=rank)
        time.sleep(TIMEOUT_S)  # no wait for anything: it is killed meanwhile
    elif str(rank) in killed.split(","):
        os.kill(os.getpid(), signal.SIGKILL)


@torch.no_grad()
def add(model: nn.Module, number: int) -> None:
    for parameter in model.parameters():
        parameter.add_(number)


def values(model: nn.Module) -> list[float]:
    return [float(value) for value in nn.utils.parameters_to_vector(model.parameters())]


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
