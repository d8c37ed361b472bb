"""A run as its folder says it, whole and as it grows."""

import os
import threading
from array import array
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.report.console import LogFile
from samovar.report.history import ENDED, FAILED, KILLED, OPEN, UNTOLD, History, LogEnd, binned, log_end
from samovar.report.metrics import MetricsWriter
from samovar.report.result import read_result, write_result
from samovar.report.run_folder import RunFolder
from samovar.report.timeline import read_events
from tests.unit.report.run_folders import BATCH, STEP_S, run_folder, step_lines


def test_a_run_that_has_ended(tmp_path: Path) -> None:
    run = History(run_folder(tmp_path / "run")).look()
    assert (run.state, run.net, run.strategy, run.workers) == (ENDED, "LeNet", "sync", 2)
    assert run.steps.samples[-1] == 300 * 2 * BATCH
    assert run.steps.seconds[-1] == pytest.approx(300 * STEP_S)
    assert run.steps.rate(0, -1) == pytest.approx(2 * BATCH / STEP_S)
    assert [test.step for test in run.tests] == [0, 100, 200, 300]
    assert run.tests[1].seconds == pytest.approx(100 * STEP_S)
    assert run.first_reached(0.95) == pytest.approx(200 * STEP_S)
    assert run.first_reached(0.99) is None
    assert run.step_s["exchange"] == pytest.approx(0.3 * STEP_S)
    assert run.spent.bound == "straggler-bound, the others wait 20% of the time for rank 1"
    assert run.told.advice == "see its cpus"
    assert run.told.total_steps == 300


def test_the_loss_of_a_test_is_no_other_output_with_such_a_name(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 3)
    auxiliary = {"loss1/loss1": 1.6, "loss1/top-1": 0.9}
    with closing(MetricsWriter(RunFolder(tmp_path).metrics, 3)) as metrics:
        for step, values in enumerate(({"test_loss": 3.2}, {"loss": 2.3}, {}), 4):
            metrics.write(step, "test", {**auxiliary, **values})
    assert [test.loss for test in History(tmp_path).look().tests[-3:]] == [3.2, 2.3, None]


def test_few_points_are_means_of_many_steps() -> None:
    """Each is at the last step of its bin."""
    steps, losses = array("d", range(4)), array("d", [1, 3, 5, 7])
    assert binned(steps, losses, 2) == [(1, 2), (3, 6)]
    assert binned(steps, losses, 3) == [(0, 1), (2, 4), (3, 7)]
    assert binned(steps, losses, 4) == binned(steps, losses, 9) == list(zip(steps, losses, strict=True))


def test_a_look_reads_only_what_has_come(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    step_lines(tmp_path, 1, 10)
    run = History(tmp_path).look()
    assert (run.state, len(run.steps.step)) == (UNTOLD, 10)
    with folder.metrics.open("ab") as file:
        file.write(b'{"step": 11, "kind": "train", "loss": "NaN", "samples": 1')
        file.flush()
        assert len(run.look().steps.step) == 10, "half a line is not a line"
        file.write(b', "seconds": 0.5}\n')
    assert list(run.look().steps.step)[-1] == 11
    assert run.steps.seconds[-1] == pytest.approx(10 * STEP_S + 0.5)


def test_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 20)
    run = History(tmp_path).look()
    step_lines(tmp_path, 11, 12)  # which drops all lines behind step 10
    assert list(run.look().steps.step) == [*range(1, 13)]
    assert run.look().steps.samples[-1] == 12 * 2 * BATCH


