"""Independent computations on all cores of this machine, in forks of this process."""

import json
import multiprocessing
import os
import signal
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from samovar import _native
from samovar.core.host import num_available_cpus

Task = Callable[[], Any]

_INDEX: Final = struct.Struct("=i")
_MOST_TASKS = 65_536 // _INDEX.size  # a pipe holds them all before anyone reads


def on_all_cores(tasks: Sequence[Task], tell: Callable[[Any], None] = lambda _answer: None) -> list[Any]:
    """The answers of `tasks` in their order, each a plain value as JSON has it. The longest tasks come first.

    `tell` gets each answer as it comes; if it raises an error, no other task begins.

    A task has this process's memory as it is now, but not its threads: it must not compute with torch. If no process
    answers a task, it is computed here, where its error is raised. The processes end before this returns, and with
    this process if it is killed.

    Cost: a fork for each core, about 20 ms if torch is loaded.
    """
    num_processes = min(num_available_cpus(), len(tasks))
    answers = _asked(tasks, num_processes, tell) if num_processes > 1 and len(tasks) <= _MOST_TASKS else {}
    for index, task in enumerate(tasks):
        if index not in answers:
            answers[index] = task()
            tell(answers[index])
    return [answers[index] for index in range(len(tasks))]


def _asked(tasks: Sequence[Task], num_processes: int, tell: Callable[[Any], None]) -> dict[int, Any]:
    answers: dict[int, Any] = {}
    with ExitStack() as stack:
        queue = _queue(len(tasks))
        stack.callback(os.close, queue)
        left = [stack.enter_context(_process(queue, tasks)) for _ in range(num_processes)]
        while left:
            for each in wait(left):
                assert isinstance(each, Connection)
                try:
                    index, answer = json.loads(each.recv_bytes())
                except EOFError:
                    left.remove(each)
                    continue
                answers[index] = answer
                tell(answer)
    return answers


def _queue(num_tasks: int) -> int:
    """A pipe with the number of each task: the process that reads one takes that task."""
    queue, numbers = os.pipe()
    os.write(numbers, b"".join(map(_INDEX.pack, range(num_tasks))))
    os.close(numbers)
    return queue


@contextmanager
def _process(queue: int, tasks: Sequence[Task]) -> Iterator[Connection]:
    """A new process, and the pipe from which its answers are read."""
    answers, to_answer = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(queue, tasks, to_answer, os.getpid()), daemon=True
    )
    with answers:
        with to_answer, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which no task needs
            process.start()
        try:
            yield answers
        finally:
            process.kill()
            process.join()


def _work(queue: int, tasks: Sequence[Task], answers: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this
    _native.die_with_parent()
    # An error is raised where the task is computed again.
    with suppress(Exception):
        while os.getppid() == parent and (number := os.read(queue, _INDEX.size)):
            (index,) = _INDEX.unpack(number)
            answers.send_bytes(json.dumps([index, tasks[index]()]).encode())
