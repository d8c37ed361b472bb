"""A run's snapshots: one folder a step, complete or absent.

A snapshot is written next to its place (`.tmp-step_00000600-<pid>`), fsynced file by file, manifest last, and
renamed into place. The one that it replaces is kept as `.old-step_00000600-<pid>` until then. So the newest complete
snapshot can be loaded at every moment, also after a kill or a power cut.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from samovar.checkpoint import arrays
from samovar.checkpoint.manifest import MANIFEST_NAME, PART_KEY, PART_SUFFIX, Manifest, is_plain_name, note
from samovar.checkpoint.reading import NEXT_STEP, read_manifest, verify
from samovar.core.errors import InputError
from samovar.core.files import sync_folder, write_file
from samovar.core.stateful import State

LATEST_NAME = "latest"
_STEP_NAME = re.compile(r"step_\d{8,}")
_PASSING_NAME = re.compile(r"\.(?P<kind>tmp|old)-(?P<name>.+)-(?P<pid>\d{1,10})")
_NOTHING: Mapping[str, object] = {}
_NO_FILES: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part that process `process_id` has written for the snapshot of `step`, which another process will save."""

    step: int
    part: str
    process_id: int

    @property
    def folder_name(self) -> str:
        return f".tmp-{_step_name(self.step)}.{self.part}-{self.process_id}"


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of one save."""

    step: int
    parts: Mapping[str, State]
    files: Mapping[str, bytes]
    config: Mapping[str, object]
    staged: Sequence[StagedPart] = ()

    def size_bytes(self) -> int:
        stored = sum(array.nbytes for state in self.parts.values() for array in _arrays(state).values())
        return stored + sum(len(data) for data in self.files.values())


class SnapshotStore:
    """The snapshots in `folder` (created by the first save).

    One process writes to a store at a time; any number may load from it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self,
        step: int,
        parts: Mapping[str, State],
        files: Mapping[str, bytes] = _NO_FILES,
        config: Mapping[str, object] = _NOTHING,
        staged: Sequence[StagedPart] = (),
    ) -> Path:
        """Write the snapshot of `step` and return its folder; an existing one is replaced.

        `parts` are states by part name, `files` go in as they are, `config` is anything JSON can hold, `staged` are
        parts that `stage` has written, here or in other processes.
        Raises InputError if the disk refuses (full, read-only, faulty); earlier snapshots stay whole.
        Cost: writes and hashes each byte once, and waits until all of it is on the disk.
        """
        content = _Content(step, parts, files, config, staged)
        _check_names(content)
        try:
            return self._save(content)
        except OSError as error:
            raise self._not_saved(content, error) from error

    def stage(self, step: int, part: str, state: State) -> StagedPart:
        """Write one part of the snapshot of `step`, which the process that saves it will take in.

        Any number of processes may stage parts of different names at once. `clean` removes unused ones.
        Raises InputError if the disk refuses.
        """
        content = _Content(step, {part: state}, _NO_FILES, _NOTHING)
        _check_names(content)
        staged = StagedPart(step, part, os.getpid())
        folder = self.folder / staged.folder_name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove(folder)
            folder.mkdir()
            _fill(folder, content, 0)
        except OSError as error:
            _remove(folder)
            raise self._not_saved(content, error) from error
        return staged

    def is_empty(self) -> bool:
        """Whether nothing was ever saved here; a damaged snapshot counts."""
        return self._newest_first() == ([], [])

    def latest(self) -> tuple[Path, tuple[str, ...]]:
        """The last saved snapshot that is whole, and why later ones are not; raises InputError if there is none.

        Cost: reads and hashes its files, keeps no array.
        """
        good, skipped = self._newest_first()
        for folder in good:
            try:
                verify(folder)
            except InputError as error:
                skipped.append(str(error))
            else:
                return folder, tuple(why.replace(NEXT_STEP, f"{folder.name} is taken") for why in skipped)
        if skipped:
            why = "; ".join(skipped).replace(f"; {NEXT_STEP}", "")
            way_out = "give another --out, and a snapshot of another run or none"
            raise InputError(f"{self.folder} holds no snapshot that is whole: {why}; {way_out}")
        raise InputError(f"{self.folder} holds no snapshot; train with snapshots first, or leave --snapshot out")

    def clean(self) -> tuple[Path, ...]:
        """Remove unfinished saves of dead processes and of this one; return what was removed.

        A replaced snapshot without a successor gets its name back instead.
        """
        removed = []
        for path in self._entries():
            match = _PASSING_NAME.fullmatch(path.name)
            if match is None or not _is_abandoned(int(match["pid"])):
                continue
            place = self.folder / match["name"]
            if match["kind"] == "old" and not _is_whole(place) and _is_whole(path):
                self._discard(place)
                with contextlib.suppress(OSError):
                    path.rename(place)
                continue
            _remove(path)
            removed.append(path)
        return tuple(removed)

    def _save(self, content: _Content) -> Path:
        place = self.folder / _step_name(content.step)
        temporary, pointer = self._temporary(place.name), self._temporary(LATEST_NAME)
        self.folder.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        _remove(pointer)
        try:
            temporary.mkdir()
            _fill(temporary, content, self._next_sequence())
            # Before the rename: what can fail on a full disk must fail here.
            write_file(pointer, [place.name.encode() + b"\n"])
            self._publish(temporary, place)
            pointer.replace(self.folder / LATEST_NAME)
            sync_folder(self.folder)
        finally:
            for path in (temporary, pointer, *(self.folder / staged.folder_name for staged in content.staged)):
                _remove(path)
        return place

    def _publish(self, temporary: Path, place: Path) -> None:
        """Rename into place; a snapshot that stands there is moved aside first and goes last."""
        aside = self.folder / f".old-{place.name}-{os.getpid()}"
        replaces = place.exists()
        if replaces:
            _remove(aside)
            place.rename(aside)
        try:
            temporary.rename(place)
        except OSError:
            if replaces:
                aside.rename(place)
            raise
        sync_folder(self.folder)
        self._discard(aside)

    def _discard(self, folder: Path) -> None:
        """Rename, then empty: a snapshot that is going is never seen half."""
        going = self._temporary(folder.name.removeprefix("."))
        _remove(going)
        with contextlib.suppress(OSError):  # one that is not there, or will not go, does no harm
            folder.rename(going)
        _remove(going)

    def _newest_first(self) -> tuple[list[Path], list[str]]:
        """Folders with a sound manifest, last saved first, and the faults of the others."""
        found: list[tuple[int, Path]] = []
        wrong = []
        for path in self._entries():
            match = _PASSING_NAME.fullmatch(path.name)
            if not _STEP_NAME.fullmatch(path.name) and (match is None or match["kind"] != "old"):
                continue
            try:
                found.append((read_manifest(path).sequence, path))
            except InputError as error:
                wrong.append(str(error))
        return [path for _, path in sorted(found, reverse=True)], wrong

    def _next_sequence(self) -> int:
        good, _ = self._newest_first()
        return read_manifest(good[0]).sequence + 1 if good else 0

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(
                f"{self.folder} cannot be read: {error.strerror}; give the snapshots folder of a run"
            ) from error

    def _temporary(self, name: str) -> Path:
        return self.folder / f".tmp-{name}-{os.getpid()}"

    def _not_saved(self, content: _Content, error: OSError) -> InputError:
        return InputError(
            f"snapshot of step {content.step} not saved in {self.folder}: {error.strerror} "
            f"({content.size_bytes():,} bytes needed, {_free_bytes(self.folder):,} free); "
            f"{self._what_is_left()}. Make room there, or give another folder with --out"
        )

    def _what_is_left(self) -> str:
        with contextlib.suppress(InputError):
            for folder in self._newest_first()[0]:
                if _is_whole(folder):
                    return f"the last good snapshot, step {read_manifest(folder).step}, is intact"
        return "there is no earlier snapshot"


