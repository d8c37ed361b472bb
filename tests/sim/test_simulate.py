"""The command that repeats a seed."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from tests.sim.harness import SimCase, run_case
from tests.sim.mistakes import MISTAKES


@pytest.fixture(scope="module")
def tool(repository_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate", repository_root / "tools" / "simulate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_of_a_case_repeats_its_events(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    case = SimCase(7, "tree in 4", 5, 64, "float64")
    python, program, *options = shlex.split(case.command())
    assert (python, program) == ("python", "tools/simulate.py")
    assert tool.main(options) == 0
    assert run_case(case).event_hash in capsys.readouterr().out


def test_a_failing_seed_ends_the_run_and_prints_its_command(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = MISTAKES["missing wait"]
    failing = SimCase(3, mistake.collective, 4, 64, "float32")
    monkeypatch.setattr(tool, "run_case", lambda _case: run_case(failing, mistake.parts))
    assert tool.main(["--seeds", "5"]) == 1
    assert f"to repeat: {failing.command()}" in capsys.readouterr().err


def test_seeds_and_timings_are_told(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--seeds", "3", "--first-seed", "40"]) == 0
    assert re.match(r"3 seeds, \d+ messages, .* seeds/s", capsys.readouterr().out)
    assert tool.main(["--ranks", "33", "--runs", "2"]) == 0
    assert "2 all-reduces (tree) of 28000000 counted bytes on 33 ranks" in capsys.readouterr().out
