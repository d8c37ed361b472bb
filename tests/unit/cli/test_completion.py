"""Shell completion: what a shell gets, and what it costs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMOVAR = Path(sys.executable).with_name("samovar")
PRESSED = """
eval "$(samovar --show-completion)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_samovar_completion samovar
printf '%s\\n' "${COMPREPLY[@]}"
"""


def asked(shell: str, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What typer's script for this shell runs when Tab is pressed after `line`."""
    variables = {"_SAMOVAR_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, **more}
    return subprocess.run(
        [SAMOVAR], env={**os.environ, **variables}, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tra"], ["train"]),
        (["box", "s"], ["serve", "snapshot"]),
        (["train", "--strategy", "hy"], ["hybrid-easgd"]),
        (["train", "--device", "c"], ["cpu", "cuda"]),
        (["train", "--overlap", "p"], ["period"]),
        (["train", "--sol"], ["--solver"]),
        (["train", "--solver", ""], [""]),  # bash goes on with files
    ],
    ids=" ".join,
)
def test_bash_offers(words: list[str], offered: list[str]) -> None:
    path = f"{SAMOVAR.parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", PRESSED, "bash", "samovar", *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert (ended.stdout.splitlines(), ended.stderr) == (offered, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_offers(tmp_path: Path) -> None:
    home = {**os.environ, "HOME": f"{tmp_path}", "PATH": f"{SAMOVAR.parent}:{os.environ['PATH']}"}
    chosen = {**home, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(
        [str(SAMOVAR), "--show-completion", "fish"], env=chosen, capture_output=True, text=True, check=True
    ).stdout
    pressed = f"{script}\ncomplete -C 'samovar train --strategy hy'"
    ended = subprocess.run(["fish", "-c", pressed], env=home, capture_output=True, text=True, timeout=200, check=True)
    assert ended.stdout == "hybrid-easgd\n"


def test_zsh_and_fish_are_answered_in_their_own_ways() -> None:
    assert asked("zsh", "samovar train --strategy hy").stdout == "_arguments '*: :((\"hybrid-easgd\"))'\n"
    assert asked("zsh", "samovar train --solver ").stdout == "_files\n"
    words = "samovar train --strategy hy"
    assert asked("fish", words, _TYPER_COMPLETE_FISH_ACTION="get-args").stdout == "hybrid-easgd\n"
    assert asked("fish", "samovar train --solver ", _TYPER_COMPLETE_FISH_ACTION="is-args").returncode == 1


def test_nothing_that_the_line_names_is_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    assert "sync" in asked("zsh", f"samovar train --strategy {tmp_path}/mine.py:Mine --strategy s").stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_is_installed_where_the_shell_looks(shell: str, tmp_path: Path) -> None:
    home = {"HOME": f"{tmp_path}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [str(SAMOVAR), "--install-completion", shell]
    subprocess.run(command, env={**os.environ, **home}, capture_output=True, timeout=200, check=True)
    place = {
        "bash": ".bash_completions/samovar.sh",
        "zsh": ".zfunc/_samovar",
        "fish": ".config/fish/completions/samovar.fish",
    }
    assert "_SAMOVAR_COMPLETE=complete_" in (tmp_path / place[shell]).read_text()
