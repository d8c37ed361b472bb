"""A package that is not installed: every door says which one, and what installs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMOVAR = str(Path(sys.executable).with_name("samovar"))
NET = 'layer { name: "data" type: "DummyData" top: "data" dummy_data_param { shape { dim: 2 } } }'
HIDE = """
import os, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == os.environ["HIDDEN_MODULE"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
TORCH = "PyTorch is not installed, and Samovar computes with it; run `pip install torch`"


def without(folder: Path, module: str, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run it where Python, in this process and in those that it starts, does not find `module`."""
    (folder / "hide").mkdir()
    (folder / "hide" / "sitecustomize.py").write_text(HIDE)
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    environment = os.environ | {"PYTHONPATH": str(folder / "hide"), "HIDDEN_MODULE": module}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--solver", "solver.prototxt", "--out", "run"),
        ("time", "--model", "net.prototxt"),
        ("inspect", "net.prototxt"),
    ],
    ids=["train", "time", "inspect"],
)
def test_a_command_ends_with_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = without(tmp_path, "torch", SAMOVAR, *words)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"samovar: error: {TORCH}")
    assert ended.stderr.count("\n") == 1


def test_training_does_not_begin_without_a_package_that_only_ranks_load(tmp_path: Path) -> None:
    ended = without(tmp_path, "h5py", SAMOVAR, "train", "--solver", "solver.prototxt", "--out", "run")
    assert ended.returncode == 2
    assert "the Python module h5py is not installed; run `pip install h5py`" in ended.stderr


def test_the_doctor_still_tells_what_is_here(tmp_path: Path) -> None:
    ended = without(tmp_path, "torch", SAMOVAR, "doctor", "--json")
    told = json.loads(ended.stdout)
    assert told["host"]["missing_modules"] == ["torch"]
    assert told["calibration"] is not None
    assert [finding["level"] for finding in told["findings"] if "PyTorch" in finding["text"]] == ["error"]


def test_python_gets_the_same_sentence_and_the_rest_of_the_package(tmp_path: Path) -> None:
    script = "import samovar; print(samovar.__version__, samovar.train.__name__); samovar.replicate"
    ended = without(tmp_path, "torch", sys.executable, "-c", script)
    assert ended.stdout.endswith(" train\n")
    assert f"InputError: {TORCH}" in ended.stderr.splitlines()[-1]


def test_the_simulator_names_its_extra(tmp_path: Path) -> None:
    ended = without(tmp_path, "greenlet", sys.executable, "-c", "import samovar.transports.sim.world")
    assert "module greenlet is not installed; run `pip install 'samovar[simulator]'`" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [("sklearn", "digits", ("--learn",)), ("matplotlib", "simulator", ("--pictures", "pictures"))],
)
def test_a_prediction_names_its_extra_before_it_looks_at_the_net(
    module: str, extra: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    ended = without(tmp_path, module, SAMOVAR, "predict", "--profile", "missing.toml", *words)
    assert ended.returncode == 2
    assert f"module {module} is not installed; run `pip install 'samovar[{extra}]'`" in ended.stderr


def test_a_transport_names_its_extra(tmp_path: Path) -> None:
    script = (
        "import samovar, torch; net = torch.nn.Linear(1, 1); "
        "samovar.replicate(net, torch.optim.SGD(net.parameters()), transport='mpi')"
    )
    ended = without(tmp_path, "mpi4py", sys.executable, "-c", script)
    assert "module mpi4py is not installed; run `pip install 'samovar[mpi]'`" in ended.stderr.splitlines()[-1]


def test_a_module_of_somebody_else_is_not_explained(tmp_path: Path) -> None:
    ended = without(tmp_path, "sklearn", sys.executable, "-c", "import samovar; samovar.nothing")
    assert "AttributeError: module 'samovar' has no attribute 'nothing'" in ended.stderr
