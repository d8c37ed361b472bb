"""As `rank_program.py`, where the first ranks of hosts have NCCL: a stand-in for it."""

import os
from functools import partial

import torch

from samovar.api import rendezvous
from samovar.api.connect import join_group
from samovar.transports.torch_dist import JobStore, Nccl
from tests.multihost import rank_program
from tests.nccl_stand_in import DEVICE, stand_in_nccl


def main() -> None:
    rendezvous.nccl_card = card  # type: ignore[attr-defined]
    JobStore.nccl = nccl  # type: ignore[method-assign,assignment]
    rank_program.join_group = partial(join_group, device=DEVICE)
    rank_program.main()


def card(device: torch.device | None) -> tuple[str, str]:
    assert device == DEVICE
    return f"2.27.3/GPU of rank {os.environ['RANK']}", ""


def nccl(store: JobStore, prefix: str, number: int, num_hosts: int, device: torch.device, timeout_s: float) -> Nccl:
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert device == DEVICE
    addresses = os.environ["HOST_ADDRESSES"].split(",")
    assert len(addresses) == num_hosts
    return stand_in_nccl(store.gloo(prefix, number, addresses, (), timeout_s), timeout_s)


if __name__ == "__main__":
    main()
