"""`samovar report` and `samovar watch`: files and refusals; `watch` ends with a run and with Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from samovar.cli import commands
from samovar.report.console import LogFile
from samovar.report.history import History
from samovar.report.run_folder import RunFolder
from tests.unit.report.run_folders import prediction, run_folder, step_lines


def asked(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["samovar", *words])
        return commands.run(sys.argv[1:], lambda: None)


def test_a_page_in_the_folder_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run")
    assert asked("report", str(folder)) == 0
    assert capsys.readouterr().out.startswith(f"report: {folder}/report.html (")
    assert asked("report", str(folder)) == 0, "a report takes the place of an older one"


def test_a_page_about_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [str(run_folder(tmp_path / str(workers), workers=workers)) for workers in (1, 2)]
    monkeypatch.chdir(tmp_path)
    assert asked("report", *folders, "--prediction", str(prediction(tmp_path / "p.json"))) == 0
    assert "2 workers with sync is the fastest of 2 runs" in (tmp_path / "report.html").read_text()


def test_another_file_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, other = run_folder(tmp_path / "run"), tmp_path / "thesis.html"
    other.write_text("years of work")
    assert asked("report", str(folder), "--out", str(other)) == 2
    assert "thesis.html exists, and is not a report; give another file" in capsys.readouterr().err
    assert other.read_text() == "years of work"
    assert asked("report", str(folder), "--out", os.devnull) == 2
    assert "--out /dev/null: not a regular file; give another file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "RUN", "RUN"), "a run is given twice"),
        (("report", "."), "is not the folder of a run"),
        (("watch", "RUN", "--listen", "127.0.0.1:80"), "--listen is for --web"),
        (("watch", "RUN", "--web", "--listen", "8080"), "--listen 8080: give an address of this host and a port"),
        (("watch", "RUN", "--web", "--listen", "[::1]:99999"), "give an address of this host and a port"),
        (("watch", "RUN", "--web", "--listen", f"127.0.0.1:{'9' * 5000}"), "give an address of this host and a port"),
        (("watch", "RUN", "--web", "--listen", ":8080"), "give an address of this host and a port"),
    ],
)
def test_refusals(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    step_lines(run_folder(tmp_path / "RUN"), 301, 302)
    assert asked(*words) == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_in_the_middle_of_a_look_at_whether_it_came_ends_a_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event's lock is taken then, by the thread that runs handlers of signals."""
    step_lines(tmp_path, 1, 2)

    def watched(_run: History, stopped: threading.Event) -> None:
        with stopped._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGINT)
        assert stopped.wait(60.0)

    def give_up(*_given: object) -> None:
        raise TimeoutError("a handler waits for a lock that its own thread has")

    monkeypatch.setattr("samovar.cli.report.watch", watched)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)}
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(100)
    try:
        assert asked("watch", str(tmp_path)) == 0
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("command", ["inspect", "inspect --json", "watch", "--help", "train --help-all", "--version"])
def test_a_command_whose_reader_has_gone_ends_well(tmp_path: Path, command: str) -> None:
    """As in `samovar watch RUN | head -1`, also if the run goes on."""
    files = RunFolder(run_folder(tmp_path / "run"))
    later_ns = files.result.stat().st_mtime_ns + 1
    os.utime(files.config, ns=(later_ns, later_ns))
    read_end, write_end = os.pipe()
    os.close(read_end)
    with closing(LogFile(files.log)):
        words = ["env", "-u", "PYTHONUNBUFFERED", sys.executable, "-m", "samovar", *command.split(), str(files.path)]
        ended = subprocess.run(words, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=200, check=False)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])
def test_a_name_that_the_locale_does_not_have_is_escaped(tmp_path: Path, encoding: str) -> None:
    """Python escapes surrogates alone in the locale C, if its UTF-8 mode is off."""
    folder = run_folder(tmp_path / "run", net="Café")
    words = [sys.executable, "-m", "samovar", "watch", str(folder)]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stdout.partition(":")[0], ended.stderr) == (0, "Caf\\xe9", "")


def test_ctrl_c_ends_the_page(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 2)
    command = [sys.executable, "-m", "samovar", "watch", str(tmp_path), "--web"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert "is shown at http://127.0.0.1:" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        told, _ = watching.communicate(timeout=200)
    assert (watching.returncode, told) == (0, "the page has ended; the run was not touched\n")
