"""The command that repeats a seed."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.sim.box_world import BoxCase
from tests.sim.center_mistakes import CENTER_MISTAKES
from tests.sim.centers import CenterCase, run_center
from tests.sim.harness import SimCase, repeated_by, run_case
from tests.sim.mistakes import MISTAKES
from tests.sim.native import NativeParts, run_native
from tests.sim.runs import SAFETY, RunCase
from tests.sim.sessions import SessionCase
from tests.sim.step_mistakes import STEP_MISTAKES
from tests.sim.steps import IN_PARTS, StepsCase, run_steps
from tests.sim.test_native import CombineLeftOut


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("simulate")


CASES: dict[str, Any] = {
    "plans": SimCase(7, "3-ary tree", 5, 64, "float64"),
    "native": SimCase(7, "3-ary tree", 5, 64, "float64"),
    "steps": StepsCase(7, "full, one owner", "kary-tree", 4, 1),
    "centers": CenterCase(7, "hybrid-easgd", 4, 3, 2, 31, True),
    "mapped": CenterCase(7, "async-easgd", 4, 3, 2, 31, False, True),
    "sessions": SessionCase(7, 3, "master", is_first_gone=False),
    "runs": RunCase(7, "sync-easgd", "ring", 3, 20, SAFETY),
    "box": BoxCase(7, ""),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_command_of_a_case_repeats_its_events(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    case = CASES[kind]
    assert case != tool.KINDS[kind].case.of_seed(case.seed)
    python, program, *options = shlex.split(repeated_by(kind, case))
    assert (python, program) == ("python", "tools/simulate.py")
    assert tool.main(options) == 0
    assert tool.KINDS[kind].play(case).event_hash in capsys.readouterr().out


def test_the_seed_of_the_page_plays_as_it_says(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], repository_root: Path
) -> None:
    page = (repository_root / "docs" / "explanation" / "simulator.md").read_text()
    command = re.search(r"\$ python tools/simulate\.py (.*)\n", page)
    assert command
    assert tool.main(shlex.split(command[1])) == 0
    assert page[command.end() :].startswith(capsys.readouterr().out)


def test_steps_in_parts_are_repeated(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    case = StepsCase(7, IN_PARTS, "ring", 3, 128)
    assert tool.main(shlex.split(repeated_by("steps", case))[2:]) == 0
    assert run_steps(case).event_hash in capsys.readouterr().out


def failing_case() -> None:
    run_case(SimCase(3, MISTAKES["missing wait"].collective, 4, 64, "float32"), MISTAKES["missing wait"].parts)


def failing_native() -> None:
    run_native(SimCase(3, "tree", 4, 64, "float32"), NativeParts(channel=CombineLeftOut))


def failing_steps() -> None:
    run_steps(StepsCase(0, "full", "tree", 4, 1), STEP_MISTAKES[next(iter(STEP_MISTAKES))].build)


def failing_center() -> None:
    run_center(CenterCase(3, "async-easgd", 4, 3, 1, 16, False), CENTER_MISTAKES["not handed over"].parts)


@pytest.mark.parametrize(
    ("kind", "fails"),
    [("plans", failing_case), ("native", failing_native), ("steps", failing_steps), ("centers", failing_center)],
)
def test_a_failing_seed_ends_the_run_and_prints_its_command(
    tool: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    fails: Callable[[], None],
) -> None:
    monkeypatch.setitem(tool.KINDS, kind, tool.Kind(tool.KINDS[kind].case, lambda _case: fails()))
    assert tool.main(["--seeds", "5"]) == 1
    assert f"to repeat: python tools/simulate.py --of {kind} --seed=" in capsys.readouterr().err


def test_seeds_of_a_kind_are_those_of_its_test(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--of", "steps", "--seeds", "3", "--first-seed", "40"]) == 0
    messages = sum(run_steps(StepsCase.of_seed(seed)).num_messages for seed in (40, 41, 42))
    assert re.match(rf"3 cases, {messages} messages, .* cases/s", capsys.readouterr().out)


def test_seeds_play_every_kind_and_timings_are_told(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--seeds", "3", "--first-seed", "40"]) == 0
    assert re.match(rf"{3 * len(tool.KINDS)} cases, \d+ messages, .* cases/s", capsys.readouterr().out)
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
