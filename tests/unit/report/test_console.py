"""The output for the user, with a terminal and without one, and the log."""

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import InputError
from samovar.report.console import Console, LogFile, Screen
from samovar.report.records import Notice
from samovar.report.wording import cpu_ranges, duration, number, pinning, rate
from tests.terminal import read_to_end

from .examples import FAILED, FINISHED, PROGRESS, RESULT, SNAPSHOT_WRITTEN, STARTED, TESTED, VALUED, WARNING, WORKER


class Shown:
    """A console over two strings."""

    def __init__(self, **options) -> None:
        self.output, self.errors = io.StringIO(), io.StringIO()
        self.clock_s = 0.0
        self.console = Console(self.output, self.errors, width=100, monotonic_s=lambda: self.clock_s, **options)

    def run(self, steps: range) -> None:
        for step in steps:
            self.clock_s += 1
            self.console.show(replace(PROGRESS, step=step))

    @property
    def lines(self) -> list[str]:
        return self.output.getvalue().splitlines()


def test_the_plan_is_told_in_lines() -> None:
    shown = Shown()
    shown.console.show(replace(STARTED, run_folder="runs/here"))
    assert shown.lines == [
        "LeNet · 431,080 parameters · digits 1,437 train / 360 test",
        "2 workers x 1 thread · batch 64 each, 128 effective · lr 0.01 (inv) · sync over shm, ring",
        "600 iterations · rank 0 on cpu 0, rank 1 on cpu 1",
        "run folder runs/here",
    ]


@pytest.mark.parametrize("step", [0, 300])
@pytest.mark.parametrize("how", ["resumed", "joined"])
def test_a_run_that_resumes_or_joins_others_says_so(step: int, how: str) -> None:
    shown = Shown()
    shown.console.show(replace(STARTED, start_step=step, worker_cpus=((), ()), how=how))
    assert shown.lines[2] == f"iterations {step} to 600, {how} · not pinned to cpus"


def test_without_a_terminal_progress_is_a_line_each_display_interval_and_at_the_end() -> None:
    shown = Shown(display_steps=250)
    shown.run(range(1, 601))
    assert [line.split(" · ")[0] for line in shown.lines] == ["step 250/600", "step 500/600", "step 600/600"]
    assert shown.lines[0] == "step 250/600 · loss 0.0113 · lr 0.0098 · 5,900 samples/s · 0:07 left"
    assert shown.lines[-1] == "step 600/600 · loss 0.0113 · lr 0.0098 · 5,900 samples/s"
    assert "\x1b" not in shown.output.getvalue()
    assert "\r" not in shown.output.getvalue()


def test_a_report_that_skips_the_interval_is_still_shown() -> None:
    shown = Shown(display_steps=100)
    shown.run(range(30, 601, 30))
    assert [line.split("/")[0] for line in shown.lines[:3]] == ["step 120", "step 210", "step 300"]


def test_tests_and_snapshots_are_lines() -> None:
    shown = Shown()
    shown.console.show(TESTED)
    shown.console.show(SNAPSHOT_WRITTEN)
    shown.console.show(Notice(level="info", text="as told"))
    assert shown.lines == [
        "test at step 500 · accuracy 0.9810 · loss 0.0530",
        "snapshot of step 500 in runs/a/snapshots/step_00000500",
        "as told",
    ]


def test_values_of_a_pass_are_lines() -> None:
    shown = Shown()
    shown.console.show(VALUED)
    assert shown.lines == [line.text for line in VALUED.lines]


def test_the_end_tells_quality_weights_time_and_what_lies_in_the_run_folder(tmp_path: Path) -> None:
    (tmp_path / "result.json").touch()
    (tmp_path / "snapshots").mkdir()
    shown = Shown()
    shown.console.show(replace(STARTED, run_folder=str(tmp_path)))
    shown.console.show(FINISHED)
    assert shown.lines[-2:] == [
        "test accuracy 0.9861 · weights 3f9c12ab… equal on both ranks · 13.2 s",
        f"run folder {tmp_path}   (result.json, snapshots)",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"test_accuracy": None}, "test loss 0.0450 · weights 3f9c12ab… equal on both ranks · 13.2 s"),
        (
            {"test_accuracy": None, "test_loss": None, "replicas_equal": None},
            "training loss 0.0113 · weights 3f9c12ab… · 13.2 s",
        ),
        ({"workers": 1}, "test accuracy 0.9861 · weights 3f9c12ab… · 13.2 s"),
        (
            {"peak_memory_bytes": (300 << 20, 312 << 20)},
            "test accuracy 0.9861 · weights 3f9c12ab… equal on both ranks · 13.2 s · 312 MiB a worker",
        ),
        (
            {"workers": 4, "replicas_equal": False},
            "test accuracy 0.9861 · weights 3f9c12ab… NOT equal on all 4 ranks · 13.2 s",
        ),
        (
            {"stopped_by": "SIGINT", "steps": 312, "seconds": 4000.0},
            "stopped by SIGINT after step 312 · test accuracy 0.9861 · weights 3f9c12ab… equal on both ranks · 1:06:40",
        ),
        (
            {"replicas_equal": None, "by_worker": tuple(replace(WORKER, steps=steps) for steps in (7, 9, 9))},
            "test accuracy 0.9861 · weights 3f9c12ab… · 7 (rank 0) to 9 (rank 1) steps a worker · 13.2 s",
        ),
        (
            {"replicas_equal": None, "by_worker": (WORKER, replace(WORKER, steps=4, restarts=2)), "seconds": 9.0},
            "test accuracy 0.9861 · weights 3f9c12ab… · 4 (rank 1) to 600 (rank 0) steps a worker · 2 restarts · 9.0 s",
        ),
        (
            {"replicas_equal": None, "by_worker": (replace(WORKER, restarts=1), WORKER)},
            "test accuracy 0.9861 · weights 3f9c12ab… · 600 steps a worker · 1 restart · 13.2 s",
        ),
    ],
)
def test_the_end_of_other_runs(changes: dict[str, Any], expected: str) -> None:
    shown = Shown()
    shown.console.show(replace(FINISHED, result=replace(RESULT, **changes)))
    assert shown.lines == [expected]


