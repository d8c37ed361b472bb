"""One rank of `emulated.py`: a loop of a perceptron; prints seconds a step of this rank, or writes its profile."""

import json
import sys
import time

import torch
from torch import nn

import samovar

WARM = 4
BATCH = 32


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.manual_seed(1)
    inner = [layer for _ in range(2) for layer in (nn.ReLU(), nn.Linear(1024, 1024))]
    model = nn.Sequential(nn.Linear(64, 1024), *inner, nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with samovar.replicate(model, optimizer, asked["strategy"], **asked["settings"]) as replica:
        if asked["profile"]:
            replica.profile(asked["profile"], batch_size=BATCH)
        data = torch.Generator().manual_seed(replica.rank)
        began_s = 0.0
        for step in range(WARM + asked["steps"]):
            if step == WARM:
                began_s = time.monotonic()
            images, labels = torch.randn(BATCH, 64, generator=data), torch.randint(0, 10, (BATCH,), generator=data)
            optimizer.zero_grad()
            replica.backward(nn.functional.cross_entropy(model(images), labels))
            replica.step()
        taken_s = time.monotonic() - began_s
        replica.finish()
    print("step_s", taken_s / asked["steps"])


if __name__ == "__main__":
    main()
