"""`samovar.replicate` on a real GPU: by NCCL against DDP, without a wait for the GPU, and at centers."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from samovar.strategies.ours import StrategyName
from tests.gpu import gpu_program
from tests.gpu.gpus import ALONE, needs_gpu
from tests.multiproc.command import run

pytestmark = [needs_gpu, pytest.mark.timeout(300)]
NEAR = ("sync", "local-sgd", "diloco", "slowmo", "sync-easgd")
NO_PERIOD = ("sync", "hogwild-sgd")
SUM_STEPS = ("async-sgd", "async-msgd", "hogwild-sgd")  # at the center, which alone may have momentum


def trained(folder: Path, side: str, world_size: int, **settings: Any) -> tuple[list[list[float]], str]:
    """The weights of all ranks, and what was said."""
    program = Path(gpu_program.__file__)
    words = ("run", "--workers", world_size, "--all-lines", program, side)
    ended = run(*words, json.dumps(settings), folder=folder, prefix=ALONE)
    assert ended.return_code == 0, ended.errors
    found = re.findall(r"\[[-0-9.e, ]{9,}\]", ended.output)
    assert len(found) == world_size, ended.output
    return [json.loads(one) for one in found], ended.output + ended.errors


@pytest.mark.parametrize("world_size", [2, 4])
def test_sync_by_nccl_learns_what_ddp_learns(tmp_path: Path, world_size: int) -> None:
    theirs, _ = trained(tmp_path, "ddp", world_size)
    for overlap, bucket in (("none", None), ("backward", 10_000)):
        settings = {"overlap": overlap, "bucket_size": bucket, "waits_for_nothing": True}
        ours, said = trained(tmp_path, "sync", world_size, **settings)
        assert "by nccl between their GPUs" in said
        assert all(one == ours[0] for one in ours)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NEAR)
def test_no_step_waits_for_the_gpu(tmp_path: Path, name: str) -> None:
    period = {} if name in NO_PERIOD else {"sync_period_steps": 4}
    ours, said = trained(tmp_path, name, 2, waits_for_nothing=True, **period)
    assert "by nccl between their GPUs" in said
    staged, said = trained(tmp_path, name, 2, by_nccl=False, **period)
    assert "models are copied through the host's memory" in said
    for near, far in zip(sorted(ours), sorted(staged), strict=True):
        np.testing.assert_allclose(near, far, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in get_args(StrategyName) if name not in NEAR])
def test_workers_share_a_gpu(tmp_path: Path, name: str) -> None:
    period = {} if name in NO_PERIOD else {"sync_period_steps": 2}
    optimizer = {"of_optimizer": {"lr": 0.01}} if name in SUM_STEPS else {}
    ours, _ = trained(tmp_path, name, 2, by_nccl=False, **period, **optimizer)
    assert np.isfinite(ours).all()
    if name == "round-robin-easgd":  # the others look at the center at moments of their own
        np.testing.assert_allclose(ours[0], ours[1], rtol=1e-4, atol=1e-5)


def test_nccl_for_two_ranks_on_a_gpu_is_refused(tmp_path: Path) -> None:
    program = Path(gpu_program.__file__)
    settings = json.dumps({"by_nccl": False, "transport": "nccl"})
    workers = torch.cuda.device_count() + 1
    words = ("run", "--workers", workers, program, "sync", settings)
    ended = run(*words, folder=tmp_path, prefix=ALONE)
    assert ended.return_code != 0
    assert "compute on the same GPU" in ended.errors


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "NAdam", "Adagrad"])
def test_one_worker_learns_as_the_plain_loop(tmp_path: Path, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "of_optimizer": {"lr": 0.01}}
    plain, _ = trained(tmp_path, "plain", 1, **settings)
    ours, _ = trained(tmp_path, "sync", 1, waits_for_nothing=optimizer == "SGD", **settings)
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-4, atol=1e-5)
