"""A command loads only the modules that it needs."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samovar.cli import commands
from samovar.cli.commands import COMMANDS, app_of

ROOT = Path(__file__).parents[3]
SOLVER = "examples/lenet/digits_solver.prototxt"
HEAVY = ("numpy", "torch", "google.protobuf", "cryptography", "PIL", "lmdb", "h5py", "greenlet")
LOADED = """
import sys
from pathlib import Path
from samovar.cli.commands import app_of
app_of(sys.argv[2:])
print(*(name for name in sys.argv[1].split() if name in sys.modules))
"""


def loaded(*words: str) -> list[str]:
    """Of HEAVY, what is there once the command line for `words` is."""
    run = (sys.executable, "-c", LOADED, " ".join(HEAVY), *words)
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (("--version",), HEAVY),
        (("convert", "a", "b"), HEAVY),
        (("inspect", "a"), HEAVY),
        (("train", "--solver", "a"), ("torch", "PIL", "lmdb", "h5py", "greenlet")),
        (("--help",), ("torch",)),
        (("--show-completion",), HEAVY),
    ],
    ids=["version", "convert", "inspect", "train", "help", "completion"],
)
def test_a_command_loads_what_it_needs(words: tuple[str, ...], unneeded: tuple[str, ...]) -> None:
    assert set(unneeded).isdisjoint(loaded(*words))


@pytest.mark.parametrize("words", [(), ("--help",), ("trian",)], ids=["nothing", "help", "a word that is no command"])
def test_all_are_there_where_any_may_be_meant(words: tuple[str, ...]) -> None:
    app = app_of(words)
    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    assert sorted(names) == sorted(COMMANDS)


def test_one_is_there_where_it_is_given() -> None:
    assert [command.name for command in app_of(["train", "--solver", "a"]).registered_commands] == ["train"]
    assert [group.name for group in app_of(["data", "digits"]).registered_groups] == ["data"]
    assert not app_of(["--version"]).registered_commands


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'? See `samovar --help`"),
        (["init"], "Missing argument 'kind'. Choose from: caffe, torch; see `samovar init --help`"),
        (["train"], "Missing option '--solver'; see `samovar train --help`"),
    ],
    ids=["command", "argument", "option"],
)
def test_what_is_wrong_on_the_command_line_is_one_sentence(words: list[str], sentence: str) -> None:
    program = str(Path(sys.executable).with_name("samovar"))
    ended = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"samovar: error: {sentence}\n")


@pytest.mark.parametrize(
    "words", ["--help", "--version", "doctor --help", f"inspect {SOLVER}", f"inspect {SOLVER} --json"]
)
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [(">/dev/full", 3, "samovar: error: No space left on device: .*; free some space"), (">&-", 0, "")],
)
def test_an_output_that_is_full_or_closed_is_no_traceback(words: str, redirection: str, code: int, said: str) -> None:
    command = f"env -u PYTHONUNBUFFERED {sys.executable} -m samovar.cli.entry {words} {redirection}"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, check=False, timeout=200)
    assert ended.returncode == code, ended.stderr
    assert re.fullmatch(said, ended.stderr.strip())


def test_no_file_takes_the_place_of_a_closed_stream() -> None:
    """A rank has streams of the same numbers."""
    program = (
        "import os, sys\nfrom samovar.cli import entry\nsys.argv[1:] = ['--version']\n"
        "try: entry.main()\nfinally: print(os.open('/dev/null', os.O_RDONLY) > 2)"
    )
    words = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, program]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.endswith("True\n")


def test_a_file_that_may_not_be_used_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "w.caffemodel")

    monkeypatch.setattr(commands, "app_of", lambda _words: refuse)
    assert commands.run(["inspect", "w.caffemodel"], lambda: None) == 2
    assert capsys.readouterr().err == "samovar: error: w.caffemodel: Permission denied; give one that you may use\n"


def test_a_name_that_is_too_long_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "app_of", lambda _words: lambda **_: Path("x" * 300).stat())
    assert commands.run(["inspect", "x" * 300], lambda: None) == 2
    assert capsys.readouterr().err.endswith("File name too long; give one that you may use\n")
