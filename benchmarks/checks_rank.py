"""One rank of two that share gradients, with and without the checks and figures of its replica, on request.

    checks_rank.py JOB

JOB is JSON: the net, a folder for the figures, this rank's place, and the ranks' segment. It serves `checked` and
`bare` (see `turns.py`). At the end it answers with a digest of the weights, and the numbers of checked steps and of
their lines in metrics.jsonl. It adds the seconds that checks and figures of a step take by themselves.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch_sync_rank import TASKS, TIMEOUT_S, Batch, cycle, loss_of, optimizer_of
from turns import answer, open_barrier, serve

from samovar import _native
from samovar.api.figures_wanted import FiguresWanted
from samovar.api.process_group import ProcessGroup
from samovar.api.replica import Replica
from samovar.collectives.engine import PlannedCollectives
from samovar.core.group import Group
from samovar.core.host import keep_freed_memory
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.frontends.torch.parameters import digest_of
from samovar.report.metrics import read_metrics
from samovar.report.sinks import MetricsChoice
from samovar.strategies.config import StrategyConfig
from samovar.transports.shm import ShmTransport

NUM_CALLS, NUM_TIMES = 80, 15


class Nothing:
    """Takes the place of checks and figures, and does nothing."""

    def run_backward(self, rest: BackwardPass) -> None:
        rest.run()

    def updating(self, apply: Callable[[], Any]) -> Callable[[], Any]:
        return apply

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_given, **_named: None


class Checked:
    """A user's loop, whose replica checks and reports."""

    def __init__(self, job: dict[str, Any], team: ProcessGroup, begin: Callable[[], None]) -> None:
        task = TASKS[job["net"]]
        torch.manual_seed(1)
        self.net = task.net()
        torch.manual_seed(2 + team.group.rank)
        self.batches: Iterator[Batch] = cycle([task.batch() for _ in range(4)])
        self.optimizer = optimizer_of(self.net)
        wanted = FiguresWanted(MetricsChoice(Path(job["folder"])))
        self.replica = Replica(self.net, self.optimizer, team, StrategyConfig(), TIMEOUT_S, wanted=wanted)
        self.begin = self.drain = begin
        self.num_steps = 0

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.replica.backward(loss_of(self.net, next(self.batches)))
        self.replica.step()
        self.num_steps += 1


class Bare:
    """The same loop; between `begin` and `drain` its replica neither checks nor reports."""

    def __init__(self, checked: Checked, barrier: Callable[[], None]) -> None:
        self._loop, self._barrier = checked, barrier
        replica = checked.replica
        self._parts = {name: getattr(replica, name) for name in ("_checks", "_order", "_figures")}

    def begin(self) -> None:
        replica = self._loop.replica
        replica.barrier()  # with it the last step's figures come
        replica._announcer.uneven.forget(replica._announcer.number)
        replica._optimizers.release()
        for name in self._parts:
            setattr(replica, name, Nothing())
        replica._require_training = _nothing  # type: ignore[method-assign, assignment]
        replica._optimizers.require_same_parameters = _nothing  # type: ignore[method-assign]
        self._barrier()

    def step(self) -> None:
        self._loop.step()
        self._loop.num_steps -= 1

    def drain(self) -> None:
        self._barrier()
        replica = self._loop.replica
        for name, part in self._parts.items():
            setattr(replica, name, part)
        del replica._require_training, replica._optimizers.require_same_parameters
        replica._optimizers.guard(replica._model)
        replica._announcer.listen(replica._figures.hear)
        replica._figures.skip()


def _nothing(*_given: object) -> None:
    """In place of a check."""


def checking_s(loop: Checked) -> float:
    """The work of rank 0 for a step: what is checked, and its figures and those that it hears of."""
    replica, loss = loop.replica, torch.ones(())
    order, figures, checks, optimizers = replica._order, replica._figures, replica._checks, replica._optimizers
    rows = np.array([[1.0, 0.0, 1.0, 2.0], [1.0, 0.0, 1.0, 2.001]])
    seconds, numbers = [], count(10_000)
    for _ in range(NUM_TIMES):
        started_s = time.process_time()
        for step in islice(numbers, NUM_CALLS):
            replica._require_training("backward()")
            optimizers.require_same_parameters()
            figures.run_backward(BackwardPass(loss, around=(_nothing,)))
            figures.hear(rows)
            order.backward(more=False)
            figures.passed(loss)
            order.step()
            figures.updating(_nothing)()
            figures.stepped(step)
            checks.stepped(step, figures)
        seconds.append((time.process_time() - started_s) / NUM_CALLS)
    return median(seconds)


def main() -> None:
    job = json.loads(sys.argv[1])
    _native.die_with_parent()
    os.sched_setaffinity(0, {job["cpu"]})
    torch.set_num_threads(1)
    keep_freed_memory(large_too=False)  # as `samovar.replicate` does
    transport = ShmTransport(job["segment"], Group(job["rank"], job["world_size"]), oversubscribed=False)
    team = ProcessGroup(PlannedCollectives(transport, lambda _num_bytes: "direct"), TIMEOUT_S)
    barrier = open_barrier(transport)
    checked = Checked(job, team, barrier)
    answer("ready")
    serve({"checked": checked, "bare": Bare(checked, barrier)})
    digest = digest_of(dict(checked.net.named_parameters()))
    checked.replica.barrier()  # with it the last step's figures come
    num_lines = len(read_metrics(Path(job["folder"], "metrics.jsonl"))) if job["rank"] == 0 else 0
    answer(
        {
            "digest": digest,
            "num_checked": checked.num_steps,
            "num_lines": num_lines,
            "checking_s": checking_s(checked),
        }
    )
    checked.replica.close()


if __name__ == "__main__":
    main()
