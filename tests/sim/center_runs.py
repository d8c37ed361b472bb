"""Whole runs of strategies whose workers share a center, under faults, with a ledger of all that the center took."""

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from samovar.box.base import Versions
from samovar.box.board import Member
from samovar.box.mapped import create_center
from samovar.collectives.engine import PlannedCollectives
from samovar.collectives.plans import dissemination_barrier
from samovar.core.clock import Deadline
from samovar.core.errors import NotFinite, SamovarError
from samovar.core.layout import all_finite
from samovar.strategies.base import CenterSeat, kind_of
from samovar.strategies.defaults import resolved
from samovar.transports.base import Array
from samovar.transports.sim.world import SimRun, SimTransport, simulate
from tests.sim.harness import repeated_by
from tests.sim.mapped_centers import VirtualCenter
from tests.sim.runs import (
    LIVENESS,
    SIZE,
    SOUND,
    TOLERANCE,
    WAIT_S,
    Ended,
    Job,
    Pace,
    Parts,
    RunCase,
    Snapshots,
    WrongRun,
    built,
    check_errors,
    opened,
    require_ended,
    run_in_step,
    start,
)
from tests.sim.script import Died, RunFaults, Script, acting_window

CHUNK_ELEMENTS = 31
FILLING_S = 10.0  # of virtual time: no fault is as long


def run_strategy(case: RunCase, parts: Parts = SOUND, script: Script | None = None) -> SimRun[Any]:
    """Raises what is wrong, with a note of the command that repeats it."""
    script = script or Script(case.seed, case.only)
    play = run_at_center if kind_of(case.strategy).traits.has_center else run_in_step
    try:
        return play(case, parts, RunFaults.drawn(script, case.limits()))
    except Exception as error:
        error.add_note(f"to repeat: {repeated_by('runs', case)}")
        raise


@dataclass
class Ledger:
    """The center as the rules make it, update by update, and what each worker has given."""

    center: Array = field(default_factory=lambda: np.zeros(SIZE, np.float32))
    velocity: Array = field(default_factory=lambda: np.zeros(SIZE, np.float32))
    num_updates: int = 0
    given: dict[int, np.ndarray] = field(default_factory=dict)  # the sum of a worker's differences
    sequences: Counter[int] = field(default_factory=Counter)  # of a worker's last update
    log: list[tuple[str, int, int]] = field(default_factory=list)

    def took(self, rank: int, kind: str, sequence: int, difference: Array, momentum: float = 0.0) -> None:
        """An update that the center has made."""
        if sequence != self.sequences[rank] + 1:
            raise WrongRun(f"rank {rank}: update {sequence} follows {self.sequences[rank]}")
        self.sequences[rank] = sequence
        self.num_updates += 1
        self.given[rank] = self.given.get(rank, np.zeros(SIZE)) + difference
        self.velocity = np.float32(momentum) * self.velocity + difference if momentum else difference
        self.center = self.center + self.velocity
        self.log.append((kind, rank, sequence))

    def compare(self, found: Array, versions: Versions, what: str) -> None:
        if not all_finite(found):
            raise WrongRun(f"{what}: the center is not finite")
        if np.abs(found - self.center).max() > TOLERANCE * (1.0 + np.abs(self.center).max()):
            raise WrongRun(f"{what}: the center is not the sum of its updates")
        if set(versions.tolist()) != {self.num_updates}:
            raise WrongRun(f"{what}: the center has counted {versions} of {self.num_updates} updates")


class LedgerCenter(VirtualCenter):
    """The native center as one worker sees it: every operation is compared with the ledger.

    The worker may be stopped or die before and after each. Inside one, its process's death changes nothing: that is
    what `native/stress.cpp` is for.
    """

    ledger: Ledger
    faults: RunFaults

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        self._act()
        return super().read(destination, deadline)

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        self._act()
        versions = super().accumulate(sequence, difference, deadline, momentum)
        self._act()
        return versions

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        self._act()
        versions = super().exchange(sequence, weights, moving_rate, deadline)
        self._act()
        return versions

    def write_chunks(self, first_chunk: int, values: Array, deadline: Deadline) -> None:
        super().write_chunks(first_chunk, values, deadline)
        self.ledger.center = values.copy()

    def read_chunks(self, first_chunk: int, destination: Array, deadline: Deadline) -> Versions:
        versions = super().read_chunks(first_chunk, destination, deadline)
        self.ledger.compare(destination, versions, f"rank {self._rank} reads")
        return versions

    def accumulate_chunks(
        self, first_chunk: int, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0
    ) -> Versions:
        difference = difference.copy()
        versions = super().accumulate_chunks(first_chunk, sequence, difference, deadline, momentum)
        self.ledger.took(self._rank, "accumulate", sequence, difference, momentum)
        self._look(deadline)
        return versions

    def exchange_chunks(
        self,
        first_chunk: int,
        sequence: int,
        weights: Array,
        moving_rate: float,
        deadline: Deadline,
        moved: Array | None = None,
    ) -> Versions:
        before = weights.copy()
        versions = super().exchange_chunks(first_chunk, sequence, weights, moving_rate, deadline, moved)
        difference = np.float32(moving_rate) * (before - self.ledger.center)
        if np.abs(before - difference - weights).max() > TOLERANCE * (1.0 + np.abs(before).max()):
            raise WrongRun(f"rank {self._rank}: an exchange took another difference from its weights")
        self.ledger.took(self._rank, "exchange", sequence, difference)
        self._look(deadline)
        return versions

    def _look(self, deadline: Deadline) -> None:
        found = np.empty(SIZE, np.float32)
        self.ledger.compare(found, super().read_chunks(0, found, deadline), f"after rank {self._rank}'s update")

    def _act(self) -> None:
        if stopped_s := self.faults.act(self._rank):
            self.transport.sleep(stopped_s)

    @property
    def _rank(self) -> int:
        assert self.member is not None
        return self.member.index


