"""The manifest of a snapshot: its parts, and the size and hash of each file.

    {"format": "samovar-snapshot", "version": 1, "step": 600, "sequence": 3,
     "config": {...},
     "parts": {"solver": {"iteration": 600, "history": {"dtype": "float32", "shape": [10]}}},
     "files": {"solver.safetensors": {"bytes": 112, "sha256": "..."}},
     "sha256": "..."}

The last field is the SHA-256 of the rest. There is one spelling of a manifest: any other text is damaged.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from samovar.core.files import FileMark
from samovar.core.stateful import StateValue

FORMAT = "samovar-snapshot"
VERSION = 1
MANIFEST_NAME = "manifest.json"
PART_SUFFIX = ".safetensors"
PART_KEY = "samovar_part"  # in the metadata of a part: its name
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_NAME_BYTES = 255

# A value as JSON has it: a number or string stands for itself, an array for its dtype and shape.
ValueNote = Mapping[str, object] | int | float | str


class DamagedManifest(ValueError):
    """The manifest cannot be trusted; the message is the second half of a sentence."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of a snapshot. `sequence` counts the saves of a store: the highest is the newest."""

    step: int
    sequence: int
    config: Mapping[str, object]
    parts: Mapping[str, Mapping[str, ValueNote]]
    files: Mapping[str, FileMark]

    def encode(self) -> bytes:
        """The text of manifest.json."""
        body: dict[str, object] = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "sequence": self.sequence,
            "config": dict(self.config),
            "parts": {part: dict(values) for part, values in self.parts.items()},
            "files": {name: {"bytes": m.size_bytes, "sha256": m.sha256} for name, m in self.files.items()},
        }
        return _sealed(body)


def decode(raw: bytes) -> Manifest:
    """The manifest in `raw`; raises DamagedManifest unless every byte is as `encode` wrote it."""
    body = _parsed(raw)
    if body.get("format") != FORMAT or body.get("version") != VERSION:
        found = f"{body.get('format')!r} version {body.get('version')!r}"
        raise DamagedManifest(f"is {found}; this Samovar reads {FORMAT!r} version {VERSION}")
    if "sha256" not in body:
        raise DamagedManifest("has no sha256 of its own")
    del body["sha256"]
    if _sealed(body) != raw:
        raise DamagedManifest("does not match its own sha256")
    return _checked(body)


def note(name: str, value: StateValue) -> ValueNote:
    """How the manifest shows one value of a part's state."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "shape": list(value.shape)}
    assert isinstance(value, int | float | str), f"state {name!r}: {type(value).__name__} cannot be saved"
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}
    return value


def noted_value(value: ValueNote) -> int | float | str | None:
    """The number or string that a note stands for; None for an array."""
    if not isinstance(value, Mapping):
        return value
    return float(str(value["float"])) if "float" in value else None


def is_plain_name(name: str) -> bool:
    """True for a name of one file inside a folder: no path, not hidden, not too long."""
    bad = not name or name.startswith(".") or any(sign in name for sign in "/\\\0\n")
    return not bad and len(name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES


def _sealed(body: Mapping[str, object]) -> bytes:
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, indent=1).encode() + b"\n"


def _parsed(raw: bytes) -> dict[str, object]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DamagedManifest(f"is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise DamagedManifest(f"holds a JSON {type(body).__name__}, not an object")
    return body


def _checked(body: Mapping[str, object]) -> Manifest:
    files = {name: _file_mark(name, mark) for name, mark in _object(body, "files").items()}
    parts = {name: _notes(name, values) for name, values in _object(body, "parts").items()}
    for part in parts:
        if part + PART_SUFFIX not in files:
            raise DamagedManifest(f"names part {part!r} but not its file {part + PART_SUFFIX}")
    return Manifest(_count(body, "step"), _count(body, "sequence"), _object(body, "config"), parts, files)


def _object(body: Mapping[str, object], field: str) -> dict[str, object]:
    found = body.get(field)
    if not isinstance(found, dict):
        raise DamagedManifest(f"has no object {field!r}")
    return found


def _count(body: Mapping[str, object], field: str) -> int:
    found = body.get(field)
    if type(found) is not int or found < 0:
        raise DamagedManifest(f"field {field!r} is {found!r}, not a count")
    return found


def _file_mark(name: str, mark: object) -> FileMark:
    if not is_plain_name(name) or name == MANIFEST_NAME:
        raise DamagedManifest(f"names a file {name!r} that is not a plain name inside the snapshot")
    if not isinstance(mark, dict):
        raise DamagedManifest(f"has no size and sha256 of {name}")
    digest = mark.get("sha256")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise DamagedManifest(f"has no sha256 of {name}")
    return FileMark(_count(mark, "bytes"), digest)


def _notes(part: str, values: object) -> dict[str, ValueNote]:
    if not isinstance(values, dict):
        raise DamagedManifest(f"part {part!r} is not an object")
    for name, value in values.items():
        if not (isinstance(value, int | float | str) or _is_note(value)):
            raise DamagedManifest(f"part {part!r}: value {name!r} is {value!r}")
    return values


def _is_note(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    if value.keys() == {"float"}:
        return value["float"] in ("nan", "inf", "-inf")
    return value.keys() == {"dtype", "shape"} and isinstance(value["shape"], list)
