"""A rank that trains with `samovar.replicate` as if its model were on a GPU: the group of NCCL is one of gloo."""

import os

import torch

import samovar
from samovar import _native
from samovar.api import rendezvous, replica, replicate
from samovar.transports.torch_dist import NearCollectives

DEVICE = torch.device("cpu")


def main() -> None:
    _native.die_with_parent()
    torch.manual_seed(1)
    for place, name, made in ((rendezvous, "nccl_card", card), (replica, "device_of", there)):
        setattr(place, name, made)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with samovar.replicate(model, optimizer, "sync", timeout_s=20.0) as member:
        for step in range(3):
            x = torch.full((1, 3), float(member.rank + step))
            optimizer.zero_grad()
            member.backward(model(x).sum())
            member.step()
        team = replicate._process._team
        assert team is not None
        assert isinstance(team._near, NearCollectives)
        print(team._near.bytes_sent > 0, model.weight.tolist(), flush=True)


def card(_device: torch.device | None) -> tuple[str, str]:
    return f"2.27.3/GPU of rank {os.environ['RANK']}", ""


def there(_parameters: object) -> torch.device:
    return DEVICE


if __name__ == "__main__":
    main()
