"""A job whose processes behave like workers of a described cluster (`samovar run --emulate`)."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import TypeVar

from samovar.api.figures_wanted import warn
from samovar.box.base import SeatCenter
from samovar.box.emulated import EmulatedCenter
from samovar.collectives.cost import chosen_between, require_messages
from samovar.collectives.engine import PlannedCollectives
from samovar.core.errors import InputError
from samovar.core.group import Host
from samovar.core.layout import Bucket
from samovar.core.machine import NOMINAL, DescribedStep, Emulation, MachineModel
from samovar.core.plain import from_plain
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.strategies.traits import AUTO
from samovar.transports.base import Transport
from samovar.transports.emulated import EmulatedTransport, sleep_until
from samovar.transports.shm import ShmTransport

_SWITCH_S = 2e-4  # after which a thread that computes in Python lets another run
_LATE = 1.05  # of the described step
_MANY_ARE_LATE = 0.1
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Emulated:
    """The emulation as replicas see it: the pace of computation, and centers behind the described network."""

    emulation: Emulation
    transport: EmulatedTransport

    def center(self, inner: SeatCenter) -> EmulatedCenter:
        return EmulatedCenter(inner, self.transport, self.emulation)

    def pace(self, num_parameters: int) -> "ComputePace | None":
        """None if steps take the time that they take here. Raises InputError if the profile is of another net."""
        step = self.emulation.step
        if step is None:
            return None
        if step.num_parameters != num_parameters:
            raise InputError(
                f"--profile: its net has {step.num_parameters:,} parameters, and this model trains {num_parameters:,}; "
                "make a profile of this loop by replica.profile(FILE)"
            )
        return ComputePace(step, self.emulation.machine, self.transport.group.rank, self.emulation.wake_up_s)


class ComputePace:
    """Lets a step's parts end when they would on the described worker: sleeps where this machine is faster.

    The moments count from the step's begin. So a part that takes longer here is made up for by the next ones.
    """

    def __init__(self, step: DescribedStep, machine: MachineModel, rank: int, wake_up_s: float) -> None:
        self._step, self._rank, self._wake_up_s = step, rank, wake_up_s
        self._factor = machine.compute_s(rank, 1.0)
        self._random = Random(rank)
        self._layers = [*zip(accumulate(step.sizes), accumulate(step.backward_s), strict=True)]
        self._num_steps = self._num_late = self._num_final = 0
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self._begun_s, self._num_final = time.monotonic(), 0
        self._longer = self._factor * (1.0 + self._step.jitter * self._random.random())

    def paced(self, backward: BackwardPass) -> BackwardPass:
        """The pass, which ends when it would; the forward pass has."""
        self._sleep(self._step.forward_s)
        return replace(backward.inside(self._run), before_final=self._bucket_done)

    def updating(self, apply: Callable[[], _Made]) -> _Made:
        """Make the update, in the time that it would take."""
        begun_s = time.monotonic()
        made = apply()
        sleep_until(begun_s + self._factor * self._step.update_s, self._wake_up_s)
        return made

    def _bucket_done(self, bucket: Bucket) -> None:
        """The gradients of a bucket are complete: sleep until its last layer's would be."""
        self._num_final += sum(entry.spec.size for entry in bucket.entries)
        reached = (seconds for size, seconds in self._layers if size >= self._num_final)
        self._sleep(self._step.forward_s + next(reached, self._layers[-1][1]))

    def _run(self, rest: BackwardPass) -> None:
        rest.run()
        described_s = self._step.seconds - self._step.update_s
        self._num_steps += 1
        self._num_late += time.monotonic() - self._begun_s > _LATE * self._longer * described_s
        self._sleep(described_s)

    def tell(self) -> None:
        """Say so if many steps were slower here than described."""
        if self._num_late > _MANY_ARE_LATE * self._num_steps:
            warn(
                f"rank {self._rank}: {self._num_late} of {self._num_steps} steps computed longer "
                f"than the {1e3 * self._longer * self._step.seconds:.0f} ms that are described; give fewer workers, or "
                "describe slower ones"
            )

    def _sleep(self, seconds: float) -> None:
        sleep_until(self._begun_s + self._longer * seconds, self._wake_up_s)


def connected_emulated(
    text: str, local: Transport, collective: str, closing: ExitStack
) -> tuple[PlannedCollectives, tuple[Host, ...], Emulated]:
    """Our own plans over windows of this host with the delays of the cluster in `text`, and the cluster's hosts."""
    assert isinstance(local, ShmTransport), local
    emulation = from_plain(Emulation, json.loads(text))
    sys.setswitchinterval(_SWITCH_S)
    transport = EmulatedTransport(local, emulation.machine, emulation.server_hosts, emulation.wake_up_s)
    closing.callback(transport.close)
    world_size = local.group.world_size
    hosts = _hosts(emulation.machine, world_size)
    sizes = tuple(len(host.ranks) for host in hosts)
    if len(hosts) > 1:
        require_messages(collective)
    best = chosen_between(NOMINAL, sizes, world_size) if len(hosts) > 1 else lambda _num_bytes: "direct"
    plans = PlannedCollectives(transport, best if collective == AUTO else lambda _num_bytes: collective, sizes)
    return plans, hosts, Emulated(emulation, transport)


def _hosts(machine: MachineModel, world_size: int) -> tuple[Host, ...]:
    numbers: dict[int, list[int]] = {}
    for rank in range(world_size):
        numbers.setdefault(machine.host(rank), []).append(rank)
    return tuple(Host(f"node {number}", tuple(ranks)) for number, ranks in numbers.items())
