"""The commands that `samovar init` prints, run as they stand."""

import re
import shlex
from pathlib import Path

import pytest

from tests.multiproc.command import Ended, result_of, succeed


def followed(told: Ended, folder: Path) -> list[Ended]:
    """What each command came to that is told of as the next."""
    commands = told.output.partition("next:\n")[2].splitlines()
    words = [shlex.split(command) for command in commands]
    assert words
    assert all(first == "samovar" for first, *_ in words)
    return [succeed(*rest, folder=folder, forks_scripts=True) for _, *rest in words]


@pytest.mark.parametrize(("steps", "accuracy"), [(60, 0.8), pytest.param(None, 0.95, marks=pytest.mark.slow)])
def test_a_solver_and_a_net_that_learn_the_digits(tmp_path: Path, steps: int | None, accuracy: float) -> None:
    told = succeed("init", "caffe", "first", folder=tmp_path)
    if steps is not None:
        solver = tmp_path / "first" / "solver.prototxt"
        solver.write_text(re.sub(r"max_iter: \d+", f"max_iter: {steps}", solver.read_text()))
    followed(told, tmp_path)
    (run,) = tmp_path.glob("runs/*")
    assert result_of(run)["test_accuracy"] > accuracy


@pytest.mark.parametrize(("epochs", "accuracy"), [(2, 0.8), pytest.param(10, 0.9, marks=pytest.mark.slow)])
def test_a_script_that_trains_on_two_ranks(tmp_path: Path, epochs: int, accuracy: float) -> None:
    told = succeed("init", "torch", folder=tmp_path)
    script = tmp_path / "train.py"
    script.write_text(script.read_text().replace("range(10)", f"range({epochs})"))
    (trained,) = followed(told, tmp_path)
    found = re.search(r"2 ranks, accuracy ([0-9.]+)", trained.output)
    assert found is not None
    assert float(found[1]) > accuracy
