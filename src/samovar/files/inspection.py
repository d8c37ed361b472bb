"""`samovar inspect`: the kind of a file, and a description of its content."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.checkpoint.manifest import MANIFEST_NAME
from samovar.core.errors import InputError
from samovar.data.shares import read_share
from samovar.files.conversion import MEAN, STATE, kind_of, read_mean_file
from samovar.files.inspection_nets import Wanted, describe_net, describe_solver, draw_net, is_net
from samovar.files.inspection_runs import (
    Description,
    TextTable,
    Value,
    describe_result,
    describe_run,
    describe_snapshot,
    is_result,
    is_run,
    show,
)
from samovar.formats.caffe.caffemodel import read_stored_net
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.caffe.solverstate import read_solverstate
from samovar.formats.lmdb_file import LmdbFile
from samovar.frontends.caffe.weight_files import is_named_file, read_named
from samovar.report.tables import print_json

__all__ = ["Wanted", "inspect"]

_TEXT_SUFFIXES = (".prototxt", ".pbtxt", ".prototext", ".txt")
_ARRAY_COLUMNS = ("mean", "deviation", "least", "largest", "not finite")
_MAX_LABELS = 20
Floats = npt.NDArray[np.float32]


def inspect(path: Path, wanted: Wanted, as_json: bool) -> None:
    """Print the kind and content of `path`; raises InputError if it is damaged or of an unknown kind."""
    if wanted.draw is not None:
        if not _is_text(path) or not is_net(path):
            raise InputError(f"--draw: {path} is not a net; give a net's prototxt")
        draw_net(path, wanted)
    try:
        description = describe(path, wanted)
    except InputError as error:
        if wanted.draw is None:
            raise
        description = Description("net", [("file", str(path))], notes=[f"drawn without shapes: {error}"])
    if as_json:
        print_json(description.as_plain())
    else:
        show(description)


def describe(path: Path, wanted: Wanted) -> Description:
    """A description of the file or folder at `path`."""
    if path.is_dir():
        return _describe_folder(path, wanted)
    if is_result(path):
        return describe_result(path)
    if _is_text(path):
        return describe_net(path, wanted) if is_net(path) else describe_solver(path)
    kind = kind_of(path)
    if kind == STATE:
        return _describe_state(path, wanted)
    if kind == MEAN:
        return _describe_mean(path)
    return _describe_tensors(path, wanted) if is_named_file(path) else _describe_weights(path, wanted)


def _is_text(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(_TEXT_SUFFIXES)


def _describe_weights(path: Path, wanted: Wanted) -> Description:
    try:
        stored = read_stored_net(path)
    except InputError as error:
        if not path.is_file() or ".caffemodel" in path.name:
            raise
        raise InputError(f"{path}: is of no kind that `samovar inspect --help` lists; give one of these") from error
    arrays = [(record, i, array) for record in stored.layers for i, array in enumerate(record.blobs) if array.size]
    rows = [(record.name, record.type, i, array.shape, array.size) for record, i, array in arrays]
    facts: list[tuple[str, Value]] = [
        ("file", str(path)),
        ("net", stored.name),
        ("layers", len(stored.layers)),
        ("layers with arrays", len({id(record) for record, _, _ in arrays})),
        *_sums([array for *_, array in arrays]),
    ]
    columns = ("layer", "type", "array", "shape", "values")
    return _with_values("weights (caffemodel)", facts, columns, rows, [array for *_, array in arrays], wanted)


def _describe_tensors(path: Path, wanted: Wanted) -> Description:
    arrays = read_named(path, may_be_momentum=True)
    rows = [(name, array.shape, array.size) for name, array in arrays.items()]
    facts: list[tuple[str, Value]] = [("file", str(path)), *_sums(list(arrays.values()))]
    return _with_values("tensors by name", facts, ("name", "shape", "values"), rows, list(arrays.values()), wanted)


def _describe_state(path: Path, wanted: Wanted) -> Description:
    state = read_solverstate(path)
    facts: list[tuple[str, Value]] = [
        ("file", str(path)),
        ("steps done", state.iteration),
        ("rate lowered", state.current_step),
        ("weights", state.learned_net),
        *_sums(state.history),
    ]
    rows = [(index, array.shape, array.size) for index, array in enumerate(state.history)]
    columns = ("history", "shape", "values")
    return _with_values("solver state", facts, columns, rows, list(state.history), wanted)


def _describe_mean(path: Path) -> Description:
    mean = read_mean_file(path)
    rows = [(index, *_statistics(channel)) for index, channel in enumerate(mean)]
    facts: list[tuple[str, Value]] = [("file", str(path)), ("shape", mean.shape)]
    return Description("mean image", facts, [TextTable("channels", ("channel", *_ARRAY_COLUMNS), rows)])


def _describe_folder(path: Path, wanted: Wanted) -> Description:
    if is_run(path):
        return describe_run(path)
    if (path / MANIFEST_NAME).exists():
        return describe_snapshot(path)
    if (path / "data.mdb").exists() or (path / "CURRENT").exists():
        return _describe_lmdb(path, wanted.num_records)
    raise InputError(f"{path}: a folder that is neither an LMDB, nor a run, nor a snapshot; give one of these")


def _describe_lmdb(path: Path, num_records: int) -> Description:
    if num_records < 1:
        raise InputError(f"--records {num_records}: give at least 1")
    with LmdbFile(path) as file:
        share = read_share(path, len(file))
        looked_at = min(len(file), num_records)
        labels: Counter[int] = Counter()
        shapes: Counter[str] = Counter()
        for key, value in file.records(np.arange(looked_at)):
            try:
                image, label = decode_datum(value)
            except InputError as error:
                raise InputError(f"{path}: record {key!r}: {error}") from error
            labels[label] += 1
            shapes[f"{' x '.join(map(str, image.shape))} {image.dtype}"] += 1
        first = file.key(0).decode("utf-8", "backslashreplace") if len(file) else ""
        facts: list[tuple[str, Value]] = [
            ("folder", str(path)),
            ("records", len(file)),
            *([] if share is None else [("part", f"{share} of {share.num_records:,} records")]),
            ("first key", first),
            ("looked into", looked_at),
            ("images", ", ".join(shapes) or "none"),
            ("labels", len(labels)),
        ]
    rows = [(label, count, count / looked_at) for label, count in sorted(labels.items())]
    return Description("LMDB of images", facts, [TextTable("labels", ("label", "records", "share"), rows, _MAX_LABELS)])


def _with_values(
    kind: str,
    facts: Sequence[tuple[str, Value]],
    columns: tuple[str, ...],
    rows: Sequence[tuple[Value, ...]],
    arrays: Sequence[Floats],
    wanted: Wanted,
) -> Description:
    bad = sum(array.size - int(np.isfinite(array).sum()) for array in arrays)
    notes = (f"{bad:,} values are NaN or infinite",) if bad else ()
    if wanted.values:
        columns = (*columns, *_ARRAY_COLUMNS)
        rows = [(*row, *_statistics(array)) for row, array in zip(rows, arrays, strict=True)]
    return Description(kind, facts, [TextTable("arrays", columns, rows)], notes)


def _sums(arrays: Sequence[Floats]) -> list[tuple[str, Value]]:
    return [("arrays", len(arrays)), ("values", sum(array.size for array in arrays))]


def _statistics(array: Floats) -> tuple[Value, ...]:
    """Mean, deviation, least and largest of the finite values, and the number of the others."""
    finite = array[np.isfinite(array)].astype(np.float64)
    if not finite.size:
        return (None, None, None, None, array.size)
    return (*map(float, (finite.mean(), finite.std(), finite.min(), finite.max())), array.size - finite.size)
