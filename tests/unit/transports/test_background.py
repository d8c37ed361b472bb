"""The thread between hosts: order, errors, and an end."""

import threading
from functools import partial

import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed, SamovarError
from samovar.transports.background import Background, Job, note_phase

TIMEOUT_S = 60.0


def test_jobs_run_in_their_order_on_one_thread() -> None:
    background = Background("test")
    ran: list[tuple[int, int]] = []
    jobs = [Job(f"job {n}", partial(lambda n, _job: ran.append((n, threading.get_ident())), n)) for n in range(20)]
    for job in jobs:
        background.submit(job)
    for job in reversed(jobs):
        job.wait(Deadline.after(TIMEOUT_S))
    background.close()
    assert [n for n, _ in ran] == list(range(20))
    assert len({thread for _, thread in ran}) == 1
    assert ran[0][1] != threading.get_ident()


def test_an_error_comes_where_it_is_waited_for_and_ends_what_follows() -> None:
    background = Background("test")
    ran = []

    def fail(_job: Job) -> None:
        raise RankFailed("rank 2 is gone")

    failing = background.submit(Job("first", fail))
    following = background.submit(Job("second", lambda _job: ran.append(2)))
    for job in (failing, following):
        with pytest.raises(RankFailed, match="rank 2 is gone"):
            job.wait(Deadline.after(TIMEOUT_S))
    background.close()
    assert ran == []


def test_of_independent_jobs_each_fails_for_itself() -> None:
    background = Background("test", independent=True)
    ran = []

    def fail(_job: Job) -> None:
        raise RankFailed("rank 2 is gone")

    failing = background.submit(Job("first", fail))
    following = background.submit(Job("second", lambda _job: ran.append(2)))
    following.wait(Deadline.after(TIMEOUT_S))
    assert ran == [2]
    with pytest.raises(RankFailed, match="rank 2 is gone"):
        failing.wait(Deadline.after(TIMEOUT_S))
    background.close()


def test_a_wait_that_ends_too_early_says_what_for() -> None:
    background = Background("test")
    begun, may_end = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        job.phase = "waits for host b (ranks 2, 3)"
        begun.set()
        may_end.wait(TIMEOUT_S)

    job = background.submit(Job("rank 0 on a: all-reduce 'bucket 0'", work))
    assert begun.wait(TIMEOUT_S)
    with pytest.raises(
        DeadlineExceeded, match=r"rank 0 on a: all-reduce 'bucket 0': not done .* host b \(ranks 2, 3\)"
    ):
        job.wait(Deadline.after(0.0))
    may_end.set()
    job.wait(Deadline.after(TIMEOUT_S))
    background.close()


def test_several_threads_take_jobs_in_their_order_and_who_waits_hears_of_the_first() -> None:
    background = Background("several", most_threads=2)
    begun: list[int] = []
    both, may_end = threading.Barrier(3), threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        note_phase(f"waits for rank {number}")
        if number < 2:
            both.wait(TIMEOUT_S)
            may_end.wait(TIMEOUT_S)

    jobs = [background.submit(Job(f"job {n}", partial(lambda n, _job: work(n), n))) for n in range(4)]
    both.wait(TIMEOUT_S)
    assert sorted(begun) == [0, 1]
    with pytest.raises(
        DeadlineExceeded, match=r"job 1: not done within .*: it waits for job 0, which waits for rank 0"
    ):
        jobs[1].wait(Deadline.after(0.0))
    with pytest.raises(
        DeadlineExceeded, match=r"job 3: not done within .*: it waits for job 0, which waits for rank 0"
    ):
        jobs[3].wait(Deadline.after(0.0))
    may_end.set()
    for job in jobs:
        job.wait(Deadline.after(TIMEOUT_S))
    background.close()
    assert sorted(begun) == [0, 1, 2, 3]
    note_phase("waits for nothing, outside of any job")


def test_nothing_is_begun_after_the_close() -> None:
    background = Background("test")
    background.close()
    background.close()
    with pytest.raises(SamovarError, match="closed"):
        background.submit(Job("late", lambda _job: None))
