"""The files of a data set as they were published: found, unpacked, and held to their checksums."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samovar.core.errors import InputError
from samovar.formats.packed import SUFFIXES, read_unpacked


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """An unpacked file as it was published."""

    name: str
    size_bytes: int
    md5: str


def find_published(source: Path, files: Sequence[PublishedFile], data_set: str) -> dict[str, Path]:
    """Where each file lies in the folder `source`, by its name: plain, or else packed (.gz, .xz).

    Raises: InputError naming every missing file.
    """
    names = [file.name for file in files]
    packed = " or ".join(suffix for suffix in SUFFIXES if suffix)
    try:
        present = {path.name for path in source.iterdir()}
    except OSError as error:
        raise InputError(
            f"{source}: {error.strerror}. Name the folder that holds {', '.join(names)} "
            f"(or {packed} of the same names)."
        ) from error
    found = {name: f"{name}{suffix}" for suffix in reversed(SUFFIXES) for name in names if f"{name}{suffix}" in present}
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"{source}: {', '.join(missing)} (or {packed} of the same name) not found. Put the published {data_set} "
            "files there, or name the folder that holds them."
        )
    return {name: source / found[name] for name in names}


def read_published(path: Path, file: PublishedFile) -> bytes:
    """The unpacked content; InputError where its checksum is not the published one."""
    content = read_unpacked(path, file.size_bytes)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise InputError(
            f"{path}: its content has MD5 {found}, the published file {file.md5}: it is damaged, or of "
            "another data set. Download it again."
        )
    return content
