"""A sample of the mutated inputs through the command line: one sentence, exit code 2, nothing written elsewhere."""

import sys
from pathlib import Path

import pytest

from tests.fuzz import material
from tests.fuzz.case import READ
from tests.fuzz.cases import cases_of
from tests.fuzz.test_mutations import MOST_MEMORY_KIB, is_a_sentence
from tests.multiproc.command import Command, Ended

BAD_INPUT = 2
TIMEOUT_S = 250.0
MEASURED = Path(__file__).with_name("measured.py")

QUICK = ("net: sizes of 2 to the 63rd", "caffemodel: messages 10,000 deep", "data: lmdb, a file of holes")
SAMPLE = (
    *("net: sound", "net: braces 10,000 deep", "net: a million layers", "net: type with escapes", "net: type of 10 MB"),
    *(
        "net: layer name with escapes",
        "net: name of 3 MB",
        "net: dummy data of 2 to the 40th",
        "net: lists 10,000 deep",
    ),
    *("solver: net is a device", "solver: net with line ends", "solver: rate is not a number"),
    *("caffemodel: sound caffemodel", "caffemodel: link to a device", "caffemodel: h5 link out of the file"),
    *("caffemodel: three bytes of floats", "caffemodel: a pickle", "caffemodel: a layer name of 10 MB"),
    *("solverstate: weights out of the folder", "solverstate: weights of a name of 10 MB"),
    *("data: sound lmdb", "data: record, empty", "data: image record, 100,000 x 100,000"),
    *("data: image list, a link out of the folder", "data: image list, a pipe", "data: hdf5, rows without an end"),
    *("data: layer, batches of 4 thousand million",),
)


@pytest.mark.parametrize("name", QUICK)
def test_refused_at_once(name: str, tmp_path: Path) -> None:
    assert_right(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str, tmp_path: Path) -> None:
    assert_right(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["../../out/of/it", "/tmp/samovar-elsewhere", "a/../../b"])
def test_nothing_is_written_out_of_the_run_folder(prefix: str, tmp_path: Path) -> None:
    """Names that lead elsewhere: of the net, of its layers, and of the snapshots."""
    folder = tmp_path / "one/two"
    folder.mkdir(parents=True)
    net = material.NET.replace('"small"', f'"{prefix}"').replace('"conv"', f'"{prefix}"')
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(material.SOLVER.replace('"small"', f'"{prefix}"'))
    before = everything(tmp_path)

    ended, _ = run(folder, ["train", "--solver", "solver.prototxt"])

    assert ended.return_code == 0, ended.errors
    (made,) = (folder / "runs").iterdir()
    assert len(list(made.glob("snapshots/*/*.caffemodel"))) == 2
    outside = {path for path in everything(tmp_path) if not path.is_relative_to(folder / "runs")}
    assert outside == before
    assert not Path("/tmp/samovar-elsewhere").exists()
    assert not list(Path("/tmp").glob("samovar-elsewhere*"))


def assert_right(name: str, folder: Path) -> None:
    (case,) = (case for case in cases_of([name.partition(":")[0]]) if case.name == name)
    inputs = folder / "inputs"
    inputs.mkdir()
    path = case.write(inputs)
    arguments = arguments_for(case.kind, path, inputs)
    before = everything(folder)

    ended, peak_kib = run(folder, arguments)

    print(ended.output, ended.errors)
    assert peak_kib < MOST_MEMORY_KIB
    assert "Traceback (most" not in ended.output + ended.errors
    if case.expected == READ:
        assert ended.return_code == 0
    else:
        assert ended.return_code == BAD_INPUT
        assert is_a_sentence(ended.error, len(ended.error))
        assert all(made.is_relative_to(folder / "runs") for made in everything(folder) - before)


def arguments_for(kind: str, path: Path, inputs: Path) -> list[object]:
    """The command that reads an input of this kind; a sound net, solver and weights are written beside it."""
    net = path if kind in ("net", "data") else inputs / "net.prototxt"
    if not net.exists():
        net.write_text(material.NET)
    solver = path if kind == "solver" else inputs / "solver.prototxt"
    if solver != path:
        solver.write_text(material.SOLVER)
    flags: dict[str, list[object]] = {"caffemodel": ["--weights", path], "solverstate": ["--snapshot", path]}
    return ["train", "--solver", solver, "--threads-per-worker", 1, *flags.get(kind, [])]


def run(folder: Path, arguments: list[object]) -> tuple[Ended, int]:
    """How it ended, and its largest memory."""
    peak = folder / ".peak"
    with Command(*arguments, folder=folder, prefix=(sys.executable, MEASURED, peak)) as command:
        ended = command.wait(TIMEOUT_S)
    return ended, int(peak.read_text())


def everything(folder: Path) -> set[Path]:
    """All files and folders but those that `run` itself makes."""
    return {path for path in folder.rglob("*") if not path.name.startswith((".output-", ".errors-", ".peak"))}
