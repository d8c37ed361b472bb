"""Workers at the native center, which they map: whole operations of it, in the order that the simulator draws.

Whole operations lose nothing at a center without locks either. What happens inside one, beside others, is held by
`native/stress.cpp` and by trials with processes.
"""

import os
from dataclasses import dataclass
from random import Random
from typing import Any

from samovar.box.base import Versions
from samovar.box.board import Member
from samovar.box.mapped import MappedCenter, create_center
from samovar.core.clock import Deadline
from samovar.transports.base import Array, Pending
from samovar.transports.sim.world import SimRun, SimTransport
from tests.sim.centers import SIZE, CenterCase, Ending, Parts, run_center


class VirtualPush:
    """An accumulate at a later moment of the virtual clock."""

    versions: Versions
    work: Pending

    def __init__(self) -> None:
        self.is_awaited = False

    def wait(self, deadline: Deadline) -> None:
        self.work.wait(deadline)
        self.is_awaited = True


_REAL_S = 300.0


class VirtualCenter(MappedCenter):
    """The mapped center, with its thread of pushes replaced by a task of the simulator.

    A whole operation takes no virtual time and waits for nobody. So the native center, which reads the real clock, gets
    a deadline of its own: what is left of a virtual one would depend on how busy this machine is.
    """

    transport: SimTransport
    latest: VirtualPush | None = None

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        self._settle(deadline)
        return super().accumulate(sequence, difference, deadline, momentum)

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        self._settle(deadline)
        return super().exchange(sequence, weights, moving_rate, deadline)

    def write_chunks(self, first_chunk: int, values: Array, _deadline: Deadline) -> None:
        super().write_chunks(first_chunk, values, Deadline.after(_REAL_S))

    def write_velocity_chunks(self, first_chunk: int, values: Array, _deadline: Deadline) -> None:
        super().write_velocity_chunks(first_chunk, values, Deadline.after(_REAL_S))

    def read_chunks(self, first_chunk: int, destination: Array, _deadline: Deadline) -> Versions:
        return super().read_chunks(first_chunk, destination, Deadline.after(_REAL_S))

    def read_velocity_chunks(self, first_chunk: int, destination: Array, _deadline: Deadline) -> Versions:
        return super().read_velocity_chunks(first_chunk, destination, Deadline.after(_REAL_S))

    def accumulate_chunks(
        self, first_chunk: int, sequence: int, difference: Array, _deadline: Deadline, momentum: float = 0.0
    ) -> Versions:
        return super().accumulate_chunks(first_chunk, sequence, difference, Deadline.after(_REAL_S), momentum)

    def exchange_chunks(
        self,
        first_chunk: int,
        sequence: int,
        weights: Array,
        moving_rate: float,
        _deadline: Deadline,
        moved: Array | None = None,
    ) -> Versions:
        real = Deadline.after(_REAL_S)
        return super().exchange_chunks(first_chunk, sequence, weights, moving_rate, real, moved)

    def accumulate_in_background(self, sequence: int, difference: Array, momentum: float = 0.0) -> Any:
        assert self.latest is None or self.latest.is_awaited, "the push before comes first"
        push, accumulate = VirtualPush(), super().accumulate

        def work(deadline: Deadline) -> None:
            self.transport.sleep(1e-6)
            push.versions = accumulate(sequence, difference, deadline, momentum)

        push.work = self.transport.spawn("push to the center", work)
        self.latest = push
        return push

    def _settle(self, deadline: Deadline) -> None:
        if self.latest is not None and not self.latest.is_awaited:
            self.latest.wait(deadline)


@dataclass(frozen=True)
class MappedCenters:
    """Opens the members' centers, each in this process."""

    descriptor: int
    center: type[VirtualCenter] = VirtualCenter

    def __call__(self, transport: SimTransport, _num_elements: int, **_settings: Any) -> VirtualCenter:
        center = self.center(self.descriptor, Member(transport.group.rank, 1))
        center.transport = transport
        return center


def has_locks(case: CenterCase) -> bool:
    """Drawn from the case's seed."""
    return Random(case.seed + 3).random() < 0.5


def run_mapped(case: CenterCase, center: type[VirtualCenter] = VirtualCenter) -> SimRun[Ending]:
    """Raises what is wrong, with a note of the command that repeats it."""
    descriptor = create_center(SIZE, case.world_size, with_locks=has_locks(case), chunk_elements=case.chunk_elements)
    try:
        return run_center(case, Parts(MappedCenters(descriptor, center), kind="mapped"))
    finally:
        os.close(descriptor)
