"""Reading a snapshot back: nothing is used before its size and SHA-256 are right."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from samovar.checkpoint import arrays
from samovar.checkpoint.manifest import (
    MANIFEST_NAME,
    PART_SUFFIX,
    DamagedManifest,
    Manifest,
    ValueNote,
    decode,
    noted_value,
)
from samovar.core.errors import InputError
from samovar.core.files import FileMark, mark_of
from samovar.core.stateful import State

_MAX_MANIFEST_BYTES = 1 << 28
NEXT_STEP = "use another snapshot, or --snapshot latest"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The snapshot of `step`: parts as their `state_dict` gave them; names of the extra files in `path`."""

    step: int
    parts: dict[str, State]
    config: dict[str, object]
    path: Path
    files: tuple[str, ...] = ()


def read_snapshot(folder: Path, wanted: Callable[[str], bool] | None = None) -> Snapshot:
    """The snapshot in `folder`, verified; raises InputError naming the file and what differs.

    `wanted(part)` tells which parts to read, None reads all; files of the others are not looked at.
    Cost: reads every such file once; holds one part's file and its arrays at a time, in addition to the result.
    """
    manifest = read_manifest(folder)
    extra = tuple(name for name in manifest.files if name.removesuffix(PART_SUFFIX) not in manifest.parts)
    for name in extra:
        _verify_file(folder / name, manifest.files[name])
    chosen = [part for part in manifest.parts if wanted is None or wanted(part)]
    parts = {part: _read_part(folder, part, manifest) for part in chosen}
    return Snapshot(manifest.step, parts, dict(manifest.config), folder, extra)


def verify(folder: Path) -> Manifest:
    """Check manifest, sizes and hashes without keeping any array; raises InputError."""
    manifest = read_manifest(folder)
    for name, mark in manifest.files.items():
        _verify_file(folder / name, mark)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, itself verified; the files it names are not looked at. Raises InputError."""
    path = folder / MANIFEST_NAME
    try:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give one such as snapshots/step_00000600, or latest")
        if not path.is_file():
            raise InputError(f"{folder} is not a complete snapshot: {MANIFEST_NAME} is missing; {NEXT_STEP}")
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise InputError(f"{path} is over {_MAX_MANIFEST_BYTES:,} bytes; {NEXT_STEP}")
        return decode(path.read_bytes())
    except DamagedManifest as error:
        raise InputError(f"{path} {error}; {NEXT_STEP}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_part(folder: Path, part: str, manifest: Manifest) -> State:
    path = folder / (part + PART_SUFFIX)
    data = _verified_bytes(path, manifest.files[path.name])
    try:
        return _state(manifest.parts[part], arrays.parse(data))
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {NEXT_STEP}") from error


def _state(notes: Mapping[str, ValueNote], stored: dict[str, arrays.Array]) -> State:
    state: State = {}
    for name, note in notes.items():
        value = noted_value(note)
        state[name] = _array(name, note, stored) if value is None else value
    if stored:
        raise ValueError(f"it holds arrays that the manifest does not name: {', '.join(sorted(stored))}")
    return state


def _array(name: str, note: ValueNote, stored: dict[str, arrays.Array]) -> arrays.Array:
    if name not in stored:
        raise ValueError(f"array {name!r} is missing")
    array = stored.pop(name)
    found = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if found != note:
        raise ValueError(f"array {name!r} is {found}, the manifest says {note}")
    return array


def _verified_bytes(path: Path, expected: FileMark) -> bytes:
    try:
        _check_size(path, expected)
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    _compare(path, FileMark(len(data), hashlib.sha256(data).hexdigest()), expected)
    return data


def _verify_file(path: Path, expected: FileMark) -> None:
    try:
        _check_size(path, expected)
        found = mark_of(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    _compare(path, found, expected)


def _check_size(path: Path, expected: FileMark) -> None:
    """Refuse a file of another size before it is read: it may be huge, and a device has no end."""
    if not path.is_file():
        raise FileNotFoundError(2, "it is missing or no regular file")
    _compare_size(path, path.stat().st_size, expected)


def _compare(path: Path, found: FileMark, expected: FileMark) -> None:
    _compare_size(path, found.size_bytes, expected)
    if found.sha256 != expected.sha256:
        raise InputError(
            f"{path} is damaged: its sha256 is {found.sha256[:12]}..., "
            f"the manifest says {expected.sha256[:12]}...; {NEXT_STEP}"
        )


def _compare_size(path: Path, found_bytes: int, expected: FileMark) -> None:
    if found_bytes != expected.size_bytes:
        raise InputError(
            f"{path} is damaged: {found_bytes:,} bytes, the manifest says {expected.size_bytes:,}; {NEXT_STEP}"
        )


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read: {error.strerror}; {NEXT_STEP}")