@dataclass
class Shared(Ended):
    """How a worker at a center ended: its weights, its own steps' sum, and what its strategy counted."""

    weights: Array | None = None
    moved: Array | None = None
    strategy: Any = None


def run_at_center(case: RunCase, parts: Parts, faults: RunFaults) -> SimRun[Shared]:
    settings, ledger = resolved(case.settings, case.world_size), Ledger()
    traits = settings.traits
    made: dict[str, Any] = {
        "with_velocity": traits.has_velocity,
        "with_locks": traits.has_locks,
        "chunk_elements": CHUNK_ELEMENTS,
    }
    descriptor = create_center(SIZE, case.world_size, **made)
    job = Job(case, case.settings, parts, faults, Snapshots(case.world_size, set()))
    held_s = faults.held_s if faults.cuts or faults.late else None
    try:
        begun: set[int] = set()
        window = acting_window(lambda rank: faults.act(rank) if rank in begun else 0.0, parts.window)
        config = replace(case.config(), held_s=held_s)
        run = simulate(partial(work, job, ledger, descriptor, begun), case.world_size, config, window)
    finally:
        os.close(descriptor)
    check_ledger(case, ledger, run.results, faults)
    order = hashlib.sha256(repr((run.event_hash, ledger.log)).encode()).hexdigest()
    return replace(run, event_hash=order)


def work(job: Job, ledger: Ledger, descriptor: int, begun: set[int], transport: SimTransport) -> Shared:
    """One worker. Its own death, and errors that it may end with, are how it ended."""
    ended = Shared()
    center = (job.parts.center or LedgerCenter)(descriptor, Member(transport.group.rank, 1))
    center.transport, center.ledger, center.faults = transport, ledger, RunFaults()
    try:
        train(job, center, begun, transport, ended)
    except (Died, SamovarError) as error:
        ended.error = error
        transport.die()
    return ended


def train(job: Job, center: LedgerCenter, begun: set[int], transport: SimTransport, ended: Shared) -> None:
    rank, case = transport.group.rank, job.case
    weights, gradients = opened(transport)
    seat: Any = CenterSeat(center, rank == 0)
    strategy = ended.strategy = built(job, transport, weights, gradients, seat)
    barrier = dissemination_barrier(rank, case.world_size)
    everybody = PlannedCollectives(transport, lambda _num_bytes: "tree").planned("begun", barrier, weights.part(0, 0))
    everybody.run(transport.deadline(FILLING_S))  # none begins before the center is filled
    center.faults = job.faults
    begun.add(rank)
    pace = Pace(job, transport, weights, gradients)
    ended.weights, ended.moved = weights.array, pace.moved
    for step in range(case.num_steps):
        pace.take_step(strategy, step)
        if strategy.is_lost:
            raise NotFinite(f"rank {rank} had weights that are not finite too often in a row")
    strategy.drain()


def check_ledger(case: RunCase, ledger: Ledger, workers: list[Shared], faults: RunFaults) -> None:
    """Whoever lives trains on, whatever became of others, and what it gave is what it lost, or learned."""
    check_errors(case, list(workers))
    if case.mode == LIVENESS or case.is_alone:
        late = {rank for (rank, _), stopped_s in faults.stops.items() if stopped_s >= WAIT_S}  # for their own limits
        living = [ended for rank, ended in enumerate(workers) if rank not in late]
        require_ended([ended for ended in living if not isinstance(ended.error, Died | NotFinite)])
    group_size = workers[0].strategy.group_size
    for rank, ended in enumerate(workers):
        leader = rank - rank % group_size
        if ended.error is None and workers[leader].error is None:
            _check_worker(case, ledger.given.get(leader, np.zeros(SIZE)), rank, ended)


def _check_worker(case: RunCase, given: np.ndarray, rank: int, ended: Shared) -> None:
    strategy, num_updates = ended.strategy, sum(ended.strategy.staleness.histogram.values())
    if num_updates > strategy.num_updates:
        raise WrongRun(f"rank {rank} noted {num_updates} updates and made {strategy.num_updates}")
    if strategy.num_refused or getattr(strategy, "num_set_aside", 0):
        return  # of which some steps are lost on purpose
    assert ended.weights is not None
    assert ended.moved is not None
    kept = np.zeros(SIZE) if strategy.traits.adds_steps else ended.weights - start()
    settings = case.settings
    pulled = given * (settings.worker_rate / settings.moving_rate) if settings.worker_rate else given
    off = ended.moved - pulled - kept
    if np.abs(off).max() > TOLERANCE * (10.0 + np.abs(given).max()):
        raise WrongRun(f"rank {rank}: its weights and what it gave are off by {np.abs(off).max()}")
