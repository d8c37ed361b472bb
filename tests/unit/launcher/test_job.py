"""One message of several ranks is shown once; folders of jobs are deleted; results are held against predictions."""

import fcntl
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samovar.config import RunConfig
from samovar.core.errors import RankFailed
from samovar.core.files import passing_folder, remove_abandoned
from samovar.launch.processes import RankEnd
from samovar.launcher.job import EndedBySignal, Told, _RunningJob, _with_foresight
from samovar.launcher.other_hosts import Host0, RankState
from samovar.report.records import Notice, SnapshotWritten
from samovar.report.result import Foreseen
from samovar.report.run_folder import RunFolder
from samovar.strategies.config import StrategyConfig
from tests.unit.report.examples import RESULT, WORKER

AT_A_CENTER = RunConfig("train", Path("solver.prototxt"), workers=2, strategy=StrategyConfig("async-easgd"))
FORESEEN = Foreseen(
    cluster="here", net="n", strategy="async-easgd", workers=2, predicted_s=1.0, measured_s=1.1, profile="p"
)


def test_of_each_topic_the_first_notice_is_news() -> None:
    told = Told()
    notices = [
        Notice(level="warning", text=str(rank), topic=topic) for rank, topic in enumerate(("a", "b", "a", "", ""))
    ]
    assert [told.is_news(notice) for notice in notices] == [True, True, False, True, True]
    assert told.is_news(SnapshotWritten(step=1, path="a"))


def test_a_run_by_the_caffe_command_resumes_from_the_solverstate_of_its_pair() -> None:
    told = Told()
    names: list[str] = []
    for path in ("my.caffemodel_iter_5.caffemodel", "a/lenet_iter_5.caffemodel.h5", "a.caffemodel/step_00000005"):
        told.take(0, SnapshotWritten(step=5, path=path))
        names.append(str(told.snapshot))
    assert names == ["my.caffemodel_iter_5.solverstate", "a/lenet_iter_5.solverstate.h5", "a.caffemodel/step_00000005"]


def job_in(folder: Path, config: RunConfig, log: str, snapshot: Path | None = None) -> Any:
    """One in which rank 0 was killed after step 5."""
    job: Any = object.__new__(_RunningJob)
    job._config, job._ranks, job._folder, job._told = config, (0,), RunFolder(folder), Told(snapshot=snapshot)
    job._board, job._policy = SimpleNamespace(read=lambda *_: 5), SimpleNamespace(how=lambda _end: "was killed")
    (folder / "rank0.log").write_text(log)
    return job


@pytest.mark.parametrize(
    ("config", "snapshot", "end"),
    [
        (RunConfig("train", Path("a")), None, "rank0.log; no snapshot was written"),
        (RunConfig("train", Path("a")), Path("b/step_00000005"), "rank0.log; resume with --snapshot b/step_00000005"),
        (RunConfig("train", Path("a"), by_caffe=True), Path("b.solverstate"), "; resume with -snapshot b.solverstate"),
        (RunConfig("test", Path("a"), by_caffe=True), None, "rank0.log"),
        (RunConfig("test", Path("a")), None, "rank0.log"),
    ],
)
def test_only_what_may_have_saved_is_to_resume(
    tmp_path: Path, config: RunConfig, snapshot: Path | None, end: str
) -> None:
    job = job_in(tmp_path, config, "last words", snapshot)
    with pytest.raises(RankFailed, match=f"^rank 0 was killed after step 5, .*{re.escape(end)}$"):
        job._fail([RankEnd(0, -9)])


def test_a_log_in_which_nothing_stands_is_not_named(tmp_path: Path) -> None:
    """A passing folder goes with it."""
    job = job_in(tmp_path, RunConfig("test", Path("a")), "")
    with pytest.raises(RankFailed, match=r"after step 5, and the other ranks were ended$"):
        job._fail([RankEnd(0, -9)])


def test_the_error_of_a_signal_passes_from_process_to_process() -> None:
    error = pickle.loads(pickle.dumps(EndedBySignal("ended by SIGINT", 2)))
    assert (str(error), error.exit_code) == ("ended by SIGINT", 130)


def test_a_folder_goes_with_its_run_or_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with passing_folder("time") as kept:
        (kept.path / "rank0.log").write_text("why")
        kept.is_kept = True
    killed = "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n" + (
        "from samovar.core.files import passing_folder\nwith passing_folder('time'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    (abandoned,) = set(tmp_path.iterdir()) - {kept.path}

    with passing_folder("time") as mine:
        assert not abandoned.exists()
        remove_abandoned(tmp_path, "samovar-*")
        assert mine.path.exists()

    assert [path.name for path in tmp_path.iterdir()] == [kept.path.name]
    assert [path.name for path in kept.path.iterdir()] == ["rank0.log"]


def test_a_folder_that_is_being_made_is_no_abandoned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job may clean up at any moment, also between the making of the lock and its closing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flock = fcntl.flock

    def after_another_cleaned_up(lock: Any, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        remove_abandoned(tmp_path, "samovar-*")
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", after_another_cleaned_up)
    with passing_folder("test") as mine:
        assert mine.path.exists()


def test_without_any_temporary_folder_the_error_names_the_variable() -> None:
    program = (
        "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc']\n"
        "from samovar.core.files import passing_folder\n"
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


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_run_that_lost_workers_for_good_is_not_compared_with_its_prediction(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """Its pace is that of the others."""
    monkeypatch.setattr("samovar.launcher.job.foreseen", lambda _ran: FORESEEN)
    workers = (WORKER, replace(WORKER, is_gone=is_gone))
    found = _with_foresight(AT_A_CENTER, replace(RESULT, by_worker=workers), 0.0)
    assert found.foreseen == (None if is_gone else FORESEEN)
