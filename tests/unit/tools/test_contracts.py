"""The picture of the rooms is enforced: an import against it breaks `make lint`."""

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

PICTURE = "Imports go one way through the rooms"
TRANSPORTS = "Strategies and collectives know no concrete transport"
GROUND = "The ground of communication knows no torch"
OWN_LOOP = "A user's own loop needs no Caffe"
LAUNCHER = "The command line and the launcher know no torch"
# -S leaves out the hook of the editable installation, which would find the original.
LINT = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"


@pytest.fixture
def copy(tmp_path: Path, repository_root: Path) -> Path:
    """The package and its contracts, to be spoiled."""
    shutil.copytree(repository_root / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(repository_root / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> tuple[int, str]:
    places = os.pathsep.join([str(folder / "src"), *site.getsitepackages()])
    ended = subprocess.run(
        [sys.executable, "-S", "-c", LINT],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": places, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_the_package_keeps_its_contracts(copy: Path) -> None:
    code, output = lint(copy)
    assert code == 0, output
    for name in (PICTURE, TRANSPORTS, GROUND, OWN_LOOP, LAUNCHER):
        assert f"{name} KEPT" in output


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("solver/planted", "import samovar.strategies.sync", PICTURE),
        ("core/planted", "from samovar.transports.shm import RunBoard", PICTURE),
        ("formats/planted", "from samovar.collectives import ring", PICTURE),
        ("membership/planted", "from samovar.report.metrics import MetricsWriter", PICTURE),
        ("checkpoint/planted", "def late():\n    from samovar.cli import train", PICTURE),
        ("planted/__init__", "", PICTURE),
        ("strategies/planted", "import samovar.transports.shm", TRANSPORTS),
        ("collectives/planted", "from samovar.transports.unix_sockets import join_files", TRANSPORTS),
        ("collectives/planted", "import samovar.transports.torch_dist", TRANSPORTS),
        ("formats/planted", "import torch", GROUND),
        ("api/planted", "import samovar.solver.policy", OWN_LOOP),
        ("frontends/torch/planted", "from samovar.data import cache", OWN_LOOP),
        ("transports/shm", "from torch.distributed import TCPStore", GROUND),
        ("launch/identity", "import samovar.transports.torch_dist", LAUNCHER),
        ("cli/train", "import torch", LAUNCHER),
        ("launcher/planted", "from samovar.training.step import Worker", LAUNCHER),
        ("launch", "import samovar.training.step", LAUNCHER),
    ],
)
def test_a_planted_import_breaks_the_contract_by_name(copy: Path, module: str, line: str, contract: str) -> None:
    path = copy / "src" / "samovar" / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(f"\n{line}\n")
    code, output = lint(copy)
    assert code == 1, output
    assert f"{contract} BROKEN" in output


def test_every_concrete_transport_is_forbidden(copy: Path) -> None:
    package = copy / "src" / "samovar"
    found = {path.stem for path in (package / "transports").iterdir()} - {"__init__", "base", "background"}
    imports = [f"import samovar.transports.{name}\n" for name in sorted(found)]
    (package / "strategies" / "planted.py").write_text("".join(imports))
    code, output = lint(copy)
    assert code == 1, output
    told = re.findall(r"samovar\.strategies is not allowed to import samovar\.transports\.(\w+):", output)
    assert set(told) == found
