"""A checkpoint of several processes in one safetensors file, which is whole or does not exist.

Each process writes the tensors that the first one has not got into a part next to the file. The first process joins the
parts, and renames the result into place. So the last checkpoint stays whole until the next one is, also after a kill or
a power cut. Processes meet by these files alone, so that they may train meanwhile. The header of the file holds:

    {"format": "samovar-checkpoint", "version": "1", "sha256": "...", "manifest": '{"parts": [
        {"note": ..., "tensors": {"model/weight": ["rank_0/model/weight", "<its sha256>"]}}, ...]}'}
"""

import errno
import glob
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from samovar.checkpoint import arrays
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.core.files import publish_file
from samovar.transports.processes import open_process

FORMAT, VERSION = "samovar-checkpoint", "1"
_PIECE_BYTES = 1 << 24
_POLL_S = 0.01
_NEXT_STEP = "use another checkpoint"
_GIVE = "give a file that replica.save() wrote"


@dataclass(frozen=True, slots=True)
class Block:
    """A tensor's bytes, its dtype as safetensors calls it, and its shape."""

    code: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    def pieces(self) -> Iterator[memoryview]:
        for start in range(0, self.num_bytes, _PIECE_BYTES):
            yield self.data[start : start + _PIECE_BYTES]

    def digest(self) -> str:
        """SHA-256 of dtype, shape and bytes."""
        digest = hashlib.sha256(f"{self.code} {list(self.shape)} ".encode())
        digest.update(self.data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """The tensors of one process by name, and a note of any JSON."""

    note: Any
    blocks: Mapping[str, Block]


@dataclass(frozen=True, slots=True)
class Save:
    """One save to `path`, by `world_size` processes that share its folder. `token` is of this save alone.

    `marks` tell for processes on this host whether they live (see `samovar.transports.processes`); "" for others.
    """

    path: Path
    token: str
    rank: int
    world_size: int
    timeout_s: float
    marks: Sequence[str] = ()

    def begin(self) -> None:
        """On the first process: make the folder, remove what dead saves left there, and show that this one begins.

        Raises InputError if nothing can be written there.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            name = re.escape(self.path.name)  # no pattern fits the files of a longer name, such as "name.best"
            ours = rf"\.{name}\.(\d+\.partial|[^.]+\.(begun|known|(\d+\.)?(part|failed)))"
            theirs = rf"\.\.{name}\.[^.]+\.(known|\d+\.part)\.\d+\.partial"
            for left in self.path.parent.iterdir():
                if re.fullmatch(f"{ours}|{theirs}", left.name):
                    left.unlink(missing_ok=True)
            self._place("begun").touch()
        except FileExistsError as error:
            raise self._not_saved(NotADirectoryError(errno.ENOTDIR, "its folder is a file")) from error
        except OSError as error:
            raise self._not_saved(error) from error

    def require_shared(self) -> None:
        """Raises InputError if this process does not see the folder of the first one."""
        if not self._place("begun").exists():
            raise InputError(
                f"rank {self.rank}: save: {self.path.parent} is not the folder that rank 0 sees; give one that all "
                "hosts share"
            )

    def write(self, part: Part, moved: Callable[[], None]) -> None:
        """Write this process's part, and return when the file is complete. `moved` is called after each piece.

        Raises InputError if the disk refuses. Raises DeadlineExceeded if nothing comes of another process for
        `timeout_s`, RankFailed if that one has ended, and SamovarError if it failed. Cost: each tensor's bytes once on
        the disk; twice if they are not those of the first process.
        """
        try:
            if self.rank == 0:
                self._join(part, moved)
            else:
                self._contribute(part, moved)
        except (OSError, SamovarError) as error:
            with suppress(OSError):
                self._place("known" if self.rank == 0 else f"{self.rank}.part").unlink(missing_ok=True)
                self._place(f"{self.rank}.failed").touch()
            if isinstance(error, OSError):
                raise self._not_saved(error) from error
            raise

    def _contribute(self, part: Part, moved: Callable[[], None]) -> None:
        digests = _digests(part, moved)
        known_file, begun = self._place("known"), self._place("begun")
        self._await(known_file.exists, 0, moved)
        tensors, prefix = keys_of(digests, json.loads(known_file.read_bytes()), self.rank), f"rank_{self.rank}/"
        own = {key: part.blocks[name] for name, (key, _) in tensors.items() if key.startswith(prefix)}
        note = json.dumps({"note": part.note, "tensors": tensors})
        publish_file(self._place(f"{self.rank}.part"), _file(own, {"manifest": note}, moved))
        self._await(lambda: not begun.exists(), 0, moved)

    def _join(self, part: Part, moved: Callable[[], None]) -> None:
        digests = _digests(part, moved)
        known = known_of(digests)
        if self.world_size > 1:
            publish_file(self._place("known"), [json.dumps(known).encode()])
        parts = [self._received(rank, moved) for rank in range(1, self.world_size)]
        notes = [{"note": part.note, "tensors": keys_of(digests, known, 0)}, *(note for note, _ in parts)]
        blocks: dict[str, Block | _Stored] = {f"rank_0/{name}": block for name, block in part.blocks.items()}
        for _, stored in parts:
            blocks |= stored
        publish_file(self.path, _file(blocks, _sealed(json.dumps({"parts": notes})), moved))
        begun = self._place("begun")  # whose end says to the others that all is done
        for path in {*self.path.parent.glob(f".{glob.escape(self.path.name)}.{self.token}.*")} - {begun}:
            path.unlink(missing_ok=True)
        begun.unlink()

    def _received(self, rank: int, moved: Callable[[], None]) -> "tuple[Any, dict[str, _Stored]]":
        """The note of another process, and its tensors, which are in its part."""
        place = self._place(f"{rank}.part")
        self._await(place.exists, rank, moved)
        with place.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            fields = json.loads(file.read(length))
        note = json.loads(fields.pop("__metadata__")["manifest"])
        return note, {
            key: _Stored(each["dtype"], tuple(each["shape"]), place, 8 + length + first, last - first)
            for key, each in fields.items()
            for first, last in [each["data_offsets"]]
        }

    def _await(self, has_come: Callable[[], bool], rank: int, moved: Callable[[], None]) -> None:
        """Wait for process `rank`, which may take long, as long as any file of this save grows."""
        failed, name = self._place(f"{rank}.failed"), re.escape(self.path.name)
        ours = re.compile(rf"\.\.?{name}\.({re.escape(self.token)}\..+|\d+\.partial)")
        size, deadline = -1, Deadline.after(self.timeout_s)
        mark, who = self.marks[rank] if self.marks else "", f"rank {self.rank}: save: "
        process = open_process(mark) if mark else None
        with closing(process) if process else nullcontext():
            while not has_come():
                if failed.exists():
                    raise SamovarError(f"{who}rank {rank} could not write {self.path}; see its error")
                if process is not None and process.ended() and not has_come():
                    raise RankFailed(f"{who}rank {rank} ended before {self.path} was complete; see its log")
                grown = sum(_size_of(other) for other in self.path.parent.iterdir() if ours.fullmatch(other.name))
                if grown != size:
                    size, deadline = grown, Deadline.after(self.timeout_s)
                    moved()
                if deadline.passed():
                    raise DeadlineExceeded(
                        f"{who}nothing of {self.path} came from rank {rank} within {self.timeout_s:g} s; is its disk "
                        "stuck? See its log"
                    )
                time.sleep(_POLL_S)

    def _place(self, kind: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{self.token}.{kind}")

    def _not_saved(self, error: OSError) -> InputError:
        return InputError(
            f"rank {self.rank}: save: {self.path} cannot be written: {error.strerror}; make room, or give a file "
            "elsewhere. An earlier file of this name is whole"
        )


def known_of(digests: Mapping[str, str]) -> dict[str, str]:
    """The keys of the first process's tensors, which it tells the others, by name and hash."""
    return {f"{name} {digest}": f"rank_0/{name}" for name, digest in digests.items()}


def keys_of(digests: Mapping[str, str], known: Mapping[str, str], rank: int) -> dict[str, tuple[str, str]]:
    """The key and hash of each tensor of process `rank`: those of the first process for one that it has, too."""
    return {name: (known.get(f"{name} {digest}", f"rank_{rank}/{name}"), digest) for name, digest in digests.items()}


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint whose manifest is right: for each process its note, and its tensors' keys in the file and hashes."""

    path: Path
    notes: list[Any]
    tensors: list[dict[str, tuple[str, str]]]

    @classmethod
    def read(cls, path: Path) -> "CheckpointFile":
        """Raises InputError if the file is missing, damaged, or of another kind. Cost: the header is read."""
        if path.is_dir():
            raise InputError(f"load: {path} is a folder; {_GIVE}")
        try:
            with safe_open(path, "np") as file:
                metadata = file.metadata() or {}
        except FileNotFoundError as error:
            raise InputError(f"load: {path} does not exist; {_GIVE}") from error
        except SafetensorError as error:
            reason = f"is not a safetensors file, or is damaged: {error}"
            raise InputError(f"load: {path} {reason}; {_GIVE}, and read files of torch.save by torch.load") from error
        except OSError as error:
            raise InputError(f"load: {path} cannot be read: {error}; {_NEXT_STEP}") from error
        if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
            raise InputError(f"load: {path} is not a checkpoint of version {VERSION}; {_GIVE}")
        manifest = metadata.get("manifest", "")
        if _sealed(manifest) != metadata:
            raise InputError(f"load: {path} is damaged: its manifest does not match its sha256; {_NEXT_STEP}")
        try:
            parts = json.loads(manifest)["parts"]
            tensors = [{name: (key, digest) for name, (key, digest) in part["tensors"].items()} for part in parts]
            return cls(path, [part["note"] for part in parts], tensors)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"load: {path} is damaged: its manifest has another shape; {_NEXT_STEP}") from error

    def require_intact(self, name: str, found: str, digest: str) -> None:
        """Raises InputError unless the hash that was `found` is that of the manifest."""
        if found != digest:
            raise InputError(
                f"load: {self.path} is damaged: tensor {name!r} has sha256 {found[:12]}..., the manifest says "
                f"{digest[:12]}...; {_NEXT_STEP}"
            )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in the part of another process."""

    code: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    num_bytes: int

    def pieces(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, self.num_bytes, _PIECE_BYTES):
                yield file.read(min(_PIECE_BYTES, self.num_bytes - start))


def _file(
    blocks: Mapping[str, "Block | _Stored"], metadata: Mapping[str, str], moved: Callable[[], None]
) -> Iterator[bytes | memoryview]:
    """A safetensors file in pieces; wide types first, so that all are aligned."""
    order = sorted(blocks, key=lambda key: (-_bits(blocks[key].code), key))
    yield arrays.header(
        {key: (block.code, block.shape, block.num_bytes) for key in order for block in [blocks[key]]}, metadata
    )
    for key in order:
        for piece in blocks[key].pieces():
            moved()
            yield piece


def _bits(code: str) -> int:
    return 8 if code == "BOOL" else int(re.search(r"\d+", code)[0])  # type: ignore[index]


def _digests(part: Part, moved: Callable[[], None]) -> dict[str, str]:
    digests = {}
    for name, block in part.blocks.items():
        digests[name] = block.digest()
        moved()
    return digests


def _sealed(manifest: str) -> dict[str, str]:
    sha256 = hashlib.sha256(manifest.encode()).hexdigest()
    return {"format": FORMAT, "version": VERSION, "sha256": sha256, "manifest": manifest}


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # renamed this moment
        return 0
