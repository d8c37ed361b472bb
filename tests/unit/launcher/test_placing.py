"""--device: what it may be, what `auto` comes to, and what is refused before anything is made."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from samovar.config import RunConfig
from samovar.core.errors import InputError, SamovarError
from samovar.core.trace import TraceWindow
from samovar.launch import limits
from samovar.launcher.placing import Devices, count_gpus, on_device, placed, torch_devices, worker_on_each_gpu
from samovar.model import device as devices
from samovar.model.half import precision_warnings
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved
from samovar.training.near import staged_notices, why_staged
from tests.multiproc.command import run

CONFIG = RunConfig("train", Path("solver.prototxt"))
EASGD = StrategyConfig("async-easgd")


def with_devices(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """As if PyTorch saw so many CUDA devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")


def asked(device: str | None = None) -> Devices:
    """The answer of the process that loads PyTorch; the devices above exist only in this one."""
    return Devices(**json.loads(json.dumps(devices.answer(device))))


@pytest.mark.parametrize("written", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "CUDA", "", "cuda:0,1"])
def test_other_names_are_refused(written: str) -> None:
    with pytest.raises(InputError, match=r"got .*; choose one of: auto, cpu, cpu-staged, cpu-near, cuda, cuda:N$"):
        replace(CONFIG, device=written)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"trace": TraceWindow(2, 3)}, "--trace"),
        ({"strategy": EASGD, "record": True}, "--record"),
        ({"strategy": EASGD, "replay": Path("run")}, "--replay"),
    ],
)
def test_what_only_the_cpu_gives_is_refused_on_cuda(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(InputError, match=f"^{flag}: is only guaranteed on the CPU, not with --device cuda:1"):
        replace(CONFIG, device="cuda:1", **changes)
    assert replace(CONFIG, device="cpu-staged", **changes).needs_cpu == flag


@pytest.mark.parametrize(("threads", "flag"), [(None, "--workers 1"), (2, "--threads-per-worker 2")])
def test_one_worker_that_has_no_room_is_told_what_to_free(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, flag: str
) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 100_000_000)
    with pytest.raises(
        InputError, match=rf"^{flag}: 1 workers need at least 0\.2 GB, .* 0\.1 GB are free\. Free some$"
    ):
        placed(CONFIG, 1, threads)


@pytest.mark.parametrize("device", ["cpu-staged", "cuda"])
def test_slices_are_summed_on_the_cpu(device: str) -> None:
    with pytest.raises(InputError, match=f"--exact 2: sums slices .* leave --device {device} out"):
        replace(CONFIG, device=device, exact=2)


def test_auto_is_cuda_where_a_driver_and_pytorch_show_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_devices(monkeypatch, 1)
    assert on_device(CONFIG, "auto", tmp_path, asked).device == "cpu"  # no driver
    (tmp_path / "nvidia0").touch()
    assert on_device(CONFIG, "auto", tmp_path, asked).device == "cuda"
    assert on_device(replace(CONFIG, exact=2), "auto", tmp_path, asked).device == "cpu"
    with_devices(monkeypatch, 0)
    assert on_device(CONFIG, "auto", tmp_path, asked).device == "cpu"


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, 2)
    assert on_device(CONFIG, "cuda:1", ask=asked).device == "cuda:1"
    with pytest.raises(
        InputError, match=r"--device cuda:2: this machine has 2 CUDA devices, the last is cuda:1; give one"
    ):
        on_device(CONFIG, "cuda:2", ask=asked)
    with_devices(monkeypatch, 0)
    with pytest.raises(InputError, match=r"--device cuda: there is no CUDA device \(PyTorch .*\); give --device cpu"):
        on_device(CONFIG, "cuda", ask=asked)
    assert devices.described().startswith("cpu; no CUDA device (PyTorch ")


def test_ranks_take_devices_in_turn_and_say_where_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, 2)
    assert [devices.device_of(rank, 2) for rank in range(5)] == [0, 1, 0, 1, 0]
    assert devices.described() == "cpu, cuda:0 GPU 0, cuda:1 GPU 1"
    first = torch.device("cuda:0")
    assert "4 workers share 2" in devices.device_notices(first, 4, "cuda")[0]
    assert "2 workers share 1" in devices.device_notices(first, 2, "cuda:0")[0]
    assert "share" not in devices.device_notices(first, 2, "cuda")[0]
    assert devices.device_notices(None, 4, "cpu") == ()


def test_a_worker_on_each_gpu_is_one_for_each_that_pytorch_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, 3)
    config, count = worker_on_each_gpu(CONFIG, asked)
    assert (config.device, count, count_gpus(asked)) == ("cuda", 3, 3)
    with pytest.raises(InputError, match=r"--workers gpu: is a worker on each GPU, not with --device cuda:1"):
        worker_on_each_gpu(replace(CONFIG, device="cuda:1"), asked)
    with_devices(monkeypatch, 0)
    with pytest.raises(InputError, match=r"--workers gpu: this host has no CUDA device \(PyTorch .*\); give a number"):
        count_gpus(asked)


@pytest.mark.parametrize(
    ("strategy", "workers", "more", "why"),
    [
        ("sync", 2, {}, ""),
        ("diloco", 2, {}, ""),
        ("sync", 4, {}, "4 workers share 2 GPUs, and NCCL takes one on each"),
        ("sync", 1, {"device": "cuda:1"}, ""),
        ("sync", 2, {"device": "cuda:1"}, "2 workers share 1 GPU, and NCCL takes one on each"),
        ("async-easgd", 2, {}, ""),
        ("shm-easgd", 4, {}, ""),
        ("hybrid-easgd", 4, {}, "strategy hybrid-easgd with these settings works there"),
    ],
)
def test_ranks_keep_the_model_on_gpus_where_strategy_and_nccl_can(
    monkeypatch: pytest.MonkeyPatch, strategy: str, workers: int, more: dict[str, Any], why: str
) -> None:
    with_devices(monkeypatch, 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    sharing = resolved(StrategyConfig(strategy), workers)
    given: dict[str, Any] = {"workers": workers, "device": "cuda", "strategy": sharing, **more}
    config = replace(CONFIG, **given)
    assert why_staged(config, torch.device("cuda:0")) == why
    (notice,) = staged_notices(config, torch.device("cuda:0")) or ("",)
    assert notice.endswith(why)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    if not why and workers > 1:
        lacks = why_staged(config, torch.device("cuda:0"))
        assert (lacks == "") if sharing.needs_center else lacks.endswith("is built without NCCL")


def test_another_process_is_asked_and_says_what_this_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_devices("cuda:99") == asked("cuda:99")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SamovarError, match=r"PyTorch does not say which devices there are: .* exit status 1"):
        torch_devices()


def test_on_the_cpu_nothing_is_set() -> None:
    assert devices.use_device("cpu", 3) is None
    assert devices.use_device("cpu-staged", 3) == torch.device("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    devices.computed(torch.device("cpu"))
    devices.computed(None)
    assert precision_warnings("bf16", torch.device("cuda:0")) == ()


def test_a_run_says_so_before_it_makes_anything(tmp_path: Path, repository_root: Path) -> None:
    solver = repository_root / "examples/lenet/digits_solver.prototxt"
    for flag, value in (("--device", "cuda:99"), *([] if torch.cuda.is_available() else [("--workers", "gpu")])):
        ended = run("train", "--solver", solver, flag, value, folder=tmp_path)
        assert ended.return_code == 2
        assert ended.error.startswith(f"{flag} {value}: ")
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