def _fill(folder: Path, content: _Content, sequence: int) -> None:
    """All files of a snapshot, the manifest last."""
    marks = {}
    for part, state in content.parts.items():
        name = part + PART_SUFFIX
        marks[name] = write_file(folder / name, arrays.chunks(_arrays(state), {PART_KEY: part}))
    for name, data in content.files.items():
        marks[name] = write_file(folder / name, [data])
    notes = {part: {k: note(k, v) for k, v in state.items()} for part, state in content.parts.items()}
    manifest = Manifest(content.step, sequence, content.config, notes, marks)
    for staged in content.staged:
        manifest = _taken_in(manifest, folder, folder.parent / staged.folder_name)
    write_file(folder / MANIFEST_NAME, [manifest.encode()])
    sync_folder(folder)


def _taken_in(manifest: Manifest, folder: Path, staged: Path) -> Manifest:
    """`manifest` with the parts in `staged`, whose files move into `folder`."""
    found = read_manifest(staged)
    for name in found.files:
        (staged / name).rename(folder / name)
    return replace(manifest, parts={**manifest.parts, **found.parts}, files={**manifest.files, **found.files})


def _step_name(step: int) -> str:
    return f"step_{step:08d}"


def _arrays(state: State) -> dict[str, arrays.Array]:
    return {name: value for name, value in state.items() if isinstance(value, np.ndarray)}


def _check_names(content: _Content) -> None:
    assert content.step >= 0, content.step
    parts = [*content.parts, *(staged.part for staged in content.staged)]
    names = [part + PART_SUFFIX for part in parts] + list(content.files)
    assert all(is_plain_name(name) for name in names), f"not names of files in one folder: {names}"
    assert len({*names, MANIFEST_NAME}) == len(names) + 1, f"one name for two files: {names}"


def _is_whole(folder: Path) -> bool:
    try:
        verify(folder)
    except InputError:
        return False
    return True


def _is_abandoned(process_id: int) -> bool:
    """True if the process is this one (its saves are over) or lives no more."""
    if process_id == os.getpid():
        return True
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def _remove(path: Path) -> None:
    """Remove a file or folder if it exists; `clean` tries again if it cannot be removed."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _free_bytes(folder: Path) -> int:
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
