"""Mutated files of named tensors: safetensors, torch's own, and NumPy's (mean images)."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Iterator

import numpy as np
import safetensors.torch
import torch

from tests.fuzz import material
from tests.fuzz.case import READ, REFUSED, Case, damaged, file_case


def tensor_cases() -> Iterator[Case]:
    """Weights by name, read like a caffemodel; and .npy files, read like a mean."""
    forms = {"w.safetensors": safetensors.torch.save(_state_dict()), "w.pt": _saved(_state_dict())}
    for name, content in forms.items():
        yield file_case("tensors", f"sound {name}", name, content, expected=READ)
        for way, changed in damaged(content, 32, seed=len(name)):
            yield file_case("tensors", f"{name}, {way}", name, changed)
    for name, content in {**_bad_safetensors(), **_bad_saved()}.items():
        yield file_case("tensors", name, "w", content, expected=REFUSED)


def numpy_cases() -> Iterator[Case]:
    yield file_case("mean_npy", "sound", "mean.npy", _npy(np.zeros(material.IMAGE_SHAPE, np.float32)), expected=READ)
    for name, content in damaged(_npy(np.zeros(material.IMAGE_SHAPE, np.float32)), 24, seed=40):
        yield file_case("mean_npy", name, "mean.npy", content)
    bad = {
        "objects": _npy(np.array([[[print]]], object)),
        "huge shape": _npy(np.zeros((1, 1, 1), np.float32)).replace(b"(1, 1, 1)", b"(9, 9, 1_000_000_000)"[:9]),
        "text": _npy(np.array([[["words"]]])),
        "four axes": _npy(np.zeros((2, 3, 4, 5), np.float32)),
        "code for a header": b"\x93NUMPY\x01\x00"
        + struct.pack("<H", 40)
        + b"__import__('os').system('touch pwned')  \n",
        "a header of 4 GB": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{" * 1000,
        "nesting 10,000 deep": b"\x93NUMPY\x02\x00" + struct.pack("<I", 10_000) + b"(" * 10_000,
    }
    for name, content in bad.items():
        yield file_case("mean_npy", name, "mean.npy", content, expected=REFUSED)


def _state_dict() -> dict[str, torch.Tensor]:
    """The sound weights."""
    return {
        f"{record.name}.{name}": torch.from_numpy(blob.copy())
        for record in material.weights()
        for name, blob in zip(("weight", "bias"), record.blobs, strict=False)
    }


def _saved(value: object) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def _npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def _safetensors(header: object, content: bytes = bytes(1280)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def _tensor(shape: list[int], end: int, start: int = 0, kind: str = "F32") -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


def _bad_safetensors() -> dict[str, bytes]:
    return {
        "safetensors, a header of 2 to the 63rd": struct.pack("<Q", 2**63) + b'{"a":',
        "safetensors, a header of 1 TB": struct.pack("<Q", 1 << 39) + b'{"a":',
        "safetensors, nesting 10,000 deep": _safetensors(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
        "safetensors, lists 10,000 deep": _safetensors(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
        "safetensors, offsets beyond the end": _safetensors({"ip.weight": _tensor([5, 64], 1 << 40)}),
        "safetensors, sizes of 2 to the 64th": _safetensors({"ip.weight": _tensor([1 << 32, 1 << 32], 1280)}),
        "safetensors, negative sizes": _safetensors({"ip.weight": _tensor([-5, -64], 1280)}),
        "safetensors, tensors over each other": _safetensors(
            {"ip.weight": _tensor([5, 64], 1280), "ip.bias": _tensor([5], 20)}
        ),
        "safetensors, numbers of no kind": _safetensors({"ip.weight": _tensor([5, 64], 1280, kind="Q9")}),
        "safetensors, a name of 10 MB": _safetensors({"x" * 10_000_000: _tensor([320], 1280)}),
        "safetensors, no names of the net": _safetensors({"a.weight": _tensor([320], 1280)}),
        "safetensors, a name that is a path": _safetensors({"../../etc/passwd": _tensor([320], 1280)}),
        "safetensors, no tensors": _safetensors({}, b""),
    }


class _Runs:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("open('pwned', 'w').close()",)


def _bad_saved() -> dict[str, bytes]:
    sound = _state_dict()
    return {
        "pt, code": _saved({"ip.weight": _Runs()}),
        "pt, code without an archive": pickle.dumps(_Runs()),
        "pt, a whole module": _saved(torch.nn.Linear(64, 5)),
        "pt, a list": _saved([1, 2, 3]),
        "pt, nothing": _saved({}),
        "pt, numbers for tensors": _saved({"ip.weight": 1.0}),
        "pt, numbers for names": _saved({1: torch.zeros(3)}),
        "pt, one number for 2 to the 40th": _saved({**sound, "ip.weight": torch.zeros(1).expand(1 << 20, 1 << 20)}),
        "pt, a tensor without numbers": _saved({**sound, "ip.weight": torch.zeros(5, 64, device="meta")}),
        "pt, a sparse tensor": _saved({**sound, "ip.weight": torch.zeros(5, 64).to_sparse()}),
        "pt, complex numbers": _saved({**sound, "ip.weight": torch.zeros(5, 64, dtype=torch.complex64)}),
        "pt, numbers that are none": _saved({**sound, "ip.weight": torch.full((5, 64), torch.nan)}),
        "pt, no names of the net": _saved({"a.weight": torch.zeros(3)}),
        "pt, dictionaries 100 deep": _saved(_nested(100)),
        "an .npz": _npz(),
        "an archive that packs 100 MB": _archive(bytes(100 << 20)),
        "an archive of paths": _archive(b"x", "../../../tmp/samovar-pwned"),
    }


def _nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"state_dict": value}
    return value


def _npz() -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, weight=np.zeros(3))
    return content.getvalue()


def _archive(content: bytes, name: str = "archive/data.pkl") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()
