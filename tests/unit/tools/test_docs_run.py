"""tools/docs_run.py: all blocks of all documents are run, and what it lets pass and what not."""

import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
_QUICK_LIMIT_S, _WHOLE_LIMIT_S = 280.0, 1500.0
# Their blocks run in every suite: the first page of all, and the two that hold Python of a user's own.
ALWAYS = ("docs/tutorials/own-loop.md", "docs/how-to/write-a-strategy.md")


@pytest.fixture(scope="module")
def docs_run(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("docs_run")


def pages() -> list[object]:
    documents = runpy.run_path(str(ROOT / "tools" / "docs_blocks.py"))["documents"]
    found = [path for path in documents(ROOT) if "```" in path.read_text(encoding="utf-8")]
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in found]


def data_sets(request: pytest.FixtureRequest) -> Path | None:
    given = request.config.getoption("--data-sets")
    folder = Path(given).resolve() if given else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.mark.parametrize("name", ALWAYS)
def test_the_quick_blocks_of_a_page_do_what_it_shows(
    docs_run: ModuleType, name: str, request: pytest.FixtureRequest
) -> None:
    page = docs_run.Page(ROOT / name, quick=True, data_sets=data_sets(request))
    assert page.run(_QUICK_LIMIT_S) == []


@pytest.mark.slow
@pytest.mark.timeout(_WHOLE_LIMIT_S + 60)
@pytest.mark.parametrize("path", pages())
def test_a_whole_page_does_what_it_shows(docs_run: ModuleType, path: Path, request: pytest.FixtureRequest) -> None:
    page = docs_run.Page(path, data_sets=data_sets(request))
    assert page.run(_WHOLE_LIMIT_S) == []
    print("\n".join(page.left_out))


def test_every_document_is_run(docs_run: ModuleType, tmp_path: Path) -> None:
    names = ("NEW.md", "docs/new.md", "docs/a/b/new.md", "examples/new/README.md")
    for name in (*names, ".venv/lib/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert {str(path.relative_to(tmp_path)) for path in docs_run.documents(tmp_path)} == set(names)


@pytest.fixture
def page_of(docs_run: ModuleType, tmp_path: Path) -> Callable[..., Any]:
    """A page with this text, in a repository of its own."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "examples").mkdir()

    def page(text: str, **options: Any) -> Any:
        path = tmp_path / "page.md"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return docs_run.Page(path, **options)

    return page


def console(command: str, *lines: str) -> str:
    return "\n".join(["```console", f"$ {command}", *lines, "```", ""])


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("step 100  loss 0.123  4,383 samples/s", "step 2000  loss 1.5e-07  12 samples/s"),
        ("took 950 ms, 1 worker", "took 1.2 s, 2 workers"),
        ("training ━━━━━━━━╸━━ 50 %", "training ━━━━━━━━━━━ 100 %"),
        ("weights 1a2b3c4d5e6f7a in /tmp/a/runs/x", "weights ffffffffffffff0 in /home/other"),
        ("┃ rank ┃  1 ┃", "┃ rank ┃ 123 ┃"),
        ("12.1 MB sent", "850 kB sent"),
        ("one line", r"one line\nother programs use 2 cores, so each worker has 1 thread"),
        ("bound by ... today", "bound by the network today"),
    ],
)
def test_what_varies_from_run_to_run_is_let_pass(page_of: Callable[..., Any], shown: str, printed: str) -> None:
    assert page_of(console(f"echo -e '{printed}'", shown)).run() == []


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("all workers go on", "all workers have ended"),
        ("step 1", "step 1 of"),
        ("one line", r"one line\nand another"),
        ("loss 0.5", "loss falls"),
        ("... is lost", "rank 1 is found"),
    ],
)
def test_another_sentence_fails(page_of: Callable[..., Any], shown: str, printed: str) -> None:
    page = page_of(console(f"printf '{printed}\\n'", shown))
    (sentence,) = page.run()
    assert sentence.startswith("page.md:1: printf")
    assert "shown (-) and printed (+) differ" in sentence


def test_a_command_that_fails_and_one_that_should_fail_are_told(page_of: Callable[..., Any]) -> None:
    page = page_of(
        console("false") + "\n<!-- exit: 3 -->\n" + console("exit 3") + "\n<!-- exit: 3 -->\n" + console("true")
    )
    assert [sentence.partition("\n")[0] for sentence in page.run()] == [
        "page.md:1: false: ended with 1, not 0:",
        "page.md:11: true: ended with 0, not 3:",
    ]


def test_blocks_share_a_shell_a_folder_and_a_script(page_of: Callable[..., Any]) -> None:
    page = page_of("""
        <!-- file: a/b/made.py -->
        ```python
        number = 5
        ```

        ```console
        $ cd a \\
          && export NAME=value
        $ echo $NAME $(ls)
        value b
        ```

        <!-- hidden python: import sys; sys.path.append("a/b") -->
        ```python
        from made import number
        print("it is", number)
        ```
        <!-- output -->
        ```text
        it is 5
        ```

        <!-- not run: it never ends -->
        ```console
        $ sleep 10000
        ```
        """)
    assert page.run() == []


SERVER = """
<!-- background: server -->
```console
$ bash -c 'trap "echo closed; exit 0" INT; echo ready; while :; do sleep 0.01; done'
ready
```

```console
$ echo beside it
beside it
```

<!-- goes on: server -->
```console
^C
closed
```
"""


def test_a_server_goes_on_until_it_is_interrupted(page_of: Callable[..., Any]) -> None:
    assert page_of(SERVER).run() == []
    (sentence,) = page_of(SERVER.replace("\nclosed", "\nopened")).run()
    assert "- opened" in sentence
    assert "+ closed" in sentence


def test_a_page_that_never_ends_is_ended(page_of: Callable[..., Any]) -> None:
    """The leak check of all tests finds what would be left."""
    page = page_of(console("setsid sleep 1000 & sleep 1000 & sleep 1000"))
    (sentence,) = page.run(0.5)
    assert "had not ended in time" in sentence


def test_real_output_is_written_into_the_page(page_of: Callable[..., Any]) -> None:
    page = page_of("- a list:\n\n  ```console\n  $ echo one\n  two\n  $ echo three\n  ```\n\nText\n")
    assert len(page.run()) == 1
    mended = page.mended()
    assert mended == "- a list:\n\n  ```console\n  $ echo one\n  one\n  $ echo three\n  three\n  ```\n\nText\n"
    again = page_of(mended)
    assert again.run() == []
    assert again.mended() == mended


def test_what_is_slow_or_needs_what_is_not_here_is_left_out(page_of: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "sets" / "mnist").mkdir(parents=True)
    text = f"<!-- slow -->\n{console('false')}\n<!-- needs: mnist -->\n{console('test -d mnist')}"
    assert page_of(text, quick=True, data_sets=tmp_path / "sets").run() == []
    page = page_of(text, quick=True)
    assert page.run() == []
    assert page.left_out == ["page.md:7: left out, for there is no mnist"]
    assert len(page_of(text).run()) == 1


@pytest.mark.parametrize(("number", "left_out"), [(0, []), (1000, ["page.md:2: left out, for there is no root"])])
def test_a_block_that_needs_root_is_run_by_root_alone(
    page_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, number: int, left_out: list[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: number)
    page = page_of(f"<!-- needs: root -->\n{console('echo it is run', 'it is run')}")
    assert page.run() == []
    assert page.left_out == left_out
