"""No changed, missing or added bit of a snapshot goes unseen."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.checkpoint.manifest import DamagedManifest, decode
from samovar.checkpoint.reading import read_snapshot
from samovar.checkpoint.store import SnapshotStore
from samovar.core.errors import InputError

NUM_POSITIONS = 200


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    parts: dict[str, Any] = {
        "model": {"weights": np.arange(300, dtype=np.float32), "bias": np.zeros(3, np.float32)},
        "solver": {"history": np.ones((4, 5)), "step": 7, "policy": "inv"},
    }
    store = SnapshotStore(tmp_path / "snapshots")
    return store.save(7, parts, {"net.caffemodel": bytes(range(256))}, {"seed": 1, "strategy": "sync"})


def is_refused(folder: Path) -> bool:
    try:
        read_snapshot(folder)
    except InputError as error:
        return str(folder) in str(error)
    return False


def positions(folder: Path, seed: int) -> list[tuple[Path, int]]:
    """Random places in the files of `folder`, every file about equally often."""
    rng = random.Random(seed)
    files = sorted(folder.iterdir())
    chosen = [rng.choice(files) for _ in range(NUM_POSITIONS)]
    return [(path, rng.randrange(path.stat().st_size)) for path in chosen]


def undetected(folder: Path, seed: int, spoil) -> list[tuple[str, int]]:
    """Places where `spoil(data, position)` put into the file was not refused."""
    missed = []
    for path, position in positions(folder, seed):
        good = path.read_bytes()
        path.write_bytes(spoil(bytearray(good), position))
        if not is_refused(folder):
            missed.append((path.name, position))
        path.write_bytes(good)
    assert not is_refused(folder)
    return missed


def test_every_flipped_bit_is_found(snapshot: Path) -> None:
    def flip(data: bytearray, position: int) -> bytes:
        data[position] ^= 1 << position % 8
        return bytes(data)

    assert undetected(snapshot, 1, flip) == []


def test_every_truncation_is_found(snapshot: Path) -> None:
    assert undetected(snapshot, 2, lambda data, position: bytes(data[:position])) == []


def test_every_inserted_byte_is_found(snapshot: Path) -> None:
    assert undetected(snapshot, 3, lambda data, position: bytes(data[:position] + b" " + data[position:])) == []


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "solver.safetensors", "net.caffemodel"])
def test_a_missing_or_empty_file_is_found(snapshot: Path, name: str) -> None:
    (snapshot / name).write_bytes(b"")
    assert is_refused(snapshot)
    (snapshot / name).unlink()
    assert is_refused(snapshot)
    (snapshot / name).mkdir()
    assert is_refused(snapshot)


def sealed(snapshot: Path, **changes: Any) -> bytes:
    """The manifest with `changes` and a right sha256 of its own, as a careless or hostile writer might make it."""
    body = {**json.loads((snapshot / "manifest.json").read_bytes()), **changes}
    del body["sha256"]
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, indent=1).encode() + b"\n"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"files": {"model.safetensors": {"bytes": 3}}}, "has no sha256 of model.safetensors"),
        ({"files": {"model.safetensors": {"bytes": 3, "sha256": None}}}, "has no sha256"),
        ({"files": {"model.safetensors": {"bytes": 3, "sha256": ""}}}, "has no sha256"),
        ({"files": {"a": {"bytes": -1, "sha256": "0" * 64}}}, "'bytes' is -1"),
        ({"files": {"../../secret": {"bytes": 1, "sha256": "0" * 64}}}, "not a plain name"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "0" * 64}}}, "not a plain name"),
        ({"files": {}}, "but not its file"),
        ({"files": []}, "no object 'files'"),
        ({"step": -1}, "'step' is -1"),
        ({"step": "7"}, "'step' is '7'"),
        ({"parts": {"model": {"x": None}}, "files": {}}, "value 'x' is None"),
        ({"parts": {"model": {"x": {"float": "1"}}}, "files": {}}, "value 'x'"),
    ],
)
def test_a_manifest_that_is_sealed_but_wrong(snapshot: Path, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DamagedManifest, match=complaint):
        decode(sealed(snapshot, **change))


def test_an_array_whose_shape_is_not_the_manifests(snapshot: Path) -> None:
    parts = json.loads((snapshot / "manifest.json").read_bytes())["parts"]
    parts["model"]["weights"]["shape"] = [30, 10]
    (snapshot / "manifest.json").write_bytes(sealed(snapshot, parts=parts))
    with pytest.raises(InputError, match=r"array 'weights' is .*\[300\].*, the manifest says .*\[30, 10\]"):
        read_snapshot(snapshot)


def test_an_array_that_one_side_does_not_know(snapshot: Path) -> None:
    parts = json.loads((snapshot / "manifest.json").read_bytes())["parts"]
    parts["model"]["new"] = parts["model"].pop("bias")
    (snapshot / "manifest.json").write_bytes(sealed(snapshot, parts=parts))
    with pytest.raises(InputError, match="array 'new' is missing"):
        read_snapshot(snapshot)
    del parts["model"]["new"]
    (snapshot / "manifest.json").write_bytes(sealed(snapshot, parts=parts))
    with pytest.raises(InputError, match="arrays that the manifest does not name: bias"):
        read_snapshot(snapshot)


def test_another_version_is_named(snapshot: Path) -> None:
    text = (snapshot / "manifest.json").read_bytes().replace(b'"version": 1', b'"version": 2')
    with pytest.raises(DamagedManifest, match="version 2; this Samovar reads 'samovar-snapshot' version 1"):
        decode(text)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_refused_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(DamagedManifest):
        decode(raw)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(DamagedManifest, match="is not JSON"):
        decode(b"[" * 200_000)
