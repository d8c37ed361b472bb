"""Every command in the README and the documents is run, in the order in which a document shows them.

Each document gets a folder with what its commands talk about: the examples, a small solver, a trained net.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
BESIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/zoo/README.md")]
DOCUMENTS = sorted([*BESIDE, *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```([a-z ]*)\n(.*?)^```|^((?:    \S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
PROGRAMS = ("samovar", "python", "torchrun", "mpiexec", "srun", "sbatch", "make", "git", "pip")

AT_BOX = (
    "samovar train --solver examples/lenet/digits_solver.prototxt --threads-per-worker 1 --iterations 3000 "
    "--strategy shm-easgd"
)
# Commands that no test can run as they stand, each with what does in their place.
ELSEWHERE = {
    "git clone <this repository> samovar && cd samovar": "the tests run in what it makes",
    "samovar box serve": "it runs until Ctrl-C; test_box.py does what docs/box.md shows",
    "samovar box list": "it needs a server; test_box.py",
    "samovar box snapshot lenet --out lenet.safetensors": "it needs a server; test_box.py",
    "samovar box load lenet-2 lenet.safetensors": "it needs a server; test_box.py",
    "samovar box drop lenet": "it needs a server; test_box.py",
    "samovar box list --box 192.0.2.1:4711 --key-file box.key": "it needs a server; test_box.py",
    "samovar box snapshot lenet --out lenet.safetensors --box 192.0.2.1:4711 --key-file box.key": (
        "it needs a server; test_box.py"
    ),
    "samovar box serve --box-snapshot box": "it runs until Ctrl-C; test_box.py",
    **dict.fromkeys(
        [
            f"{AT_BOX} --box default --out runs/first",
            f"{AT_BOX} --box default --join --out runs/second",
            f"{AT_BOX} --box host0:4711 --key-file box.key --join",
        ],
        "it needs a server; test_train_box.py",
    ),
    f"{AT_BOX} --box host0:4711,host1:4711,host2:4711 --key-file box.key": "it needs servers; test_split_box.py",
    "samovar box serve --listen 192.0.2.1:4711 --key-file box.key": "it runs until Ctrl-C; test_train_box.py",
    "samovar data images --folder FOLDER --resize 256x256 --out data/flowers_lmdb --mean data/mean.binaryproto": (
        "it needs images; test_data_images.py"
    ),
    **dict.fromkeys(
        [
            "samovar data leveldb --source FOLDER --out data/flowers_lmdb",
            "samovar data leveldb --source images_leveldb --out images_lmdb",
        ],
        "it needs a LevelDB; test_leveldb.py",
    ),
    "make demo": "it makes an environment first; test_demo.py",
    "samovar train --solver examples/zoo/cifar10_quick/solver.prototxt": "4,000 iterations take too long",
    "make test": "it runs this very test",
    "srun --ntasks 2 python examples/torch/mnist.py --epochs 1": "test_torch_example.py starts a cluster for it",
    "sbatch examples/slurm/train.sbatch examples/torch/mnist.py --strategy sync-easgd --checkpoint checkpoints": (
        "test_torch_example.py starts a cluster for it"
    ),
    "samovar run --nodes 2 --node-rank 0 --master-addr host0 --master-port 29500 -n 2 examples/torch/mnist.py": (
        "test_torch_example.py runs two launchers, with a free port"
    ),
}
# What documents call something, and what stands for it here.
DATA_SETS = {"mnist": "mnist", "fashion-mnist": "fashion-mnist", "cifar10": "cifar-10"}  # their folders
STAND_INS = {f"data {name} --source FOLDER": f"data {name} --source {DATA_SETS[name]}" for name in DATA_SETS}
# Those that are over in a few seconds run in every suite.
QUICK = (
    "samovar data digits --out data",
    "samovar run -n 4 script.py --its --own arguments",
    "samovar run -n auto -m package.module",
    "samovar run -n 2 script.py",
)


@dataclass(frozen=True)
class Shown:
    """A command line, and the document that shows it."""

    document: Path
    command: str


def code_blocks(document: Path, languages: tuple[str, ...]) -> Iterator[str]:
    """The content of fences of these languages ("" for none), and indented code where "" is among them."""
    for language, fenced, indented in BLOCK.findall(document.read_text(encoding="utf-8")):
        if indented and "" in languages:
            yield indented
        elif fenced and language in languages:
            yield fenced


def commands_of(document: Path) -> list[str]:
    """All of shell blocks; of blocks without a language, lines that begin with a program's name."""
    lines = [line for block in code_blocks(document, ("sh", "bash")) for line in joined(block)]
    for block in code_blocks(document, ("",)):
        lines += [line for line in joined(block) if is_command(line)]
    return [line for line in lines if line]


def joined(block: str) -> list[str]:
    """Lines of commands, without comments and prompts; \\ at an end goes on with the next."""
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+#.*|^#.*", "", line).strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in lines]


