"""tools/docs_check.py: which words of a command are ours to check."""

from collections.abc import Callable
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
        ("make demo", 0),
        ("make tea", 1),
    ],
)
def test_flags_are_checked_up_to_the_script_s_own(docs_check: ModuleType, command: str, num_problems: int) -> None:
    assert len(docs_check.wrong(command)) == num_problems


def test_an_indented_command_is_a_line_of_code_and_the_text_after_it_is_not(docs_check: ModuleType) -> None:
    assert docs_check.CODE.findall("    samovar doctor\n\nsamovar is no command here\n") == [("", "    samovar doctor")]


def test_a_table_that_is_made_from_the_code_is_held_to_it(docs_check: ModuleType) -> None:
    text = "Before\n<!-- made from the code: settings -->\n| Flag |\n<!-- end -->\nafter\n"
    made = docs_check.strategy_tables.with_tables(text)
    assert docs_check.strategy_tables.with_tables(made) == made != text
    assert made.startswith("Before\n<!-- made from the code: settings -->\n| Flag | Default | Of | Meaning |\n")
    assert "| `--variant NAME` | reduce | `sync-easgd` |" in made
    assert "`factors" not in made, "which no command takes"
    assert made.endswith("<!-- end -->\nafter\n")
