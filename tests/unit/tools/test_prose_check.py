"""tools/prose_check.py finds each kind of bad prose, in pages and programs, and nothing in good prose."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

LONG = "word " * 30 + "end."
GOOD_PAGE = """---
name: Whatever lies in the front matter
---
# Resume a run

You get the same bits. What is a run? If a worker is killed, the others continue, e.g. two of three.
Version 3.11 works, and [a link](whatever-kin.md) does. Run `whatever lies in; here; or; there` first:

```console
$ samovar train   # whoever; whatever; anew
```

<!-- not run: whoever reads this
over two lines -->

- **The first** item has a
  second line.
- Both items end without a full stop

| Flag | Meaning |
| --- | --- |
| `--a \\| b; c; d` | There is no box. |
"""


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("prose_check")


def rules(tool: ModuleType, path: Path, text: str) -> list[str]:
    """`line: rule` of each finding in a file of this text."""
    path.write_text(text)
    return [f"{found.line}: {found.rule}" for found in tool.check(path, tool.avoided_words(tool.STYLE))]


def test_good_prose_passes(tool: ModuleType, tmp_path: Path) -> None:
    assert rules(tool, tmp_path / "a.md", GOOD_PAGE) == []
    program = f'"""Train nets.\n\n    {LONG}\n"""\n\nPATTERN = r"(whatever) [a-z]+ {{2}} \\d+ [^ ]* \\s+ end"\n'
    assert rules(tool, tmp_path / "a.py", program) == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (LONG, "3: length"),
        (f"Short one. {LONG}", "3: length"),
        (f"First line.\n{LONG}", "4: length"),
        (f"- item\n- {LONG}", "4: length"),
        (f"> {LONG}", "3: length"),
        (f"## {LONG}", "3: length"),
        ("| a | b |\n| --- | --- |\n| a | " + "word " * 21 + "|", "5: cell"),
        ("One; two; three.", "3: semicolons"),
        ("What the function returns is a plan.", "3: subject"),
        ("Good. **Who dies.** A rank starts again.", "3: subject"),
        ("What the function returns", "3: subject"),
        ("A rank waits; who comes late is named.", "3: subject"),
        ("Whatever comes is counted? No. Whoever asks is served.", "3: subject"),
        ("The run goes\non from there.", "3: word"),
        ("It is no plan.", "3: word"),
        ("All of the box lies in memory.", "3: word"),
    ],
)
def test_each_rule_finds_its_violation_in_a_page(tool: ModuleType, tmp_path: Path, text: str, finding: str) -> None:
    assert finding in rules(tool, tmp_path / "a.md", f"# Title\n\n{text}\n")


def test_a_page_of_long_sentences_is_found_by_its_median(tool: ModuleType, tmp_path: Path) -> None:
    def page(num_words: int) -> str:
        return "\n\n".join(["# Title", "Short.", *["word " * (num_words - 1) + "end."] * 3])

    assert rules(tool, tmp_path / "a.md", page(17)) == ["1: median"]
    assert rules(tool, tmp_path / "a.md", page(16)) == []


@pytest.mark.parametrize(
    ("program", "finding"),
    [
        (f'"""{LONG}"""\n', "1: length"),
        (f'class A:\n    """Short.\n\n    {LONG}\n    """\n', "4: length"),
        ('def f():\n    """What the function returns: a plan."""\n', "2: subject"),
        (f'raise InputError(\n    f"{{path}}: is a file; "\n    f"{LONG}"\n)\n', "2: length"),
        ('warn(f"{rank}: waits for {other}; stop it; or wait; or leave")\n', "1: semicolons"),
        ('help = "Where the center of the run lies, for all."\n', "1: word"),
        ("def f(:\n", "1: syntax"),
    ],
)
def test_docstrings_and_sentences_of_programs_are_checked(
    tool: ModuleType, tmp_path: Path, program: str, finding: str
) -> None:
    assert finding in rules(tool, tmp_path / "a.py", program)


def test_what_an_f_string_inserts_is_one_word(tool: ModuleType, tmp_path: Path) -> None:
    words = " ".join(["word"] * 28)
    assert rules(tool, tmp_path / "a.py", f"f'{{a + b * c}} {words} {{d}}'\n") == []
    assert rules(tool, tmp_path / "a.py", f"f'{{a + b * c}} {words} {{d}} {{e}}'\n") == ["1: length"]


def test_the_list_of_words_is_the_table_of_the_style_page(tool: ModuleType, tmp_path: Path) -> None:
    style = tmp_path / "style.md"
    style.write_text('| Avoid | Write | Fine |\n| --- | --- | --- |\n| `util~`, `on a` | "use" | `utility` |\n')
    (tmp_path / "a.md").write_text("It utilizes a rank on\na host.\n\nA utility. Futile. `utilize`\n")
    found = tool.check(tmp_path / "a.md", tool.avoided_words(style))
    assert [str(one) for one in found] == [
        "1: word: It utilizes a rank on a host.: 'utilizes': write \"use\"",
    ]


def test_exit_status_and_place_of_a_finding(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a.md"
    page.write_text("The run is good.\n")
    assert tool.main([str(page)]) == 0
    page.write_text("# A\n\nThe run goes on.\n")
    assert tool.main([str(page)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "prose: every sentence is good",
        f'{page}:3: word: The run goes on.: \'goes on\': write "continues", "resumes"',
    ]


def test_the_style_page_follows_its_own_rules(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([str(tool.STYLE)]) == 0
    assert capsys.readouterr().out in tool.STYLE.read_text()


def test_pages_and_programs_are_found_but_not_what_is_built(tool: ModuleType, tmp_path: Path) -> None:
    kept = ["README.md", "docs/adr/a.md", "examples/a/b.py", "src/data/b.py", ".github/a/b.md", "tools/a.py"]
    for name in (*kept, "docs/a.txt", "src/build/a.py", "tests/a.py", "examples/a/runs/b.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert tool.files(tmp_path) == sorted(tmp_path / name for name in kept)