def is_command(line: str) -> bool:
    return line.split(" ", 1)[0] in PROGRAMS


def all_shown() -> list[Shown]:
    return [Shown(document, command) for document in DOCUMENTS for command in dict.fromkeys(commands_of(document))]


def named(document: Path) -> str:
    """Two are called README.md."""
    return document.name if document.parent in (ROOT, ROOT / "docs") else str(document.relative_to(ROOT))


def parameters() -> list[object]:
    marked: list[object] = []
    for shown in all_shown():
        marks = [] if shown.command in QUICK else [pytest.mark.slow, pytest.mark.timeout(400)]
        marked.append(pytest.param(shown, marks=marks, id=f"{named(shown.document)}: {shown.command}"[:90]))
    return marked


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """A folder for each document, since commands build on what earlier ones left."""
    return {document: prepared(tmp_path_factory.mktemp(document.stem)) for document in DOCUMENTS}


def prepared(folder: Path) -> Path:
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "script.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    (folder / "package").mkdir()
    (folder / "package" / "module.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    (folder / "package" / "__init__.py").touch()
    lenet = ROOT / "examples" / "lenet"
    solver = (lenet / "digits_solver.prototxt").read_text()
    net = (lenet / "digits_train_test.prototxt").read_text()
    short = re.sub(r"max_iter: \d+", "max_iter: 4", re.sub(r"net: \".*\"", 'net: "net.prototxt"', solver))
    (folder / "solver.prototxt").write_text(short)
    (folder / "net.prototxt").write_text(re.sub(r"source: \".*/", 'source: "data/', net))
    return folder


def run(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )


def provide(command: str, folder: Path) -> None:
    """The files that the command reads and no earlier one has made."""
    if any(name in command for name in ("solver.prototxt", "net.prototxt", "model.caffemodel", "inspect data")):
        need(folder, "data", "samovar data digits --out data")
    if "model.caffemodel" in command:
        need(folder, "trained", "samovar train --solver solver.prototxt --out trained")
        saved = next((folder / "trained").rglob("*.caffemodel"))
        shutil.copy(saved, folder / "model.caffemodel")
    if "--calibration calibration.json" in command:
        need(folder, "calibration.json", "samovar doctor --save calibration.json")


def need(folder: Path, name: str, command: str) -> None:
    if not (folder / name).exists():
        made = run(command, folder)
        assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("shown", parameters())
def test_a_command_of_a_document_works(shown: Shown, folders: dict[Path, Path], request: pytest.FixtureRequest) -> None:
    if shown.command in ELSEWHERE:
        pytest.skip(f"not run as it stands: {ELSEWHERE[shown.command]}")
    command, folder = shown.command, folders[shown.document]
    for name, stand_in in STAND_INS.items():
        command = command.replace(name, stand_in)
    for name in DATA_SETS.values():
        if f"--source {name} " in command and not (folder / name).exists():
            (folder / name).symlink_to(request.getfixturevalue("data_folder") / name)
    if not shutil.which(command.split(" ", 1)[0], path=f"{BIN}{os.pathsep}{os.environ['PATH']}"):
        pytest.skip(f"{command.split(' ', 1)[0]} is not installed")
    provide(command, folder)
    ended = run(command, folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_lists_above_name_only_what_documents_show() -> None:
    shown = {one.command for one in all_shown()}
    assert {*ELSEWHERE, *QUICK} - shown == set()


def programs_of(document: Path) -> list[str]:
    """All blocks of a document, one after the other, are one program; a block that says `alone` is another."""
    together = "\n".join(code_blocks(document, ("python",)))
    return [program for program in (together, *code_blocks(document, ("python alone",))) if program]


def all_programs() -> list[object]:
    return [
        pytest.param(program, id=f"{named(document)} {number}")
        for document in DOCUMENTS
        for number, program in enumerate(programs_of(document), 1)
    ]


def test_an_indented_command_ends_where_the_text_goes_on(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("Text:\n\n    samovar first\n\nmake sure of it:\n\n```python\nimport samovar\n```\n")
    assert commands_of(document) == ["samovar first"]
    assert programs_of(document) == ["import samovar\n"]


@pytest.mark.parametrize("launched_by", ["python", pytest.param("samovar run -n 2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", all_programs())
def test_the_python_of_a_document_works(text: str, launched_by: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    program = tmp_path / "program.py"
    program.write_text(PYTHON_BEFORE + text)
    ended = run(f"{launched_by} {program}", tmp_path)
    assert ended.returncode == 0, ended.stderr


# What documents take for granted: any user's script has it.
PYTHON_BEFORE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samovar

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss_fn = F.cross_entropy
data = TensorDataset(torch.randn(32, 6), torch.randint(3, (32,)))
loader = test_loader = DataLoader(data, 8, shuffle=True)
"""
