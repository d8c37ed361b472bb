"""The folder that a run leaves behind."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from samovar.core.errors import InputError
from samovar.core.files import opened, publish_file
from samovar.core.plain import to_plain

DEFAULT_PARENT = Path("runs")
_MAX_NAME_LENGTH = 60
_ADVICE = "make room there or give another folder with --out"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The places of a run's files; the folder exists, the files come one by one."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def log(self) -> Path:
        return self.path / "samovar.log"

    @property
    def trace(self) -> Path:
        return self.path / "trace.json.gz"

    @property
    def report(self) -> Path:
        """The page of `samovar report`."""
        return self.path / "report.html"

    def trace_part(self, rank: int) -> Path:
        """One rank's part of the trace, under a temporary name."""
        return self.path / f".tmp-trace-rank{rank}"

    def order(self, rank: int) -> Path:
        """The order in which a rank met the center (--record)."""
        return self.path / f"order_rank{rank}.bin"

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank{rank}.log"


@contextlib.contextmanager
def order_is_written(path: Path) -> Iterator[None]:
    """Inside, writing fails with an InputError that says what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; make room there, or train without --record"
        ) from error


def at_folder(written: str | Path) -> Path:
    """The folder of --out. Raises InputError for "": a variable that is not set would mean the current folder."""
    if written == "":
        raise InputError("--out '': names no folder; give one, such as . for the current folder")
    return Path(written)


def create_run_folder(out: Path | None, net_name: str, strategy: str, now: datetime) -> RunFolder:
    """Create `out` (it may exist already), or runs/<YYYYMMDD-HHMM>-<net>-<strategy>, never used before.

    Raises InputError if the folder cannot be created or written to.
    """
    try:
        if out is None:
            name = f"{now:%Y%m%d-%H%M}-{_safe(net_name) or 'net'}-{_safe(strategy) or 'run'}"
            return RunFolder(_new_folder(DEFAULT_PARENT, name))
        return create_run_folder_at(out)
    except OSError as error:
        raise _refused(DEFAULT_PARENT, error) from error


def create_run_folder_at(out: Path, flag: str = "--out") -> RunFolder:
    """Create `out`, which may exist already. Raises InputError if it cannot be created or written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        _probe(out)
    except OSError as error:
        raise _refused(out, error, flag) from error
    return RunFolder(out)


def create_figures_folder(folder: Path, what: str) -> RunFolder:
    """The same for the figures of a loop. Raises InputError about `what`, too, if it has a run of `samovar train`."""
    if RunFolder(folder).log.exists():
        raise InputError(f"{what} {str(folder)!r}: has a run of `samovar train`; give another folder")
    return create_run_folder_at(folder, what.rpartition(" ")[2])


def _refused(folder: Path, error: OSError, flag: str = "--out") -> InputError:
    advice = f"give a folder that can be written to with {flag}"
    return InputError(f"cannot use {folder} as run folder: {error.strerror}; {advice}")


def run_folders_of(net_name: str, strategies: Iterable[str]) -> list[Path]:
    """The folders under runs/ that `create_run_folder` made for this net, of any strategy; `strategies` are known.

    In "lenet-big-sync" the net is "lenet-big", unless "big-sync" is a strategy.
    """
    form = re.compile(rf"\d{{8}}-\d{{4}}-{re.escape(_safe(net_name) or 'net')}-(.+?)(-\d+)?")
    known = {_safe(name) for name in strategies}
    others = tuple(f"-{name}" for name in known)
    rests = {path: match[1] for path in sorted(DEFAULT_PARENT.glob("*")) if (match := form.fullmatch(path.name))}
    return [path for path, rest in rests.items() if rest in known or not rest.endswith(others)]


def whole_number(digits: str) -> int:
    """For `parse_int` of json.loads. Raises ValueError for one that figures cannot be computed with."""
    number = int(digits)
    if abs(number) >> 64:
        raise ValueError(f"the number {digits[:20]}... has more than 64 bits")
    return number


def read_json(path: Path) -> object:
    """The JSON in a file of a run. Raises OSError, ValueError or RecursionError."""
    with opened(path) as file:
        return json.load(file, parse_int=whole_number)


def read_config(path: Path) -> object:
    """A run's configuration of any version, as JSON has it. Raises InputError."""
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as a run's configuration: {error}") from error


def config_of(folder: RunFolder) -> Mapping[str, Any]:
    """The configuration of the run that began last in this folder; empty if there is none. Raises InputError."""
    config = read_config(folder.config) if folder.config.exists() else None
    return config if isinstance(config, dict) else {}


def strategy_settings(config: Mapping[str, object]) -> dict[str, object]:
    """The name and settings of the strategy in a configuration, a user's own too; none that is off or not given."""
    strategy = config.get("strategy")
    settings = strategy if isinstance(strategy, dict) else {"name": strategy}
    own = settings.get("own")  # of a user's strategy
    settings = settings | own if isinstance(own, dict) else settings
    return {name: value for name, value in settings.items() if value is not None and value is not False}


def write_json_atomic(path: Path, data: Mapping[str, object], advice: str = _ADVICE) -> None:
    """Write `data` to `path` as indented JSON: the old file or the new one, never half of one.

    Raises InputError, which `advice` ends, if the disk refuses; the old file then stays.
    """
    text = json.dumps(to_plain(data), indent=2, allow_nan=False) + "\n"
    write_atomic(path, text.encode(), advice)


def write_atomic(path: Path, content: bytes, advice: str = _ADVICE) -> None:
    """The same for bytes."""
    try:
        publish_file(path, [content])
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror} ({len(content):,} bytes); {advice}") from error


def _safe(name: str) -> str:
    """Only characters that are plain in file names everywhere, lower-case."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower())[:_MAX_NAME_LENGTH].strip("-.")


def _new_folder(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for turn in count(1):
        path = parent / (name if turn == 1 else f"{name}-{turn}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("count() has no end")


def _probe(folder: Path) -> None:
    """Check now, not at the first snapshot, whether a file can be created here."""
    probe = folder / f".tmp-probe-{os.getpid()}"
    probe.touch()
    probe.unlink()