def test_warnings_go_to_stderr_as_one_sentence_and_errors_are_for_the_caller_to_show() -> None:
    shown = Shown()
    shown.console.show(WARNING)
    shown.console.failed(FAILED.message)
    assert shown.lines == []
    assert shown.errors.getvalue() == "samovar: warning: moving rate 0.9 is unstable\n"


def test_on_a_terminal_the_bar_is_drawn_in_place_and_stays_at_the_end() -> None:
    shown = Shown(terminal=True)
    shown.run(range(100, 601, 100))
    text = shown.output.getvalue()
    assert text.count("\r\x1b[2K") == 6
    assert text.count("\n") == 1
    last = shown.output.getvalue().split("\r\x1b[2K")[-1]
    assert last.startswith("step 600/600 ")
    assert last.count("━") == 40
    assert "loss 0.0113 · 5,900 samples/s" in last


def test_on_a_terminal_the_bar_is_not_drawn_more_often_than_an_eye_can_see() -> None:
    shown = Shown(terminal=True)
    for step in range(1, 600):
        shown.console.show(replace(PROGRESS, step=step))
    assert shown.output.getvalue().count("\r\x1b[2K") == 1
    shown.console.show(replace(PROGRESS, step=600))
    assert shown.output.getvalue().count("\r\x1b[2K") == 2


def test_on_a_terminal_other_lines_stand_above_the_bar() -> None:
    shown = Shown(terminal=True)
    shown.run(range(300, 301))
    shown.console.show(TESTED)
    drawn, tested = shown.output.getvalue().rsplit("\r\x1b[2K", 1)
    assert drawn.endswith("left\r")
    assert tested == "test at step 500 · accuracy 0.9810 · loss 0.0530\n"
    shown.run(range(301, 302))
    shown.console.failed("rank 3: gone")
    assert shown.output.getvalue().endswith("\r\x1b[2K")


def test_control_codes_in_names_do_not_reach_the_terminal() -> None:
    shown = Shown(terminal=True)
    shown.console.show(replace(STARTED, net_name="Le\x1b[2JNet\x9b\r"))
    assert "Le\\x1b[2JNet\\x9b\\x0d" in shown.output.getvalue()


def test_a_narrow_terminal_gets_a_cut_line() -> None:
    output = io.StringIO()
    console = Console(output, io.StringIO(), terminal=True, width=30)
    console.show(PROGRESS)
    drawn = output.getvalue().removeprefix("\r\x1b[2K").removesuffix("\r")
    assert drawn == "step 300/600  loss 0.0113 · 5"


