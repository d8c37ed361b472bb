"""NamedBuffers of a box as files: one for each (see `samovar.launcher.box_content`), kept and loaded."""

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from samovar.box.buffers import NamedBuffers
from samovar.box.joining import mapped_seat, read_mapped
from samovar.core.clock import Deadline
from samovar.core.durable import sync_folder
from samovar.core.errors import InputError, SamovarError
from samovar.launcher.box_content import TIMEOUT_S, Content

_SUFFIX: Final = ".safetensors"


class Snapshots:
    """Keeps the files of a box's `buffers` in `folder`, every `every_s` on a thread of its own.

    A context manager: at its beginning buffers that only the folder has are made and filled, at its end everything is
    written once more. `tell` is what people are told by. Raises InputError where the folder cannot be used, or another
    box has it.
    """

    def __init__(self, buffers: NamedBuffers, folder: Path, every_s: float, tell: Callable[[str], None]) -> None:
        self._buffers = buffers
        self._folder = folder
        self._every_s = every_s
        self._tell = tell
        self._written: dict[str, bytes] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="samovar-snapshots", daemon=True)
        self._lock = _locked_folder(folder)

    def __enter__(self) -> "Snapshots":
        self._restore()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ending.set()
        self._thread.join()
        os.close(self._lock)

    def write(self) -> None:
        """Those that changed are written, the files of those that were dropped go. Raises OSError, SamovarError."""
        names = self._buffers.names()
        for name in names:
            with self._buffers.held(name) as buffer:
                content = Content.of(*read_mapped(buffer, Deadline.after(TIMEOUT_S)))
            digest = content.digest()
            if self._written.get(name) != digest:
                content.write(self._path(name))
                self._written[name] = digest
        for name in set(self._written) - set(names):
            self._path(name).unlink(missing_ok=True)
            sync_folder(self._folder)
            del self._written[name]

    def _restore(self) -> None:
        there = self._buffers.names()
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            name = path.name.removesuffix(_SUFFIX)
            if name in there or name.startswith("."):
                continue
            try:
                content = Content.read(path)
                self._buffers.create(name, content.shape)
                with self._buffers.held(name) as buffer, mapped_seat(buffer) as seat:
                    content.fill(seat, Deadline.after(TIMEOUT_S))
            except SamovarError as error:
                self._tell(f"not loaded: {error}")
            else:
                self._written[name] = content.digest()
                self._tell(f"loaded from {path}: {name}")

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._ending.wait(self._every_s)
            try:
                self.write()
            except OSError as error:
                self._tell(f"--box-snapshot {self._folder}: nothing can be written ({error.strerror}); make room")
            except SamovarError as error:  # dropped this moment, say
                self._tell(f"--box-snapshot {self._folder}: {error}")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _locked_folder(folder: Path) -> int:
    """A descriptor that keeps other boxes out as long as it is open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"--box-snapshot {folder}: {error.strerror}; give a folder that can be written") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise InputError(f"--box-snapshot {folder}: another box writes there; give another folder") from error
    if not os.access(folder, os.W_OK):
        os.close(descriptor)
        raise InputError(f"--box-snapshot {folder}: cannot be written; give another folder")
    return descriptor
