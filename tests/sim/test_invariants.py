"""The table of invariants in docs/explanation/simulator.md names code that exists."""

import re
from pathlib import Path

import pytest

NUM_INVARIANTS = 35
NOT_APPLYING = "does not apply: "
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
_CHECK = re.compile(r"`([\w./]+)::([\w*]+)`")


@pytest.fixture(scope="module")
def rows(repository_root: Path) -> list[tuple[str, str, str]]:
    page = (repository_root / "docs/explanation/simulator.md").read_text(encoding="utf-8")
    return _ROW.findall(page)


def test_every_invariant_has_a_row(rows: list[tuple[str, str, str]]) -> None:
    assert [int(number) for number, _, _ in rows] == [*range(1, NUM_INVARIANTS + 1)]


def test_every_check_exists(rows: list[tuple[str, str, str]], repository_root: Path) -> None:
    for number, _, cell in rows:
        checks = _CHECK.findall(cell)
        assert ", ".join(f"`{path}::{name}`" for path, name in checks) == cell or cell.startswith(NOT_APPLYING), number
        missing = [f"{path}::{name}" for path, name in checks if not is_defined(repository_root / path, name)]
        assert not missing, f"invariant {number}: {missing}"


def is_defined(path: Path, name: str) -> bool:
    """Whether the file defines a function or class of that name; `*` is all of the file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    start = r"(?:def|class) " if path.suffix == ".py" else r"^[\w:<>]+ "
    return bool(text) and (name == "*" or re.search(rf"{start}{name}\b", text, re.MULTILINE) is not None)


def test_a_name_that_is_not_there_is_found(repository_root: Path) -> None:
    assert not is_defined(repository_root / "tests/sim/runs.py", "check_nothing")
    assert not is_defined(repository_root / "native/litmus.cpp", "count_right")
    assert not is_defined(repository_root / "tests/sim/gone.py", "*")
