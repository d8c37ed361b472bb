"""Whether other programs compute on this process's cores."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from samovar import _native

_STAT: Final = Path("/proc/stat")
# Of a line of it: user, nice, system, irq and softirq; a guest's time is in user's already.
_BUSY_FIELDS: Final = (1, 2, 3, 6, 7)
_LOOK_S: Final = 0.1
_LOOK_EVERY_S: Final = 0.5
_CROWDED_CORES, _QUIET_CORES = 0.3, 0.1
_QUIET_LOOKS: Final = 4


def busy_seconds(cpus: Iterable[int], path: Path = _STAT) -> dict[int, float]:
    """What each of these cores has computed since the machine started; nothing where the system does not tell."""
    wanted = {f"cpu{cpu}": cpu for cpu in cpus}
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    found = {wanted[line[0]]: line for line in lines if line and line[0] in wanted}
    return {cpu: sum(int(line[field]) for field in _BUSY_FIELDS) / ticks_a_second for cpu, line in found.items()}


def taken_cpus(cpus: Iterable[int], look_s: float = _LOOK_S) -> tuple[int, ...]:
    """As many of these cores as others compute on, the busiest first; takes `look_s`, in which this process rests."""
    cpus = tuple(cpus)
    before = busy_seconds(cpus)
    time.sleep(look_s)
    busy = {cpu: seconds - before[cpu] for cpu, seconds in busy_seconds(cpus).items() if cpu in before}
    count = round(sum(busy.values()) / look_s)
    return tuple(sorted(busy, key=busy.__getitem__, reverse=True)[:count])


class Others:
    """How many cores' worth other programs compute on `cpus`, between two looks."""

    def __init__(self, cpus: Iterable[int]) -> None:
        self._cpus = tuple(cpus)
        self._before = self._now()

    def cores(self) -> float:
        """Since the last look; 0 where the system does not tell."""
        before, self._before = self._before, self._now()
        wall_s, busy_s, own_s = (now - then for now, then in zip(self._before, before, strict=True))
        return max(0.0, (busy_s - own_s) / wall_s) if wall_s > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), sum(busy_seconds(self._cpus).values()), time.process_time()


class PoliteThreads:
    """Has `num_threads` compute threads sleep while they wait for each other, as long as others use their cores.

    By themselves they spin for milliseconds first: a barrier is quick where each has a core, and where one has not,
    the others spin on the core that it waits for. Beside one busy program on 2 cores LeNet makes a tenth of its steps.
    The sums that each thread makes stay the same.
    """

    def __init__(self, num_threads: int) -> None:
        cpus = os.sched_getaffinity(0)
        self._num_idle = max(1, len(cpus) - num_threads + 2)
        self._others = Others(cpus) if num_threads > 1 else None
        self._look_s = time.monotonic() + _LOOK_EVERY_S
        self._quiet_looks = 0
        self._idle: _native.IdleThreads | None = None

    @property
    def are_polite(self) -> bool:
        """Whether they sleep while they wait."""
        return self._idle is not None

    def look(self) -> bool:
        """Between two steps; whether others have just come, for the first time or again."""
        if self._others is None or time.monotonic() < self._look_s:
            return False
        self._look_s = time.monotonic() + _LOOK_EVERY_S
        cores = self._others.cores()
        if self._idle is None:
            return self._come() if cores > _CROWDED_CORES else False
        self._quiet_looks = self._quiet_looks + 1 if cores < _QUIET_CORES else 0
        if self._quiet_looks == _QUIET_LOOKS:
            self._idle = None
        return False

    def _come(self) -> bool:
        self._idle, self._quiet_looks = _native.IdleThreads(self._num_idle), 0
        return True
