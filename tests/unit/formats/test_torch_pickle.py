"""What a pickle may call: all that torch.save writes of tensors and containers, and nothing that grows."""

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from samovar.core.errors import InputError
from samovar.formats.torch_pickle import require_only_tensors
from samovar.frontends.caffe.weight_files import read_named

TENSOR = torch.arange(12.0).view(3, 4)
PARAMETER = torch.nn.Parameter(torch.ones(2))
PARAMETER.note = "kept"  # type: ignore[attr-defined]
NET = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
OPTIMIZER = torch.optim.Adam(NET.parameters())
NET(TENSOR[:, :3]).sum().backward()
OPTIMIZER.step()
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "views": {"a.weight": TENSOR.t(), "b.weight": TENSOR[1:], "c.weight": TENSOR},
    "parameters": {"a.weight": torch.nn.Parameter(TENSOR), "b.weight": PARAMETER},
    "wrapped": OrderedDict({"module.a.weight": TENSOR, "module.a.bias": TENSOR[0]}),
    "checkpoint": {
        "state_dict": {"a.weight": TENSOR},
        "net": NET.state_dict(),  # an OrderedDict with the attribute _metadata
        "optimizer": OPTIMIZER.state_dict(),
        "scheduler": torch.optim.lr_scheduler.MultiStepLR(OPTIMIZER, [3, 4]).state_dict(),
        "random": torch.get_rng_state(),
        "plain": (1, 2.5, "x", True, None, 1 << 40, {3}, 1j, torch.Size([1]), torch.device("cpu"), torch.float16),
    },
}


@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "old form"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_what_torch_saves_of_tensors_and_containers_is_read(tmp_path: Path, name: str, is_new: bool) -> None:
    torch.save(CHECKPOINTS[name], tmp_path / "a.pt", _use_new_zipfile_serialization=is_new)
    arrays = read_named(tmp_path / "a.pt")
    assert arrays["a.weight"].tolist() == (TENSOR.t() if name == "views" else TENSOR).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint16])
def test_every_type_of_number(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.save({"a.weight": torch.ones(2, dtype=dtype)}, tmp_path / "a.pt")
    assert read_named(tmp_path / "a.pt")["a.weight"].tolist() == [1, 1]


STORED = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
# 2 ** 30 rows of two numbers that take four bytes
ENDLESS = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORED + b"K\x00J\x00\x00\x00\x40K\x02\x86K\x00K\x00\x86\x89}tR"
BAD = {
    "an array of zeros": b"cbuiltins\nbytearray\nJ\x00\x00\x00\x60\x85R",
    "a codec": b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R",
    "a list of all rows": b"ccollections\nOrderedDict\n" + ENDLESS + b"\x85R",
    "a set of all rows": b"cbuiltins\nset\n" + ENDLESS + b"\x85R",
    "all rows as arguments": b"cbuiltins\nset\n" + ENDLESS + b"R",
    "a name from the memo": b"cbuiltins\nbytearray\nq\x050h\x05K\x01\x85R",
    "a name under other values": b"cbuiltins\nbytearray\n(]K\x01atR",
    "an update by all rows": b"ccollections\nOrderedDict\n)R" + ENDLESS + b"\x85b",
    "an object without a call": b"cbuiltins\nbytearray\nK\x01\x85\x81",
    "nested, without a name": b"K\x01" + b"\x85" * 100_000 + b")R",
    "cut off": b"ccollections\nOrderedDict\n)",
}


@pytest.mark.parametrize("name", BAD)
def test_what_could_grow_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no state_dict needs" if name != "cut off" else "exhausted"):
        require_only_tensors(io.BytesIO(b"\x80\x02" + BAD[name] + b"." * (name != "cut off")))


@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "old form"])
def test_a_file_with_such_a_pickle_is_refused_before_it_is_read(
    tmp_path: Path, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"a.weight": bytearray(b"xx")}, tmp_path / "a.pt", _use_new_zipfile_serialization=is_new)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"a\.pt: .*nothing in it was run.* calls (_codecs\.encode|\S+bytearray)"):
        read_named(tmp_path / "a.pt")
