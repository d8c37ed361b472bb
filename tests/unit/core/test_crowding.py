"""Cores that other programs use, seen with a real busy process; threads that sleep while it runs."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from samovar import _native
from samovar.core import host
from samovar.core.host import Others, PoliteThreads, busy_seconds, family_seconds, taken_cpus
from tests.multiproc.command import wait_until

TASKS = Path("/proc/self/task")


@contextmanager
def busy(cpu: int) -> Iterator[None]:
    """A process that computes on this core; it does when this returns."""
    program = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program, str(cpu)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def test_what_cores_have_computed(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 5000 7 1 2 90 50 0\ncpu10 1 0 0 1 0 0 0 0 0 0\nintr 5\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_seconds([0, 3, 10], stat) == {0: 243 / ticks, 10: 1 / ticks}
    assert busy_seconds([0], tmp_path / "none") == {}


def test_the_core_of_a_busy_program_is_taken() -> None:
    cpu = max(os.sched_getaffinity(0))
    with busy(cpu):
        wait_until(lambda: taken_cpus([cpu]) == (cpu,), "the core is busy")


def test_own_computing_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2 s, 4 cores computed for 4 s, of which 3 s were this process's; then for 6 s, of which 2 s were."""
    wall_s, busy_s, own_s = iter([5.0, 7.0, 9.0]), iter([50.0, 54.0, 60.0]), iter([20.0, 23.0, 25.0])
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: next(wall_s)))
    monkeypatch.setattr(host, "busy_seconds", lambda _cpus: {0: next(busy_s)})
    others = Others(range(4), lambda: next(own_s))
    assert others.cores() == (4 - 3) / 2
    assert others.share() == (6 - 2) / 2 / 4


def test_another_program_that_computes_is_seen() -> None:
    cpu = max(os.sched_getaffinity(0))
    others = Others([cpu])
    with busy(cpu):
        wait_until(lambda: others.cores() > 0.5, "others compute")


def test_what_this_process_has_started_counts_as_its_own() -> None:
    cpu, before_s = max(os.sched_getaffinity(0)), family_seconds()
    with busy(cpu):
        wait_until(lambda: family_seconds() > before_s + 0.2, "it computes")
    assert family_seconds() > before_s + 0.2, "it counts after its end too"


@pytest.mark.parametrize("num_threads", [1, 2])
def test_threads_are_polite_while_others_compute(monkeypatch: pytest.MonkeyPatch, num_threads: int) -> None:
    cores = [0.0, 0.9, 0.9, 0.05, 0.05, 0.05, 0.05, 0.9]
    monkeypatch.setattr(Others, "cores", lambda _self: cores.pop(0))
    monkeypatch.setattr(host, "_LOOK_EVERY_S", 0.0)
    threads = PoliteThreads(num_threads)
    found = [(threads.look(), threads._idle is not None) for _ in range(8)]
    if num_threads == 1:
        assert found == [(False, False)] * 8
    else:
        stays, goes = (False, True), (False, False)
        assert found == [goes, (True, True), stays, stays, stays, stays, goes, (True, True)]


def test_idle_threads_end_with_what_made_them() -> None:
    importlib.import_module("torch")  # loads the library whose threads these are
    before = set(TASKS.iterdir())
    idle = _native.IdleThreads(3)
    wait_until(lambda: len(set(TASKS.iterdir()) - before) >= 4, "threads are there")
    del idle
    wait_until(lambda: set(TASKS.iterdir()) <= before, "threads are gone")
