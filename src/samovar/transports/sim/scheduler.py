"""Tasks that take turns under a virtual clock: a blocking call is a switch, time passes only between events."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeAlias

from samovar.core.clock import Deadline
from samovar.core.modules import Missing

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ModuleNotFoundError as error:
    raise Missing.of("greenlet").as_error() from error

_MAX_LINES_OF_A_REPORT = 20

# When an event happens: virtual seconds, then a random number that decides between events of the same time.
Moment: TypeAlias = tuple[float, float]


class Deadlock(AssertionError):
    """Tasks wait, and nothing is under way that could wake one; the message names each and its wait."""


@dataclass(frozen=True, slots=True)
class VirtualDeadline(Deadline):
    """A moment on a simulated clock. A wait in the simulator heeds no other: it would not be the same twice."""

    now_s: Callable[[], float]

    def remaining_s(self) -> float:
        return max(0.0, self.at_s - self.now_s())

    def passed(self) -> bool:
        return self.now_s() >= self.at_s


def virtual_s(deadline: Deadline) -> float:
    """The moment of a deadline on the simulated clock; never, for one on another clock."""
    return deadline.at_s if isinstance(deadline, VirtualDeadline) else math.inf


class Task:
    """One thread of control of a rank; `blocked_on` is its wait."""

    __slots__ = ("_greenlet", "blocked_on", "deadline_s", "expired", "name", "program", "result", "timer_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.program: Callable[[], Any] = _nothing
        self.result: Any = None
        self.blocked_on: object = None
        self.deadline_s = math.inf
        self.timer_s = math.inf  # when the earliest of its timers goes off
        self.expired = False
        self._greenlet: Any = None

    def start(self, main: Callable[["Task"], None]) -> None:
        self._greenlet = greenlet(main)
        self._greenlet.switch(self)

    def resume(self) -> None:
        self._greenlet.switch()

    def end(self) -> None:
        """Unwind the task if it has begun and not ended; its errors are lost. One that has not begun does nothing."""
        self.program = _nothing
        if self._greenlet is not None and not self._greenlet.dead:
            with suppress(Exception):
                self._greenlet.throw()


class Scheduler:
    """Runs tasks and events in the order of their moments; events of one time in an order drawn from `random`."""

    def __init__(self, random: Random) -> None:
        self.now_s = 0.0
        self._draw = random.random
        self._heap: list[tuple[float, float, int, Callable[[Any], None], Any]] = []
        self._next_number = count().__next__
        self._num_live = 0
        self._hub: Any = None
        self._closing = False
        self._tasks: list[Task] = []

    def moment(self, time_s: float) -> Moment:
        return time_s, self._draw()

    def at(self, moment: Moment, function: Callable[[Any], None], argument: Any) -> None:
        """Call function(argument) at `moment`; among equal moments the first asked for comes first."""
        heappush(self._heap, (moment[0], moment[1], self._next_number(), function, argument))

    def after(self, seconds: float, function: Callable[[Any], None]) -> None:
        """Call function(None) when that much time has passed."""
        heappush(self._heap, (self.now_s + seconds, self._draw(), self._next_number(), function, None))

    def run(self, tasks: Sequence[Task]) -> None:
        """Start all tasks at the time zero and return when all have ended.

        Raises Deadlock, and any error of a task, with a note that names it; the other tasks are then unwound.
        """
        self._hub = getcurrent()
        for task in tasks:
            self.spawn(task)
        try:
            self._run_events()
        finally:
            self._closing = True
            self._heap.clear()
            for task in list(self._tasks):
                task.end()

    def spawn(self, task: Task) -> None:
        """Start one more task, at this moment; `run` returns when it has ended too."""
        self._num_live += 1
        self._tasks.append(task)
        self.at(self.moment(self.now_s), lambda begun: begun.start(self._main), task)

    def cut_off(self, task: Task) -> None:
        """End a task where it is, at this moment."""
        self.at((self.now_s, 0.0), Task.end, task)

    def block(self, task: Task, reason: object, deadline_s: float = math.inf) -> bool:
        """Let others run until `task` is resumed (True) or the virtual clock reaches the deadline (False)."""
        if self._closing:
            raise GreenletExit
        task.blocked_on = reason
        task.deadline_s = deadline_s
        task.expired = False
        if deadline_s < task.timer_s:
            self._set_timer(task)
        self._hub.switch()
        task.blocked_on = None
        return not task.expired

    def wake(self, task: Task) -> None:
        """Continue a blocked task: at once between events, or as the next event if a task runs."""
        if getcurrent() is self._hub:
            task.resume()
        else:
            self.at((self.now_s, 0.0), Task.resume, task)

    def sleep(self, task: Task, seconds: float) -> None:
        """Let virtual time pass for this task."""
        self.at((self.now_s + seconds, self._draw()), Task.resume, task)
        self.block(task, "sleep")

    def poll(self, task: Task, every_s: float, is_over: Callable[[float], bool]) -> None:
        """Let virtual time pass until is_over(now_s), which is asked every `every_s`, without a switch to the task."""

        def ask(_: object) -> None:
            if is_over(self.now_s):
                task.resume()
            else:
                self.after(every_s, ask)

        self.after(every_s, ask)
        self.block(task, "sleep")

    def _main(self, task: Task) -> None:
        try:
            task.result = task.program()
        except Exception as error:
            error.add_note(f"raised by {task.name} at {self.now_s:.9f} s of virtual time")
            raise
        finally:
            task.program = _nothing  # it refers back to the task: memory comes free without a search for such cycles
            self._num_live -= 1
            self._tasks.remove(task)

    def _run_events(self) -> None:
        heap = self._heap
        while self._num_live > 0 and heap:
            self.now_s, _, _, function, argument = heappop(heap)
            function(argument)
        if self._num_live > 0:
            raise Deadlock(self._report([task for task in self._tasks if task.blocked_on is not None]))

    def _report(self, waiting: Sequence[Task]) -> str:
        lines = [f"{task.name} waits for {task.blocked_on}" for task in waiting[:_MAX_LINES_OF_A_REPORT]]
        more = len(waiting) - len(lines)
        lines += [f"and {more} more"] if more > 0 else []
        head = f"deadlock at {self.now_s:.9f} s of virtual time: nothing is under way, and"
        return "\n  ".join([head, *lines])

    def _set_timer(self, task: Task) -> None:
        task.timer_s = task.deadline_s
        self.at(self.moment(max(self.now_s, task.deadline_s)), self._go_off, task)

    def _go_off(self, task: Task) -> None:
        """A timer outlives its wait: so a task has one for all its waits with one deadline, not one a wait."""
        task.timer_s = math.inf
        if task.blocked_on is None or task.deadline_s == math.inf:
            return
        if task.deadline_s <= self.now_s:
            task.expired = True
            task.resume()
        else:
            self._set_timer(task)


def _nothing() -> None:
    """The program of a task that was given none."""
