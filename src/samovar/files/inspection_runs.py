"""`samovar inspect` of run folders, results and snapshots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from samovar.checkpoint.manifest import MANIFEST_NAME
from samovar.checkpoint.reading import read_manifest, verify
from samovar.core.errors import InputError
from samovar.core.plain import to_plain
from samovar.report.history import is_of_last_run, log_end
from samovar.report.result import RunResult, WorkerFigures, read_result
from samovar.report.run_folder import RunFolder, read_config, strategy_settings
from samovar.report.tables import printer, show_facts, show_lines, show_table

Value: TypeAlias = str | int | float | bool | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TextTable:
    """`rows` have a value for each of `columns`; `most_shown` of them are shown, and all are in JSON."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]
    most_shown: int | None = None

    @property
    def num_hidden(self) -> int:
        return 0 if self.most_shown is None else max(0, len(self.rows) - self.most_shown)


@dataclass(frozen=True, slots=True)
class Description:
    """`kind` names the thing; `notes` are sentences for the end."""

    kind: str
    facts: Sequence[tuple[str, Value]]
    tables: Sequence[TextTable] = ()
    notes: Sequence[str] = field(default=())

    def as_plain(self) -> dict[str, object]:
        """One object: kind, facts by name, rows by table and column, notes."""
        tables = {t.title: [dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in self.tables}
        facts = {f"number of {name}" if name in tables else name: value for name, value in self.facts}
        return {"kind": self.kind, **facts, **tables, "notes": self.notes}


def show(description: Description) -> None:
    """Print it: tables that fit the terminal, columns of plain text elsewhere."""
    console = printer()
    show_facts(console, description.kind, [(name, _text(value)) for name, value in description.facts])
    for table in description.tables:
        console.print()
        rows = [[_text(value) for value in row] for row in table.rows[: table.most_shown]]
        columns = range(len(table.columns))
        right = [all(isinstance(row[column], int | float | None) for row in table.rows) for column in columns]
        show_table(console, table.title, table.columns, rows, right)
    hidden = [f"{table.num_hidden} more {table.title}" for table in description.tables if table.num_hidden]
    show_lines(console, *hidden, *description.notes)


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else " x ".join(map(str, value)) or "()"


_SHOWN_SETTINGS = ("box", "buffer", "stop_rule", "workers", "threads_per_worker", "batch_mode", "seed")
_WORKER_COLUMNS = (
    *("rank", "steps", "samples/s", "loss", "updates", "staleness", "waited s", "distance", "restarts", "is gone"),
)
_SHOWN_FILES = ("config", "metrics", "result", "log", "trace")


def is_run(path: Path) -> bool:
    """Whether the folder is a run's."""
    return RunFolder(path).config.is_file()


def is_result(path: Path) -> bool:
    """Whether the file is a run's result."""
    return path.is_file() and path.name == RunFolder(path.parent).result.name


def describe_run(path: Path) -> Description:
    """The settings, the result and the snapshots; InputError if one of the files cannot be read."""
    folder = RunFolder(path)
    ended = folder.result.is_file()
    facts: list[tuple[str, Value]] = [
        ("folder", str(path)),
        *_config_facts(folder.config),
        ("files", ", ".join(file.name for name in _SHOWN_FILES if (file := getattr(folder, name)).is_file())),
    ]
    tables: list[TextTable] = []
    if ended:
        result, known = read_result(folder.result), {name for name, _ in facts}
        facts += [(name, value) for name, value in _result_facts(result) if name not in known]
        tables += _workers(result)
    snapshots, damaged = _snapshots(folder.snapshots)
    tables.append(TextTable("snapshots", ("name", "steps done", "bytes"), snapshots))
    notes = () if ended else ("no result.json: the run has not ended, or was ended by force",)
    if ended and not is_of_last_run(folder, log_end(folder.log)):
        notes = ("result.json is older than config.json: it is of an earlier launch, and the last one has not ended",)
    return Description("run", facts, tables, (*notes, *damaged))


def describe_result(path: Path) -> Description:
    result = read_result(path)
    return Description("result of a run", [("file", str(path)), *_result_facts(result)], _workers(result))


def describe_snapshot(path: Path) -> Description:
    """Reads all files and compares them with their hashes."""
    manifest = verify(path)
    facts: list[tuple[str, Value]] = [
        ("folder", str(path)),
        ("steps done", manifest.step),
        *_settings(manifest.config),
        ("hashes", "all right"),
    ]
    files = [(name, mark.size_bytes, mark.sha256[:12]) for name, mark in manifest.files.items()]
    parts = [(part, len(values)) for part, values in manifest.parts.items()]
    tables = [TextTable("files", ("name", "bytes", "sha256"), files), TextTable("parts", ("part", "values"), parts)]
    return Description("snapshot", facts, tables)


def _config_facts(path: Path) -> list[tuple[str, Value]]:
    """The facts of any version's configuration. Other programs keep a config.json, too."""
    config = read_config(path)
    if not isinstance(config, dict) or "strategy" not in config:
        raise InputError(f"{path}: is not a run's configuration; give the folder of a run")
    return _settings(config)


def _settings(config: Mapping[str, object]) -> list[tuple[str, Value]]:
    """The settings that were given or found for the run; all those of the strategy."""
    settings = strategy_settings(config)
    found = {"solver": config.get("model"), "strategy": settings.pop("name", None), **settings}
    found |= {name: config.get(name) for name in _SHOWN_SETTINGS}
    return [(name.replace("_", " "), value) for name, value in found.items() if isinstance(value, str | int | float)]


def _result_facts(result: RunResult) -> list[tuple[str, Value]]:
    """The fields that have a value, in their order, spelled as in the file with spaces for underscores."""
    return [
        (name.replace("_", " "), value)
        for name, value in to_plain(result).items()
        if isinstance(value, str | int | float) and value != ""
    ]


def _workers(result: RunResult) -> list[TextTable]:
    """The figures of each worker, if workers do not wait for each other."""
    rows = [(rank, *_figures(worker)) for rank, worker in enumerate(result.by_worker)]
    return [TextTable("workers", _WORKER_COLUMNS, rows)] if rows else []


def _figures(worker: WorkerFigures) -> tuple[Value, ...]:
    counts = worker.staleness
    staleness = sum(index * count for index, count in enumerate(counts)) / max(1, sum(counts))
    speed, lost = worker.samples_per_second, worker.lock_wait_s
    shown = (worker.steps, speed, worker.loss, worker.updates, staleness, lost, worker.distance, worker.restarts)
    return (*shown, worker.is_gone)


def _snapshots(folder: Path) -> tuple[list[tuple[Value, ...]], tuple[str, ...]]:
    """Name, step and size of each, by step; a sentence for each that cannot be read. Hashes are not checked."""
    rows: list[tuple[Value, ...]] = []
    damaged = []
    for path in sorted(folder.glob(f"*/{MANIFEST_NAME}")):
        if path.parent.is_symlink() or path.parent.name.startswith("."):
            continue
        try:
            manifest = read_manifest(path.parent)
        except InputError as error:
            damaged.append(str(error))
            continue
        rows.append((path.parent.name, manifest.step, sum(mark.size_bytes for mark in manifest.files.values())))
    return sorted(rows, key=lambda row: (row[1], row[0])), tuple(damaged)
