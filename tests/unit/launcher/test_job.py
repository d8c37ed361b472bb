"""One message of several ranks is shown once; temporary folders of jobs are deleted."""

import fcntl
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samovar.launcher.job import EndedBySignal, Told, _RunningJob
from samovar.launcher.other_hosts import Host0, RankState
from samovar.launcher.passing import passing_folder, remove_abandoned
from samovar.report.records import Notice, SnapshotWritten
from samovar.report.run_folder import RunFolder


def test_of_each_topic_the_first_notice_is_news() -> None:
    told = Told()
    notices = [
        Notice(level="warning", text=str(rank), topic=topic) for rank, topic in enumerate(("a", "b", "a", "", ""))
    ]
    assert [told.is_news(notice) for notice in notices] == [True, True, False, True, True]
    assert told.is_news(SnapshotWritten(step=1, path="a"))


def test_the_error_of_a_signal_passes_from_process_to_process() -> None:
    error = pickle.loads(pickle.dumps(EndedBySignal("ended by SIGINT", 2)))
    assert (str(error), error.exit_code) == ("ended by SIGINT", 130)


def test_a_folder_goes_with_its_run_or_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with passing_folder("time") as kept:
        (kept.path / "rank0.log").write_text("why")
        kept.keep()
    killed = "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n" + (
        "from samovar.launcher.passing import passing_folder\nwith passing_folder('time'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    (abandoned,) = set(tmp_path.iterdir()) - {kept.path}

    with passing_folder("time") as mine:
        assert not abandoned.exists()
        remove_abandoned(tmp_path)
        assert mine.path.exists()

    assert [path.name for path in tmp_path.iterdir()] == [kept.path.name]
    assert [path.name for path in kept.path.iterdir()] == ["rank0.log"]


def test_a_folder_that_is_being_made_is_no_abandoned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job may clean up at any moment, also between the making of the lock and its closing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flock = fcntl.flock

    def after_another_cleaned_up(lock: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        remove_abandoned(tmp_path)
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", after_another_cleaned_up)
    with passing_folder("test") as mine:
        assert mine.path.exists()


def test_without_any_temporary_folder_the_error_names_the_variable() -> None:
    program = (
        "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc']\n"
        "from samovar.launcher.passing import passing_folder\n"
        "from samovar.core.errors import InputError\n"
        "try:\n"
        "    with passing_folder('test'): pass\n"
        "except InputError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout == (
        "No usable temporary directory found in ['/proc']; set TMPDIR to a folder that can be written to\n"
    ), ended.stderr


def test_a_rank_of_another_host_whose_end_has_not_come_has_made_no_step(tmp_path: Path) -> None:
    """Its reason may come first; then the run ends by that, not by a traceback."""
    job: Any = object.__new__(_RunningJob)
    job._ranks, job._folder, job._others = (0,), RunFolder(tmp_path), object.__new__(Host0)
    job._others.states = {}
    assert job._state(1) == RankState(0, "rank1.log")
