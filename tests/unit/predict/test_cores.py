"""Tasks on all cores have the answers that they have one after the other, and leave no process behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import psutil
import pytest

from samovar.core.errors import InputError
from samovar.predict import prediction
from samovar.predict.cluster import Cluster, NetworkSpec
from samovar.predict.cores import on_all_cores
from samovar.predict.prediction import Question, predicted
from samovar.report.profile import LayerProfile, Profile
from samovar.strategies.catalog import STRATEGIES

_NUM_TASKS = 9
_TIMEOUT_S = 200


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})


def test_answers_keep_the_order_of_their_tasks() -> None:
    def task(index: int) -> list[object]:
        return [index, 0.1 * index, "Ä", os.getpid()]

    answers = on_all_cores([partial(task, index) for index in range(_NUM_TASKS)])
    assert [answer[:3] for answer in answers] == [task(index)[:3] for index in range(_NUM_TASKS)]
    assert os.getpid() not in {answer[3] for answer in answers}


def test_an_error_is_raised_as_if_the_task_ran_here() -> None:
    def fails() -> None:
        raise LookupError("what it says")

    with pytest.raises(LookupError, match="what it says"):
        on_all_cores([lambda: 1, fails, lambda: 3])


def test_answers_are_told_as_they_come_until_that_is_an_error() -> None:
    told: list[int] = []
    assert on_all_cores([partial(int, index) for index in range(_NUM_TASKS)], told.append) == list(range(_NUM_TASKS))
    assert sorted(told) == list(range(_NUM_TASKS))

    def stops(answer: int) -> None:
        raise LookupError(f"enough after {answer}")

    with pytest.raises(LookupError, match="enough after"):
        on_all_cores([partial(int, index) for index in range(_NUM_TASKS)], stops)


def test_a_task_whose_process_is_killed_is_computed_here() -> None:
    here = os.getpid()

    def killed(index: int) -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    assert on_all_cores([partial(killed, index) for index in range(_NUM_TASKS)]) == list(range(_NUM_TASKS))


_WAITS = """
import os, signal
from functools import partial
from samovar.predict import cores
os.sched_getaffinity = lambda _process: {0, 1}
def wait():
    os.write(1, f"{os.getpid()}\\n".encode())
    signal.pause()
cores.on_all_cores([wait, wait])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_this_one(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        processes = [psutil.Process(int(program.stdout.readline())) for _ in range(2)]
        program.send_signal(number)
        assert program.wait(_TIMEOUT_S) != 0
        assert not psutil.wait_procs(processes, _TIMEOUT_S)[1]


def test_a_prediction_on_all_cores_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = tuple(LayerProfile(f"fc{index}", "InnerProduct", 1_000_000, 0, 0, 0.01, 0.02) for index in range(4))
    cluster = Cluster("flat", network=NetworkSpec(1e9, 1e-4))
    question = Question(Profile("net", 10, layers), cluster, (1, 2, 4), tuple(STRATEGIES), 10)
    told: list[tuple[str, int]] = []
    one_core = predicted(question, lambda *what: told.append(what))
    assert sorted(told) == sorted((row.strategy, row.workers) for row in one_core)
    spread: list[int] = []

    def counted(tasks: list[Callable[[], object]]) -> list[object]:
        spread.append(len(tasks))
        return on_all_cores(tasks)

    monkeypatch.setattr(prediction, "_LONG_FROM_WORKERS", 0)
    monkeypatch.setattr(prediction, "on_all_cores", counted)
    assert predicted(question) == one_core
    assert spread[0] >= len(question.workers)
    again = replace(question, workers=(2,), strategies=("sync",))
    assert predicted(again) == [row for row in one_core if (row.strategy, row.workers) == ("sync", 2)]


def test_a_batch_too_small_is_refused_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_tasks: object) -> list[object]:
        raise AssertionError("simulated")

    monkeypatch.setattr(prediction, "on_all_cores", never)
    profile = Profile("net", 10, (LayerProfile("fc", "InnerProduct", 1_000, 0, 0, 0.01, 0.02),))
    question = Question(profile, Cluster("flat", network=NetworkSpec(1e9, 1e-4)), (1, 512), ("sync",), 10, True)
    with pytest.raises(InputError, match="less than a sample each"):
        predicted(question)