def test_a_stream_that_knows_only_ascii_gets_ascii() -> None:
    raw = io.BytesIO()
    console = Console(io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    console.show(replace(STARTED, net_name="Größe"))
    assert raw.getvalue().splitlines()[0] == b"Gr??e | 431,080 parameters | digits 1,437 train / 360 test"


def test_a_reader_that_is_gone_does_not_end_the_run() -> None:
    program = (
        "import sys; from samovar.report.console import Console; from samovar.report.records import Notice\n"
        "console = Console(sys.stdout, sys.stderr)\n"
        "for turn in range(1000): console.show(Notice(level='info', text='x' * 1000))\n"
        "print('still here', file=sys.stderr)"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "still here\n")


def test_a_real_terminal_shows_the_bar() -> None:
    program = (
        "import sys; from samovar.report.console import Console; from samovar.report.records import Progress\n"
        "console = Console(sys.stdout, sys.stderr)\n"
        "console.show(Progress(step=5, total_steps=5, loss=1.0, learning_rate=0.1,"
        " samples_per_second=10.0, eta_s=None))"
    )
    master, slave = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
        subprocess.run([sys.executable, "-c", program], stdout=slave, env=environment, check=True)
    finally:
        os.close(slave)
        shown = read_to_end(master).decode()
        os.close(master)
    assert "\x1b[2K" in shown
    assert "━" * 38 in shown
    assert "loss 1.0000 · 10 samples/s" in shown


def test_the_log_keeps_every_line_with_its_time(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "samovar.log", now=lambda: datetime(2026, 11, 20, 14, 12, 5, 250000, UTC))
    shown = Shown(terminal=True, log=log, display_steps=300)
    shown.console.show(STARTED)
    shown.run(range(1, 601))
    shown.console.show(FINISHED)
    shown.console.failed(f"rank 3: {FAILED.message}")
    log.close()
    lines = (tmp_path / "samovar.log").read_text().splitlines()
    assert {line.split(" ", 1)[0] for line in lines} == {"2026-11-20T14:12:05.250+00:00"}
    assert [line.split(" ", 1)[1].split(" · ")[0] for line in lines] == [
        "LeNet",
        "2 workers x 1 thread",
        "600 iterations",
        "step 300/600",
        "step 600/600",
        "test accuracy 0.9861",
        "samovar: error: rank 3: no notification from rank 2",
    ]


def test_a_log_is_added_to(tmp_path: Path) -> None:
    for text in ("first", "second\nthird"):
        log = LogFile(tmp_path / "samovar.log")
        log.write(text)
        log.close()
    lines = (tmp_path / "samovar.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["first", "second", "third"]


def test_a_log_says_whether_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "samovar.log"
    assert LogFile.is_written(path) is None, "there is no file"
    first, second = LogFile(path), LogFile(path)
    first.close()
    assert LogFile.is_written(path) is True, "a look does not take the lock"
    assert LogFile.is_written(path) is True
    second.close()
    assert LogFile.is_written(path) is False


def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"samovar.log cannot be written: No such file or directory"):
        LogFile(tmp_path / "no" / "samovar.log")


def test_a_log_on_a_full_disk_is_told_once_and_the_run_goes_on() -> None:
    log = LogFile(Path("/dev/full"))
    shown = Shown(log=log)
    shown.run(range(1, 4))
    log.close()
    assert len(shown.lines) == 3
    assert shown.errors.getvalue() == (
        "samovar: warning: /dev/full cannot be written: No space left on device; the run continues without it\n"
    )


class OwnStream:
    """What a program may put in the place of stdout, as Celery and wrappers of loggers do."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_a_programs_own_stream_need_not_tell_its_encoding() -> None:
    stream: Any = OwnStream()
    Console(stream, stream).show(WARNING)
    assert WARNING.text in stream.text


def test_with_closed_streams_it_continues_in_silence() -> None:
    stream = io.StringIO()
    before = Console(stream, stream)
    stream.close()
    for console in (before, Console(stream, stream)):
        console.show(WARNING)


def test_a_wish_for_colours_makes_no_terminal_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not Screen(io.StringIO()).is_terminal


@pytest.mark.parametrize(("cpus", "expected"), [((0,), "0"), ((0, 1, 2, 3), "0-3"), ((8, 0, 1, 3), "0-1,3,8")])
def test_cpu_numbers(cpus: tuple[int, ...], expected: str) -> None:
    assert cpu_ranges(cpus) == expected


def test_the_middle_of_many_ranks_is_left_out() -> None:
    assert pinning(tuple((rank,) for rank in range(16))) == (
        "rank 0 on cpu 0, rank 1 on cpu 1, rank 2 on cpu 2, ..., rank 15 on cpu 15"
    )
    assert pinning(((0, 1), ())) == "rank 0 on cpu 0-1, rank 1 on any cpu"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0113, "0.0113"),
        (2.302585, "2.3026"),
        (0.0000123, "1.23e-05"),
        (123456.0, "1.235e+05"),
        (0.0, "0"),
        (float("nan"), "nan"),
    ],
)
def test_numbers(value: float, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("samples_per_second", "expected"), [(0.0432, "0.043"), (9.94, "9.9"), (9.96, "10"), (12345.6, "12,346")]
)
def test_few_samples_a_second_are_not_none(samples_per_second: float, expected: str) -> None:
    assert rate(samples_per_second) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.4, "0:00"), (59.6, "1:00"), (3661, "1:01:01")])
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_a_long_line_is_broken_between_words_and_only_its_beginning_has_a_colour() -> None:
    stream = io.StringIO()
    Screen(stream, terminal=True, width=24).line(
        "step 9: rank 0 is slower than the others", "yellow", "samovar: warning: "
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert [line.rstrip() for line in plain.splitlines()] == [
        "samovar: warning: step",
        "9: rank 0 is slower than",
        "the others",
    ]
    assert stream.getvalue().startswith("\x1b[33msamovar: warning: \x1b[0mstep")


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    Screen(stream, terminal=True, width=80).line("it failed", "red")
    assert stream.getvalue() == "it failed\n"
