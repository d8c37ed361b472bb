"""tools/docs_check.py: commands, links, blocks, and pages that are made from the code."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def docs_check(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("docs_check")


@pytest.mark.parametrize(
    ("command", "num_problems"),
    [
        ("samovar train --solver solver.prototxt --workers 2", 0),
        ("samovar train --solver solver.prototxt --wrokers 2", 1),
        ("samovar run -n 4 script.py --its --own arguments", 0),
        ("samovar run --nodes 2 -m package.module --its own", 0),
        ("samovar run --hosts 2 script.py --its own", 1),
        ("samovar box serve --kep 5", 1),
        ("samovar --version", 0),
        ("samovar run", 0),
        ("samovar run -n 2 --transprot", 1),
        ("samovar run -n 2 --transport", 0),
        ("make demo", 0),
        ("make tea", 1),
    ],
)
def test_flags_are_checked_up_to_the_script_s_own(docs_check: ModuleType, command: str, num_problems: int) -> None:
    assert len(docs_check.wrong(command)) == num_problems


@pytest.fixture
def page(docs_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The problems of a page with this text, which has a neighbour with three headings."""
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A title\n\n## `samovar.train` (new)\n\n## A title\n", encoding="utf-8")

    def problems(text: str) -> list[str]:
        path = tmp_path / "page.md"
        path.write_text(f"# Page\n\n{text}\n", encoding="utf-8")
        return list(docs_check.check(path))

    return problems


@pytest.mark.parametrize(
    "line",
    [
        "samovar doctor {}",
        "OMP_NUM_THREADS=1 samovar doctor {}",
        "mpiexec -n 2 samovar doctor {}",
        "srun --nodes 2 samovar doctor {}",
        "torchrun --nproc-per-node 2 -m samovar doctor {}",
        "docker run --rm samovar doctor {}",
        "ip netns exec left samovar doctor {} > left.txt 2>&1 &",
        "(samovar doctor {} > log & echo $! > pid)",
        "until samovar doctor {}; do sleep 0.5; done",
        "kill $(samovar doctor {})",
        "cd runs && samovar doctor {} | tail -1 --any",
    ],
)
def test_a_command_is_checked_whatever_starts_it(page: Callable[[str], list[str]], line: str) -> None:
    for language, prompt in (("console", "$ "), ("sh", "")):
        text = f"```{language}\n{prompt}{line}\n```"
        assert page(text.format("--json")) == []
        (problem,) = page(text.format("--josn"))
        assert "no such flag: --josn" in problem


@pytest.mark.parametrize(
    "line",
    ["pip install samovar torch", "git clone URL samovar --depth 1", "docker build -t samovar docker", "cd samovar"],
)
def test_a_folder_or_package_of_this_name_is_no_command(page: Callable[[str], list[str]], line: str) -> None:
    assert page(f"```console\n$ {line}\n```") == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_the_rooms_of_a_page_are_those_of_the_contract(
    docs_check: ModuleType, repository_root: Path, name: str
) -> None:
    text = (repository_root / name).read_text(encoding="utf-8")
    assert list(docs_check.other_rooms(text)) == []
    (problem,) = docs_check.other_rooms(text.replace("config, predict }", "config } -> { predict }"))
    assert problem.startswith("draws other rooms than pyproject.toml: cli integrations -> training ")


def test_the_table_of_rooms_lists_all_and_no_others(docs_check: ModuleType, repository_root: Path) -> None:
    text = (repository_root / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    for spoiled in (text.replace("| `api/`", "| `apis/`"), re.sub("\n[|] `box/`.*", "", text)):
        (problem,) = docs_check.other_rooms(spoiled)
        assert problem.startswith("lists other rooms than pyproject.toml: ")


@pytest.mark.parametrize(
    "link", ["other.md", "other.md#a-title", "other.md#a-title-1", "other.md#samovartrain-new", "#page"]
)
def test_a_link_that_leads_somewhere_is_good(page: Callable[[str], list[str]], link: str) -> None:
    assert page(f"See [it]({link}).") == []


@pytest.mark.parametrize("link", ["others.md", "other.md#a-title-2", "other.md#samovar-train", "#other"])
def test_a_link_that_leads_nowhere_is_told(page: Callable[[str], list[str]], link: str) -> None:
    (problem,) = page(f"See [it]({link}).")
    assert problem.startswith("page.md: no such ")
    assert problem.endswith(link)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```\nsamovar doctor\n```", "line 3: a block's language is one of console"),
        ("    samovar doctor", "put this command into a console block: samovar doctor"),
        ("```console\n$ samovar doctro\nsamovar 0.1.0\n```", "no such command: samovar doctro"),
        ("```console\n$ samovar train --solver x \\\n    --wrokers 2\n```", "no such flag: --wrokers"),
    ],
)
def test_a_block_that_is_unclear_or_wrong_is_told(page: Callable[[str], list[str]], text: str, words: str) -> None:
    (problem,) = page(text)
    assert words in problem


def test_the_public_names_are_those_of_the_page(docs_check: ModuleType) -> None:
    names = docs_check.python_names
    text = names.PAGE.read_text(encoding="utf-8")
    assert names.wrong(text) == []
    assert names.wrong(text.replace("- `samovar.replicate(", "- `samovar.duplicate(")) == [
        "does not list samovar.replicate",
        "lists samovar.duplicate, which is not in the code",
    ]


def test_the_page_of_commands_is_held_to_the_flags(docs_check: ModuleType) -> None:
    reference = docs_check.command_reference
    text = reference.PAGE.read_text(encoding="utf-8")
    assert reference.with_commands(text) == text
    stale = text.replace("- `--workers ", "- `--wrokers ")
    assert reference.with_commands(stale) == text
    for words, command in reference.commands().items():
        assert hasattr(command, "commands") or f"samovar {' '.join(words)}" in text


def test_a_table_that_is_made_from_the_code_is_held_to_it(docs_check: ModuleType) -> None:
    text = "Before\n<!-- made from the code: settings -->\n| Flag |\n<!-- end -->\nafter\n"
    made = docs_check.strategy_tables.with_tables(text)
    assert docs_check.strategy_tables.with_tables(made) == made != text
    assert made.startswith("Before\n<!-- made from the code: settings -->\n| Flag | Default | Of | Meaning |\n")
    assert "| `--variant NAME` | reduce | `sync-easgd` |" in made
    assert "`factors" not in made, "which no command takes"
    assert made.endswith("<!-- end -->\nafter\n")
