"""tools/shape_check.py finds what it says it finds, and nothing in the package as it stands."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("shape_check")


@pytest.fixture
def root(tmp_path: Path, repository_root: Path) -> Path:
    """A package of two rooms, with the real picture."""
    shutil.copy(repository_root / "pyproject.toml", tmp_path)
    for room in ("core", "cli"):
        (tmp_path / "src" / "samovar" / room).mkdir(parents=True)
    (tmp_path / "src" / "samovar" / "__init__.py").touch()
    return tmp_path


def put(root: Path, place: str, text: str) -> None:
    (root / "src" / "samovar" / place).write_text(text)


def test_a_class_name_is_borne_once_but_for_protocols(tool: ModuleType, root: Path) -> None:
    put(root, "core/a.py", "class Seat:\n    pass\n")
    put(root, "core/b.py", "class Seat(Protocol):\n    pass\n")
    assert tool.check(root) == []
    put(root, "core/c.py", "\nclass Seat:\n    pass\n")
    assert tool.check(root) == [
        "src/samovar/core/c.py:2: class Seat already exists in a.py; give this one another name"
    ]


def test_cycles(tool: ModuleType, root: Path) -> None:
    put(root, "core/a.py", "from samovar.core import b\n")
    put(root, "core/b.py", "from samovar.core.c import x\n")
    put(root, "core/c.py", "x = 1\n")
    assert tool.check(root) == []
    put(root, "core/c.py", "import samovar.core.a\nx = 1\n")
    assert [line.split(":")[0] for line in tool.check(root)] == [f"src/samovar/core/{name}.py" for name in "abc"]


@pytest.mark.parametrize(
    ("line", "names"), [("from . import b", "ab"), ("from .b import x", "ab"), ("from .c import x", "")]
)
def test_a_cycle_of_relative_imports(tool: ModuleType, root: Path, line: str, names: str) -> None:
    put(root, "core/__init__.py", "from . import a, b\n")
    put(root, "core/a.py", f"{line}\n")
    put(root, "core/b.py", "from . import a\nx = 1\n")
    put(root, "core/c.py", "x = 1\n")
    assert [line.split(":")[0] for line in tool.check(root)] == [f"src/samovar/core/{name}.py" for name in names]


def test_a_module_that_a_string_names(tool: ModuleType, root: Path) -> None:
    put(root, "core/a.py", "")
    put(root, "cli/b.py", 'import_module("samovar.core.a")\n')
    assert tool.check(root) == []
    put(root, "core/c.py", 'import_module("samovar.cli.b")\nimport_module("samovar.core.none")\n')
    assert tool.check(root) == [
        "src/samovar/core/c.py:1: names samovar.cli.b, which is not to the right of its own room",
        "src/samovar/core/c.py:2: names samovar.core.none, which does not exist",
    ]


def test_a_string_names_no_room_of_the_same_row(tool: ModuleType, root: Path) -> None:
    for room in ("solver", "strategies"):
        (root / "src" / "samovar" / room).mkdir()
        put(root, f"{room}/a.py", "")
    put(root, "solver/b.py", 'import_module("samovar.solver.a")\n')
    assert tool.check(root) == []
    put(root, "solver/b.py", 'import_module("samovar.strategies.a")\n')
    assert tool.check(root) == [
        "src/samovar/solver/b.py:1: names samovar.strategies.a, which is not to the right of its own room"
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("self._worker.step(3)", "worker.step: the training loop is in training/loop"),
        ("strategy.updated(step)", "updated: a driver of a step is in api and strategies"),
        ("board.set_word(0, Readiness.FILLED)", "Readiness: membership is in membership and strategies"),
    ],
)
def test_a_second_loop_driver_or_membership(tool: ModuleType, root: Path, line: str, what: str) -> None:
    put(root, "core/a.py", f"{line}\n")
    assert tool.check(root) == [f"src/samovar/core/a.py:1: {what}, and nowhere else"]


def test_how_large_it_may_be(tool: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "MOST_LINES", 2)
    put(root, "core/a.py", "x = 1\n" * 2)
    assert tool.check(root) == []
    put(root, "core/a.py", "x = 1\n" * 3)
    assert tool.check(root) == ["src/samovar/__init__.py:1: the package has 3 lines, at most 2: find the simpler shape"]
