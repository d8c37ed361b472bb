"""A user's script at a box: adds a number to a center of zeros, step by step, until the center has come to a total.

python replicate_box_program.py BOX KEY_FILE|- JOIN NUMBER STEPS TOTAL      says "at work" when it trains
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import samovar

WAIT_S = 200.0


def main() -> None:
    box, key_file, join, number, steps, total = sys.argv[1:]
    torch.set_num_threads(1)
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replica = samovar.replicate(
        model,
        optimizer,
        "async-sgd",
        box=box,
        key_file=None if key_file == "-" else Path(key_file),
        buffer="sum",
        join=join == "join",
        timeout_s=WAIT_S,
    )
    print("at work", flush=True)

    @torch.no_grad()
    def add() -> None:
        for parameter in model.parameters():
            parameter.add_(int(number))

    for _ in range(int(steps)):
        replica.backward(model(torch.ones(1, 3)).sum())
        replica.step(add)
    until_s = time.monotonic() + WAIT_S
    while at_center(replica, model) != [float(total)] * 8:
        assert time.monotonic() < until_s, at_center(replica, model)
        time.sleep(0.01)
    replica.finish()
    print(json.dumps({"final": nn.utils.parameters_to_vector(model.parameters()).tolist()}))


def at_center(replica: samovar.Replica, model: nn.Module) -> list[float]:
    with replica.evaluating():
        return nn.utils.parameters_to_vector(model.parameters()).tolist()


if __name__ == "__main__":
    main()
