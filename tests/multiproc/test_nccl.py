"""NCCL among all ranks: refused by every rank that cannot have it; else connected in the ranks' own store."""

import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samovar.api.connect_hosts import lacks_nccl
from samovar.api.rendezvous import Choice, RankHello
from samovar.core.group import Group
from samovar.launch.identity import Identity
from samovar.transports.torch_dist import NearCollectives, nccl_card
from tests.multiproc.ports import reserved_port
from tests.multiproc.test_join import END_S, PROGRAM, failed, started, variables_of

ONE_EACH = ", and NCCL takes one rank on each"


def test_nccl_without_a_gpu_is_refused_by_every_rank() -> None:
    program = (sys.executable, PROGRAM, "sums")
    with reserved_port() as port:
        variables = [variables_of(rank, 2, port) | {"SAMOVAR_TRANSPORT": "nccl"} for rank in range(2)]
        with started([(program, own, ()) for own in variables]) as ranks:
            for rank, process in enumerate(ranks):
                error = failed(process, 2)
                assert error.startswith(f"rank {rank} of 2 on ")
                assert "transport 'nccl' is impossible: " in error
                assert error.endswith("its model is on the CPU; give auto, shm or gloo")


def test_ranks_with_gpus_of_their_own_exchange_there() -> None:
    """With the group of another library; `samovar.replicate` and the meeting of ranks are the real ones."""
    program = (sys.executable, Path(__file__).with_name("near_program.py"))
    with reserved_port() as port, started([(program, variables_of(rank, 2, port), ()) for rank in range(2)]) as ranks:
        ended = [process.communicate(timeout=END_S) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], ended
    assert ended[0][0].startswith("True [["), ended
    assert ended[0][0] == ended[1][0]
    assert "2 ranks on one host; by nccl between their GPUs, tested on one GPU only" in ended[0][1]


@pytest.mark.parametrize(
    ("cards", "lacking"),
    [
        (("2.27.3/a", "2.27.3/c", "2.27.3/b"), ""),
        (("2.27.3/a", "2.27.3/c", ""), "rank 2 on right: its model is on cpu"),
        (("2.27.3/a", "2.27.3/c", "2.26.2/b"), "ranks have different versions of it, 2.26.2 and 2.27.3"),
        (
            ("2.27.3/a", "2.27.3/c", "2.27.3/a"),
            f"ranks 0 and 2 compute on the same GPU{ONE_EACH}",
        ),
    ],
)
def test_the_reports_of_ranks_decide_alike_everywhere(cards: tuple[str, ...], lacking: str) -> None:
    places = zip(("left", "left", "right"), cards, strict=True)
    hellos = [RankHello(3, "auto", "auto", host, host, (0,), card, "its model is on cpu") for host, card in places]
    assert lacks_nccl(hellos) == lacking


def test_a_rank_says_why_it_has_no_gpu_for_nccl() -> None:
    assert nccl_card(None) == ("", "its model is on the CPU")
    assert nccl_card(torch.device("cpu")) == ("", "its model is on cpu")
    told = RankHello.own(Identity(), Choice("auto", "auto", None, None))
    assert RankHello.from_json(told.to_json(), "a test") == told
    assert (told.card, told.no_card) == nccl_card(None)


def test_a_part_of_a_gpu_is_not_for_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", uuid="a")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: found)
    why = f"its GPU is a part of one ({found.name}), and NCCL takes whole ones"
    assert nccl_card(torch.device("cuda:0")) == ("", why)
    found.name = "NVIDIA A100-SXM4-40GB"
    assert nccl_card(torch.device("cuda:0")) == ("2.27.3/a", "")


class GroupOfGpus:
    """A process group whose operations take three looks."""

    def __init__(self) -> None:
        self.looks = iter((False, False, True))

    def is_completed(self) -> bool:
        return next(self.looks)

    def shutdown(self) -> None:
        raise AssertionError("not in this thread")


def test_at_the_exit_the_last_operation_ends_and_nothing_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The destructor of NCCL's group aborts, and others may need the operation. Python 3.12 begins no thread there."""

    def begin(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", begin)
    host = SimpleNamespace(group=Group(0, 2), records=None)
    group = GroupOfGpus()
    near, kept = NearCollectives(group, host, torch.device("cuda:0")), weakref.ref(group)
    looks = group.looks
    run: Any = SimpleNamespace(call=lambda its: its, what="")
    near.begin(run, 4)
    del group
    near.close()
    assert next(looks, None) is None
    assert kept() is not None


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this PyTorch has NCCL")
def test_a_pytorch_without_nccl_says_so() -> None:
    card, why = nccl_card(torch.device("cuda:0"))
    assert card == ""
    assert "built without NCCL" in why
