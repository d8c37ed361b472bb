"""tools/size_check.py finds what it says it finds, and nothing in tidy code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PLACE = "src/samovar/model/net.py"


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("size_check")


def found(tool: ModuleType, root: Path, place: str, text: str) -> list[str]:
    """Findings in a tree that holds only `text` at `place`."""
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(text)
    return tool.check(root)


def python_function(lines: int) -> str:
    return "# first\ndef long():\n" + "    x = 1\n" * (lines - 1)


def cpp_function(lines: int, head: str = "int f(int a)") -> str:
    return f"// first\n{head} {{\n" + "  a += '{';  // }\n" * (lines - 2) + "}\nint g() { return 0; }\n"


FOLDERS = ["src/samovar", "native", "tests/unit", "benchmarks", "tools", "examples/lenet"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_python_function_may_have_forty_lines(tool: ModuleType, tmp_path: Path, folder: str) -> None:
    place = f"{folder}/a.py"
    assert found(tool, tmp_path, place, python_function(40)) == []
    assert found(tool, tmp_path, place, python_function(41)) == [
        f"{place}:2: long has 41 lines; a function has at most 40: divide it"
    ]


def test_methods_nested_and_asynchronous_functions_count(tool: ModuleType, tmp_path: Path) -> None:
    body = "            x = 1\n" * 41
    text = f"class A:\n    async def outer(self):\n        def inner():\n{body}"
    assert [line.split(": ")[1].split(" has")[0] for line in found(tool, tmp_path, PLACE, text)] == [
        "outer",
        "inner",
    ]


@pytest.mark.parametrize(
    "head",
    [
        "int f(int a)",
        "template <class T>\nvoid A<T>::f(int a) const noexcept",
        "namespace a::b { class X : Y {\n public:\n  X(int a) : one{a}, two(a), three{{a}}",
        "struct alignas(64) S {\n  auto operator()(int a) -> int",
        'extern "C" {\nbool f(const char* s = "{(", char c = \'{\')',
        "#define OPEN {\nNB_MODULE(core, m)",
    ],
)
def test_a_cpp_function_may_have_forty_lines(tool: ModuleType, tmp_path: Path, head: str) -> None:
    own_lines = head.count("\n") + 1
    fitting, too_long = cpp_function(38, head), cpp_function(43, head)
    assert found(tool, tmp_path, "native/a.cpp", fitting) == []
    (finding,) = found(tool, tmp_path, "native/a.hpp", too_long)
    assert "lines; a function has at most 40: divide it" in finding
    assert 2 <= int(finding.split(":")[1]) <= 1 + own_lines


def test_the_limit_of_a_cpp_function_is_exact(tool: ModuleType, tmp_path: Path) -> None:
    assert found(tool, tmp_path, "native/a.cpp", cpp_function(40)) == []
    assert found(tool, tmp_path, "native/a.cpp", cpp_function(41)) == [
        "native/a.cpp:2: f has 41 lines; a function has at most 40: divide it"
    ]


@pytest.mark.parametrize("place", ["src/samovar/a.py", "native/a.cpp", "tests/a.py", "examples/a.hpp"])
def test_a_file_may_have_four_hundred_lines(tool: ModuleType, tmp_path: Path, place: str) -> None:
    assert found(tool, tmp_path, place, "\n" * 400) == []
    assert found(tool, tmp_path, place, "\n" * 401) == [f"{place}:1: 401 lines; a file has at most 400: divide it"]


@pytest.mark.parametrize("name", ["utils.py", "common.py"])
def test_names_that_say_nothing(tool: ModuleType, tmp_path: Path, name: str) -> None:
    assert len(found(tool, tmp_path, f"src/samovar/core/{name}", "")) == 1


ENVIRONMENT_READS = [
    "import os\nx = os.environ['A']",
    "import os\nx = os.getenv('A')",
    "import os as system\nx = system.environ.get('A')",
    "from os import environ\nx = environ",
    "from os import getenv as read\nx = read('A')",
]


@pytest.mark.parametrize("text", ENVIRONMENT_READS)
def test_only_the_launcher_reads_the_environment(tool: ModuleType, tmp_path: Path, text: str) -> None:
    (finding,) = found(tool, tmp_path, PLACE, text)
    assert f"{PLACE}:2: reads the environment; only src/samovar/launch may" in finding
    (tmp_path / PLACE).unlink()
    assert found(tool, tmp_path, "src/samovar/launch/a.py", text) == []
    assert found(tool, tmp_path, "tests/a.py", text) == []
    assert len(found(tool, tmp_path, "src/samovar/model/launch.py", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "\nimport pickle",
        "\nimport marshal as m",
        "\nfrom cloudpickle import dumps",
        "\nimport os, shelve",
        "import torch\ntorch.load('a')",
        "import torch\ntorch.load('a', weights_only=False)",
        "import torch\ntorch.load('a', weights_only=wanted)",
        "import torch as t\nt.load('a')",
        "from torch import load\nload('a')",
        "\neval('1')",
        "\nexec('1')",
        "import numpy as np\nnp.load('a', allow_pickle=True)",
    ],
)
def test_what_can_run_code_from_a_file_is_barred(tool: ModuleType, tmp_path: Path, text: str) -> None:
    (finding,) = found(tool, tmp_path, PLACE, text)
    assert finding.startswith(f"{PLACE}:2: ")
    assert "can run code from a file" in finding


@pytest.mark.parametrize("text", ["def f():\n    import json", "def f():\n    if f:\n        from a import b"])
def test_imports_stand_at_the_top(tool: ModuleType, tmp_path: Path, text: str) -> None:
    (finding,) = found(tool, tmp_path, PLACE, text)
    assert "import inside a function" in finding


def test_what_does_not_parse_is_told(tool: ModuleType, tmp_path: Path) -> None:
    (finding,) = found(tool, tmp_path, PLACE, "x = 1\ny = (")
    assert finding.startswith(f"{PLACE}:2: is no Python: ")


def test_tidy_code_passes(tool: ModuleType, tmp_path: Path) -> None:
    text = (
        "import os\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
        "def f(model, path):\n    model.eval()\n    return os.fspath(path), model.load(path), 'os.environ'\n"
        "# import pickle\nimport torch\ntorch.load(path, weights_only=True)\nnp.load(path, allow_pickle=False)\n"
    )
    assert found(tool, tmp_path, PLACE, text) == []
    assert found(tool, tmp_path, "examples/lenet/__pycache__/a.py", "\n" * 500) == []
    assert found(tool, tmp_path, "docs/a.py", "\n" * 500) == []


def test_the_program_prints_and_fails(tmp_path: Path, repository_root: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(repository_root / "tools/size_check.py"), str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert (run().returncode, run().stdout) == (0, "")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "utils.py").touch()
    done = run()
    assert done.returncode == 1
    assert done.stdout == "tools/utils.py:1: a file is named for what it knows, not utils or common\n"


def test_a_strategy_is_not_told_by_its_name(tool: ModuleType, tmp_path: Path) -> None:
    declared = tmp_path / "src/samovar/strategies/ring.py"
    declared.parent.mkdir(parents=True)
    declared.write_text('@strategy(\n    "ring-easgd", settings=(SYNC_PERIOD,)\n)\nclass Ring(Strategy):\n    pass\n')
    text = 'a = name == "ring-easgd"\nb = name in ("x", "ring-easgd")\nc = other == "x"\nd = "ring-easgd"\n'
    text += 'match name:\n    case "ring-easgd":\n        pass\n'
    assert found(tool, tmp_path, PLACE, text) == [
        f"{PLACE}:{line}: tests for 'ring-easgd'; ask the strategy's traits instead" for line in (1, 2, 6)
    ]