def test_the_result_of_an_older_run_does_not_count(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    later_ns = files.result.stat().st_mtime_ns + 1
    os.utime(files.config, ns=(later_ns, later_ns))
    run = History(files.path).look()
    assert (run.state, run.workers, run.strategy) == (KILLED, 2, "sync")
    log = LogFile(files.log)
    assert run.look().state == OPEN, "its launcher has the log open"
    log.write("samovar: error: rank 1 was killed")
    log.close()
    assert (run.look().state, run.told.error) == (FAILED, "rank 1 was killed")


def test_the_result_of_a_copied_run_counts(tmp_path: Path) -> None:
    """A copy may keep no times."""
    files = RunFolder(run_folder(tmp_path / "run"))
    with files.log.open("a") as log:
        log.write("2026-11-24T20:00:02.000+00:00 run folder runs/a   (result.json, metrics.jsonl)\n")
    later_ns = files.result.stat().st_mtime_ns + 1
    os.utime(files.config, ns=(later_ns, later_ns))
    assert History(files.path).look().state == ENDED
    with closing(LogFile(files.log)):
        assert History(files.path).look().state == OPEN, "it is resumed now"


def test_a_run_that_is_resumed_has_the_length_and_the_advice_of_its_own_launch(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    with closing(LogFile(files.log)) as log:
        log.write("run folder runs/a   (result.json, metrics.jsonl)")
    assert (log_end(files.log).total_steps, log_end(files.log).advice) == (300, "see its cpus")
    with closing(LogFile(files.log)) as log:
        assert log_end(files.log) == LogEnd(is_open=True), "all of it is of the launch before"
        log.write("iterations 300 to 1,600, resumed · not pinned to cpus")
        assert log_end(files.log) == LogEnd(1600, is_open=True)
        log.write("step 400/1600 · loss 0.1")
        assert log_end(files.log) == LogEnd(1600, is_open=True)
    assert log_end(files.log) == LogEnd(1600, is_open=False), "it was ended by force, and says no advice"
    with closing(LogFile(files.log)) as log:
        log.write("200 iterations · not pinned to cpus")
        log.write("where the time went: data 5%: compute-bound; try more cores")
    assert log_end(files.log) == LogEnd(200, advice="try more cores", is_open=False)


def test_a_log_with_too_many_digits_has_no_length(tmp_path: Path) -> None:
    (tmp_path / "samovar.log").write_text(f"x step 5/{'9' * 5000} \n")
    assert log_end(tmp_path / "samovar.log").total_steps is None


@pytest.mark.parametrize("name", ["config", "metrics", "result", "log", "trace"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    path: Path = getattr(files, name)
    path.unlink()
    os.mkfifo(path)
    said: list[str] = []

    def look() -> None:
        try:
            run = History(files.path).look()
            read_events(files.trace)
            said.append(run.state)
        except InputError as error:
            said.append(str(error))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(30.0)
    assert said, "it waits for a writer"
    assert said == [ENDED] if name == "log" else "not a regular file" in said[0]


def test_a_failed_run_that_is_resumed_has_not_failed(tmp_path: Path) -> None:
    """Its log ends with the old error until the ranks begin."""
    step_lines(tmp_path, 1, 20)
    files = RunFolder(tmp_path)
    with closing(LogFile(files.log)) as log:
        log.write("samovar: error: rank 1 was killed")
    assert History(tmp_path).look().state == FAILED
    with closing(LogFile(files.log)):
        run = History(tmp_path).look()
        assert (run.state, run.told.error) == (OPEN, None)


def test_an_error_of_several_lines_is_told(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    files.result.unlink()
    with closing(LogFile(files.log)) as log:
        log.write("samovar: error: rank 1: CUDA error\nsecond line")
    run = History(files.path).look()
    assert (run.state, run.told.error) == (FAILED, "rank 1: CUDA error")


def test_a_resumed_run_took_the_time_of_all_its_lines(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    write_result(files.result, replace(read_result(files.result), seconds=20 * STEP_S))
    assert History(files.path).look().seconds == pytest.approx(300 * STEP_S)


def test_a_line_of_several_steps_has_the_time_of_all(tmp_path: Path) -> None:
    """A loop that exchanges every 8 steps writes one line for them."""
    with MetricsWriter(RunFolder(tmp_path).metrics) as metrics:
        for step in (1, 9, 17):
            metrics.write(step, "train", {"loss": 1.0, "seconds": 8.0, "forward_s": 6.0, "exchange_s": 2.0})
    assert History(tmp_path).look().step_s == pytest.approx(
        {"data": 0, "forward": 0.75, "backward": 0, "update": 0, "exchange": 0.25}
    )


def test_a_line_of_a_loop_at_a_center_has_the_time_of_all_its_steps(tmp_path: Path) -> None:
    """On a GPU it writes a line a second."""
    with MetricsWriter(RunFolder(tmp_path).metrics) as metrics:
        for step in (1, 101, 201):
            metrics.write(step, "train", {"loss": 1.0, "samples": 6400, "seconds": 1.0, "forward_s": 1.0})
        metrics.write(201, "workers", {"steps": [201, 200], "samples_per_second": [640.0, 640.0]})
    assert sum(History(tmp_path).look().step_s.values()) == pytest.approx(0.01)


def test_a_line_of_workers_that_do_not_wait_has_the_time_of_one_step(tmp_path: Path) -> None:
    """Of worker 0, while the run's steps are those of all."""
    RunFolder(tmp_path).config.write_text('{"strategy": {"name": "async-easgd"}}')
    with MetricsWriter(RunFolder(tmp_path).metrics) as metrics:
        for step in (1, 3, 5):
            metrics.write(step, "train", {"loss": 1.0, "seconds": 0.5, "forward_s": 0.75, "exchange_s": 0.25})
    assert sum(History(tmp_path).look().step_s.values()) == 1.0


def test_a_loop_at_a_center_is_as_fast_as_all_its_workers(tmp_path: Path) -> None:
    """Its lines are those of worker 0."""
    step_lines(tmp_path, 1, 20)
    rates = {"samples_per_second": [700.0, 640.0, 500.0], "is_gone": [False, False, True]}
    with MetricsWriter(RunFolder(tmp_path).metrics, 20) as metrics:
        metrics.write(20, "workers", rates)
    run = History(tmp_path).look()
    assert (run.samples_per_second, run.recent_samples_per_second) == (1340.0, 1340.0)


def test_staleness_is_that_of_all_workers(tmp_path: Path) -> None:
    run = History(run_folder(tmp_path / "run", "async-easgd")).look()
    assert run.staleness == (2, 12, 5, 1)
    run.result = None
    assert run.staleness == (2, 12, 5, 1), "as lines of workers have it while the run trains"


def test_a_folder_that_is_not_a_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not the folder of a run: it has no metrics.jsonl; give a run's folder"):
        History(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 4, "kind": "train", "samples": "many"}',
        '{"step": 4, "kind": "train", "loss": null}',
        '{"step": 4, "kind": "train", "forward_s": 1, "last_rank": [1]}',
        '{"step": 4, "kind": "test", "loss": 1%s}' % ("0" * 400),
        '{"step": 4, "kind": "train", "seconds": "NaN"}',
        '{"step": 4, "kind": "train", "samples": "Infinity"}',
        '{"step": 4, "kind": "workers", "samples_per_second": [[]], "is_gone": [false]}',
        '{"step": 4, "kind": "workers", "steps": 5}',
        '{"step": 4, "kind": "workers", "steps": null}',
        '{"step": 4, "kind": "workers", "steps": [4, 4], "staleness": [[1], [1, 2]]}',
    ],
)
def test_a_value_that_does_not_fit_is_named(tmp_path: Path, line: str) -> None:
    step_lines(tmp_path, 1, 3)
    with RunFolder(tmp_path).metrics.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InputError, match=r"metrics.jsonl:5 is not a line of a run: .*; remove that line"):
        History(tmp_path).look()


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 3)
    with RunFolder(tmp_path).metrics.open("a") as file:
        file.write("no line\n")
    run = History(tmp_path)
    for _ in range(2):  # a page of the run is asked for again and again
        with pytest.raises(InputError, match=r"metrics.jsonl:5 is not JSON"):
            run.look()
    RunFolder(tmp_path).metrics.write_text("")  # its writer begins anew
    step_lines(tmp_path, 1, 3)
    assert list(run.look().steps.step) == [1, 2, 3]
