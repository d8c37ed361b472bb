"""The command that repeats a seed."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from tests.sim.harness import SimCase, run_case
from tests.sim.mistakes import MISTAKES
from tests.sim.step_mistakes import STEP_MISTAKES
from tests.sim.steps import IN_PARTS, StepsCase, run_steps


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


@pytest.mark.parametrize(
    "case", [StepsCase(7, IN_PARTS, "ring", 3, 128), StepsCase(7, "full, one owner", "kary-tree", 4, 1)]
)
def test_the_command_of_steps_repeats_their_events(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], case: StepsCase
) -> None:
    assert case != StepsCase.of_seed(case.seed)
    assert tool.main(shlex.split(case.command())[2:]) == 0
    assert run_steps(case).event_hash in capsys.readouterr().out


def test_failing_steps_end_the_run_and_print_their_command(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = STEP_MISTAKES[next(iter(STEP_MISTAKES))]
    failing = StepsCase(0, "full", "tree", 4, 1)
    monkeypatch.setattr(tool.steps, "run_steps", lambda _case: run_steps(failing, mistake.build))
    assert tool.main(["--steps", "--seeds", "5"]) == 1
    assert f"to repeat: {failing.command()}" in capsys.readouterr().err


def test_seeds_of_steps_are_those_of_their_test(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--steps", "--seeds", "3", "--first-seed", "40"]) == 0
    messages = sum(run_steps(StepsCase.of_seed(seed)).num_messages for seed in (40, 41, 42))
    assert re.match(rf"3 seeds, {messages} messages, .* seeds/s", capsys.readouterr().out)


def test_seeds_and_timings_are_told(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--seeds", "3", "--first-seed", "40"]) == 0
    assert re.match(r"3 seeds, \d+ messages, .* seeds/s", capsys.readouterr().out)
    assert tool.main(["--ranks", "33", "--runs", "2"]) == 0
    assert "2 all-reduces (tree) of 28000000 counted bytes on 33 ranks" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_of_ranks_with_counted_bytes(tool: ModuleType) -> None:
    """On 4,352 ranks: a message to and from each but the root, and every run the same."""
    num_ranks, num_bytes = 4352, 28_000_000
    first, again = (tool.many_all_reduces("tree", num_ranks, 2, num_bytes) for _ in range(2))
    assert first.event_hash == again.event_hash
    many = tool.many_all_reduces("tree", num_ranks, 100, num_bytes)
    assert len(many.results) == num_ranks
    assert many.num_messages == 100 * 2 * (num_ranks - 1)
    assert many.event_hash != first.event_hash
