"""A signal at any moment of a command's life, its first imports included: promised statuses, a line, nothing left."""

import re
import signal
import time
from pathlib import Path

import pytest

import samovar
from tests.multiproc.command import Command
from tests.multiproc.held_import import HeldImport
from tests.multiproc.leftovers import sessions_of
from tests.multiproc.nets import write_net, write_solver

COMMANDS = ("train", "test", "time", "caffe", "run", "doctor", "inspect", "data")
# Before the interpreter runs a line of ours its own answer to a signal holds: its end by the signal, or a traceback
# without a frame of ours, also one from its own start.
INTERPRETERS_OWN = re.compile(r"Fatal Python error: init_|^Traceback .*KeyboardInterrupt", re.MULTILINE | re.DOTALL)
OWN_FRAME = f'File "{Path(samovar.__file__).parent}/'  # an editable install has the path in lines of its own
# How a command may end besides by the signal: what never ends by itself must have saved something.
SAVED = {signal.SIGINT: {0}, signal.SIGTERM: {75}}
BY_ITSELF = {signal.SIGINT: {0, 2}, signal.SIGTERM: {0, 2}}
NEVER = {signal.SIGINT: set[int](), signal.SIGTERM: set[int]()}
DONE = {"train": SAVED, "caffe": SAVED, "time": NEVER, "run": NEVER}


def arguments_of(name: str, folder: Path, digits: Path) -> tuple[object, ...]:
    net = write_net(folder, digits)
    solver = write_solver(net, 10_000_000)
    script = folder / "waits.py"
    script.write_text("import signal\nsignal.pause()\n")
    return {
        "train": ("train", "--solver", solver, "--workers", 2, "--threads-per-worker", 1, "--out", folder / "run"),
        "test": ("test", "--model", net, "--weights", "none.caffemodel"),
        "time": ("time", "--model", net, "--iterations", 1_000_000),
        "caffe": ("caffe", "train", f"--solver={solver}"),
        "run": ("run", "-n", 2, "--grace", 1, script),
        "doctor": ("doctor",),
        "inspect": ("inspect", net),
        "data": ("data", "digits", "--out", folder / "made"),
    }[name]


def own_words(said: str) -> str:
    """Without what a script's ranks say, whose interpreters answer Ctrl-C as any does."""
    return "".join(line for line in said.splitlines(keepends=True) if not re.match(r"\[\d+\] ", line))


def catches(process_id: int, number: signal.Signals) -> bool:
    found = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process_id}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def end_of(name: str, folder: Path, digits: Path, number: signal.Signals, after_s: float) -> None:
    with Command(*arguments_of(name, folder, digits), folder=folder) as command:
        time.sleep(after_s)  # what is tried: a moment
        ranks = list(command.ranks().values())
        has_begun = catches(command.process.pid, signal.SIGTERM)  # which our first lines do, and no interpreter
        if command.process.poll() is None:
            command.send(number)
        ended = command.wait()
    said = own_words(ended.output + ended.errors)
    assert OWN_FRAME not in said, said
    if ended.return_code == -number or INTERPRETERS_OWN.search(said):
        assert not has_begun, said
    elif name == "run" and "Fatal Python error: init_" in ended.errors:  # a rank's interpreter, before its script
        assert ended.return_code == 1, said
    elif ended.return_code == 128 + number:
        assert len(re.findall("^samovar: (?!warning: )", said, re.MULTILINE)) == 1, said
        assert number.name in said, said
    else:
        assert ended.return_code in DONE.get(name, BY_ITSELF)[number], said
        assert (folder / "run" / "result.json").exists() == (name == "train"), said
    assert not sessions_of([rank.pid for rank in ranks])


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("time",), signal.SIGTERM),
        (("test", "--weights", "none"), signal.SIGINT),
        (("caffe", "test", "-weights", "none"), signal.SIGTERM),
        (("caffe", "time"), signal.SIGINT),
    ],
)
def test_what_saves_nothing_ends_at_once(
    tmp_path: Path, digits: Path, words: tuple[object, ...], number: signal.Signals
) -> None:
    """Whatever its rank does meanwhile: none looks for signals."""
    held = HeldImport(tmp_path, "samovar.training.rank_work", "--rank=0")
    net = write_net(tmp_path, digits)
    with Command(*words, "--model", net, folder=tmp_path, prefix=held.prefix) as command:
        command.until(lambda: held.is_reached, "rank 0 stands still")
        command.send(number)
        ended = command.wait()

    assert ended.return_code == 128 + number
    assert ended.errors.splitlines()[-1] == f"samovar: error: ended by {number.name}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_commands_load(tmp_path: Path, digits: Path, number: signal.Signals) -> None:
    for after_s in (0.05, 0.3, 0.5):
        end_of("inspect", tmp_path, digits, number, after_s)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_at_every_moment(tmp_path: Path, digits: Path, name: str, number: signal.Signals) -> None:
    for tick in range(61):
        folder = tmp_path / str(tick)
        folder.mkdir()
        end_of(name, folder, digits, number, tick * 0.05)
