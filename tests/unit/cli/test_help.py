"""Help in two parts: --help fits a screen, --help-all tells of every flag."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from samovar.cli.commands import COMMANDS, app_of
from samovar.strategies.ours import OURS

LINES = 50
GROUPS = {
    "box": ("serve", "list", "snapshot", "load", "drop"),
    "data": ("images", "digits", "mnist", "fashion-mnist", "cifar10", "leveldb"),
}
pytestmark = pytest.mark.usefixtures("strategies_as_before")


def help_of(*words: str, flag: str = "--help", columns: int = 80) -> str:
    result = CliRunner().invoke(app_of(words), [*words, flag], env={"COLUMNS": f"{columns}", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return result.output


def commands() -> list[tuple[str, ...]]:
    in_groups = [(name, command) for name, group in GROUPS.items() for command in group]
    return [(), *((name,) for name in COMMANDS), *in_groups]


def flags_in(shown: str) -> set[str]:
    return set(re.findall(r"(?:^│ |, ?|\* +)\s*(--[a-z-]+)", shown, re.MULTILINE))


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_help_fits_a_screen(words: tuple[str, ...], columns: int) -> None:
    lines = help_of(*words, columns=columns).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("words", [(), ("train",), ("box", "serve")], ids=" ".join)
def test_one_letter_asks_for_help_too(words: tuple[str, ...]) -> None:
    assert help_of(*words, flag="-h") == help_of(*words)


def test_the_rest_is_in_help_all() -> None:
    few, every = flags_in(help_of("train")), flags_in(help_of("train", flag="--help-all"))
    assert {"--solver", "--workers", "--strategy", "--sync-period", "--help-all", "--quiet", "--json"} <= few < every
    advanced = {one.flag for kind in OURS for one in kind.traits.settings if one.is_advanced and one.has_flag}
    assert advanced
    assert advanced <= every - few
    program = typer.main.get_command(app_of(["train"]))
    assert isinstance(program, TyperGroup)
    assert every == {name for one in program.commands["train"].params for name in one.opts} | {"--help"}


def test_a_flag_that_an_error_advises_is_in_the_short_help() -> None:
    assert "--shape" in flags_in(help_of("predict")) & flags_in(help_of("inspect"))


def test_flags_stand_in_panels_with_plain_titles() -> None:
    titles = re.findall(r"╭─ (.+?) ─", help_of("train"))
    assert titles == ["Data and files", "Workers", "How workers share", "Output and help"]


def test_a_flag_that_help_leaves_out_is_taken_and_refused_like_any_other() -> None:
    words = ["train", "--solver", "s", "--strategy", "local-sgd", "--owner", "root"]
    result = CliRunner().invoke(app_of(words), words)
    assert str(result.exception).startswith("--owner is not a setting of --strategy local-sgd: leave it out")


@pytest.mark.parametrize("words", [("train", "--solver", "s"), ("test", "--model", "m", "--weights", "w")])
def test_an_empty_out_is_not_the_current_folder(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app_of(words), [*words, "--out", ""])
    assert str(result.exception).startswith("--out '': names no folder; give one")


def test_brackets_in_the_help_of_a_user_s_setting_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "bracketed.py"
    path.write_text(
        "import samovar\nfrom samovar.strategies.local_sgd import SYNC_PERIOD, LocalSgd\n"
        "@samovar.strategy('bracketed', settings=(SYNC_PERIOD, samovar.Setting('span', float, 'In [0, 1] [/x].'),))\n"
        "class Bracketed(LocalSgd): ...\n"
    )
    assert "In [0, 1] [/x]. For bracketed." in help_of("train", "--strategy", f"{path}:Bracketed", columns=160)


@pytest.mark.parametrize("words", [(), ("train",), ("data",)], ids=" ".join)
def test_a_help_has_no_colour_that_a_light_terminal_swallows(words: tuple[str, ...]) -> None:
    command = [str(Path(sys.executable).with_name("samovar")), *words, "--help"]
    variables = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    variables.pop("NO_COLOR", None)
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    codes = {code for found in re.findall(r"\x1b\[([0-9;]+)m", shown) for code in found.split(";")}
    assert "1" in codes
    assert codes <= {"0", "1", "2", "31"}  # bold, dim, and red for what is required
