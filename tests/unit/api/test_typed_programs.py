"""Type checkers accept right programs, and report wrong ones at the line of the mistake."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.api.typed_programs import RIGHT, WRONG

MARK = "# wrong"
Places = set[tuple[str, int]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all programs, as a user has them: no settings of ours, none of the repository's files."""
    folder = tmp_path_factory.mktemp("programs")
    for kind, texts in {"right": RIGHT, "wrong": WRONG}.items():
        for name, text in texts.items():
            (folder / f"{kind}_{name}.py").write_text(text)
    return folder


def marked(kind: str, texts: Mapping[str, str]) -> Places:
    lines = ((name, text.splitlines()) for name, text in texts.items())
    return {
        (f"{kind}_{name}.py", number)
        for name, rows in lines
        for number, row in enumerate(rows, 1)
        if row.endswith(MARK)
    }


def test_there_are_enough_programs() -> None:
    assert min(len(RIGHT), len(WRONG)) >= 12
    assert not marked("right", RIGHT)
    assert {name for name, _ in marked("wrong", WRONG)} == {f"wrong_{name}.py" for name in WRONG}


@pytest.mark.slow
def test_mypy(programs: Path, repository_root: Path) -> None:
    """With its own settings at their strictest; the cache is that of `make types`."""
    command = (
        *(sys.executable, "-m", "mypy", "--strict", "--output=json", "--config-file=", "--ignore-missing-imports"),
        *("--cache-dir", repository_root / ".mypy_cache/programs"),
    )
    ended = subprocess.run([*command, "."], cwd=programs, capture_output=True, text=True, check=False)
    assert not ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {(each["file"], each["line"]) for each in found} == marked("wrong", WRONG), ended.stdout


@pytest.mark.slow
def test_pyright(programs: Path) -> None:
    """With its own settings, which report what it does not understand in a program."""
    pytest.importorskip("pyright", reason="pyright is not installed: pip install 'samovar[types]'")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "."]
    ended = subprocess.run(command, cwd=programs, capture_output=True, text=True, check=False)
    found = json.loads(ended.stdout)["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    places = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}
    assert places == marked("wrong", WRONG), ended.stdout
