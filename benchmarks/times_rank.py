"""One worker that makes steps with and without measuring them, on request, and the time of measuring by itself.

    times_rank.py JOB

JOB is JSON: the net's folder, a cpu, the shape of a batch. It serves `laps` and `bare` (see `turns.py`). At the end it
answers with the number of laps of a step, and the seconds that these and their report take.
"""

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from nets_rank import Ours, task_of
from turns import answer, serve

from samovar import _native
from samovar.core.host import keep_freed_memory
from samovar.report.steps import Advice, Arrival, Laps, StepTimes, StragglerWatch, TimeSpent, last_to_arrive
from samovar.training.step import Worker

NUM_CALLS, NUM_TIMES = 2000, 15


class NoLaps(Laps):
    """Takes no time."""

    def start(self) -> None:
        """Nothing."""

    def lap(self, kind: str) -> None:
        """Nothing."""

    def times(self) -> StepTimes:
        return StepTimes()


class RecordedLaps(Laps):
    """Which laps there are in a step."""

    def start(self) -> None:
        super().start()
        self.kinds: list[str] = []

    def lap(self, kind: str) -> None:
        self.kinds.append(kind)
        super().lap(kind)


class Measured:
    """The worker of `ours` with these laps."""

    def __init__(self, ours: Ours, laps: Laps) -> None:
        self._worker: Worker = ours.worker_with(laps)
        self._step = 0

    def begin(self) -> None:
        """Nobody to wait for."""

    def step(self) -> None:
        self._worker.step(self._step)
        self._step += 1

    def drain(self) -> None:
        """Nothing is left under way."""


def measuring_s(kinds: list[str]) -> float:
    """The work of rank 0 of two to measure a step: its laps, and the search for late ranks."""
    laps, spent, stragglers = Laps(), TimeSpent(Advice("", "larger batches", "")), StragglerWatch()
    waits_s = np.array([0.001, 0.002])
    seconds = []
    for _ in range(NUM_TIMES):
        started_s = time.process_time()
        for _ in range(NUM_CALLS):
            laps.start()
            for kind in kinds:
                laps.lap(kind)
            times = laps.times()
            rank, late_s = last_to_arrive(waits_s)
            arrival = Arrival(rank or 0, late_s, 1.0)
            spent.add(times, arrival)
            stragglers.take(arrival)
        seconds.append((time.process_time() - started_s) / NUM_CALLS)
    return median(seconds)


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    os.sched_setaffinity(0, {job["cpu"]})
    torch.set_num_threads(1)
    keep_freed_memory(large_too=True)  # as every rank of a run does
    ours = Ours(task_of(Path(job["folder"]), job["batch"], job["channels"], job["size"]), "fp32")
    recorded = RecordedLaps()
    Measured(ours, recorded).step()
    answer("ready")
    serve({"laps": Measured(ours, Laps()), "bare": Measured(ours, NoLaps())})
    answer({"num_laps": len(recorded.kinds), "measuring_s": measuring_s(recorded.kinds)})


if __name__ == "__main__":
    main()
