"""Runs a program on every rank of a simulated machine; each rank gets a `SimTransport`."""

import gc
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.core.group import Group
from samovar.core.machine import MachineModel
from samovar.transports.base import Array, Pending, Window
from samovar.transports.sim.network import Fabric, HeldSeconds, Lane, Network, PortUse, SimMessage
from samovar.transports.sim.races import RaceFinder
from samovar.transports.sim.scheduler import Scheduler, Task, VirtualDeadline, virtual_s
from samovar.transports.sim.window import SimPort, SimWindow, address_of

_Result = TypeVar("_Result")
_ALIGNMENT_BYTES = 64
_MANY_OBJECTS = 50_000


@dataclass(frozen=True, slots=True)
class SimConfig:
    """How to simulate.

    `seed` decides between events of the same time and draws each message's delay, up to `max_delay_s`. `check` finds
    races. Windows of more than `counted_above_bytes` count their bytes and hold none (0: every window). An array of
    float32 or uint8 counts `magnification` times its bytes: a small net then takes the time of a large one.
    `server_hosts` are the hosts of places behind all ranks, which `SimTransport.request` reaches. `is_logged` makes the
    event hash. `held_s` says how long a message is held up, for the faults of a network.
    """

    seed: int = 0
    machine: MachineModel = field(default_factory=MachineModel)
    max_delay_s: float = 0.0
    check: bool = True
    counted_above_bytes: float = math.inf
    magnification: float = 1.0
    server_hosts: tuple[int, ...] = ()
    is_logged: bool = True
    held_s: HeldSeconds | None = None


@dataclass(frozen=True, slots=True)
class SimRun(Generic[_Result]):
    """The outcome: each rank's result, the virtual time of the last rank's end, and the traffic of the network.

    `event_hash` is the same for the same program, world size and config.
    """

    results: list[_Result]
    seconds: float
    num_messages: int
    bytes_sent: tuple[int, ...]
    event_hash: str


class Windows:
    """All windows in the order of their opening; those above `counted_above_bytes` hold no data."""

    def __init__(self, ports: Sequence[SimPort], counted_above_bytes: float, window_type: type[SimWindow]) -> None:
        self._ports = ports
        self._counted_above_bytes = counted_above_bytes
        self._window_type = window_type
        self._opened: list[list[SimWindow]] = []
        self._groups: dict[Hashable, Windows] = {}

    def among(self, group: Hashable, ranks: Sequence[int]) -> "Windows":
        """Those of a group of ranks, the same for all that give this name of it."""
        ports = [self._ports[rank] for rank in ranks]
        made = self._groups.setdefault(group, Windows(ports, self._counted_above_bytes, self._window_type))
        assert made._ports == ports, "one name for two groups"
        return made

    def open(self, index: int, name: str, num_bytes: int, num_slots: int) -> list[SimWindow]:
        """The parts of the window of this index; the first rank's call makes those of all, as in a shared segment."""
        if index == len(self._opened):
            self._opened.append(self._make(index, name, num_bytes, num_slots))
        return self._opened[index]

    def end(self) -> None:
        """Forget what refers back here, at the end of all: memory comes free without a search for such cycles."""
        for parts in self._opened:
            for part in parts:
                part.heed = None
            parts.clear()
        for port in self._ports:
            port.windows.clear()
        for group in self._groups.values():
            group.end()

    def _make(self, index: int, name: str, num_bytes: int, num_slots: int) -> list[SimWindow]:
        is_real = num_bytes <= self._counted_above_bytes
        memory = _zeros(0 if is_real else num_bytes)
        parts: list[SimWindow] = []
        for port in self._ports:
            local = _zeros(num_bytes) if is_real else memory
            parts.append(self._window_type(name, index, port, local, num_slots, is_real))
        for part in parts:
            part.parts = parts
        return parts


class _CountedMessage(SimMessage):
    """Bytes, and a notification for the part of a peer."""

    __slots__ = ("_part", "_slot", "_value")

    def __init__(self, ranks: tuple[int, int], num_bytes: int, part: SimWindow, slot: int, value: int) -> None:
        self.source, self.destination = ranks
        self.num_bytes, self.occupied_s = num_bytes, 0.0
        self._part, self._slot, self._value = part, slot, value

    def arrive(self) -> None:
        self._part.notice(self._slot, self._value, None)


class CountedPart:
    """One rank's part of a window without data. See `samovar.transports.base.CountedPart`."""

    def __init__(self, port: SimPort, window: SimWindow, machine: MachineModel, heed: Callable[[int], None]) -> None:
        self.slots = window.slots
        self.after, self.counted_bytes = port.fabric.scheduler.after, port.fabric.counted
        self.reduce_s: Callable[[int], float] = partial(machine.reduce_s, port.rank)
        self._port, self._window = port, window
        self._peers: dict[int, tuple[Lane, SimWindow, tuple[int, int]]] = {}
        self._task: Task | None = None
        window.heed = heed

    def put(self, peer: int, num_bytes: int, slot: int, value: int) -> None:
        if peer not in self._peers:
            part, rank = self._window.parts[peer], self._port.rank
            self._peers[peer] = self._port.fabric.network.lane(rank, part.rank), part, (rank, part.rank)
        lane, part, ranks = self._peers[peer]
        self._port.bytes_sent += num_bytes
        self._port.fabric.network.send_along(lane, _CountedMessage(ranks, num_bytes, part, slot, value))

    def wait_for_end(self, what: object, deadline: Deadline) -> None:
        self._task = self._port.task
        has_ended = self._port.block(what, virtual_s(deadline))
        self._task = None
        if not has_ended:
            raise DeadlineExceeded(f"rank {self._port.rank}: {what} did not come before {deadline.at_s:.6f} s")

    def end(self) -> None:
        if self._task is not None:
            self._port.fabric.scheduler.wake(self._task)


class SimTransport:
    """See `samovar.transports.base.Transport`; with further calls for simulated programs, some of them `SimPort`'s."""

    def __init__(self, group: Group, port: SimPort, windows: Windows, machine: MachineModel) -> None:
        self.group = group
        self.note, self.request, self.die = port.note, port.request, port.die
        self.sleep, self.poll = port.sleep, port.poll
        self._port = port
        self._windows = windows
        self._machine = machine
        self._num_windows = 0

    @property
    def bytes_sent(self) -> int:
        return self._port.bytes_sent

    def count_sent(self, num_bytes: int) -> None:
        self._port.bytes_sent += num_bytes

    def open_window(self, name: str, num_bytes: int, num_slots: int) -> SimWindow:
        """Raises SamovarError if another rank opened it with other sizes."""
        own = self._windows.open(self._num_windows, name, num_bytes, num_slots)[self.group.rank]
        self._num_windows += 1
        if (len(own.local), len(own.slots)) != (num_bytes, num_slots):
            raise SamovarError(
                f"rank {self.group.rank}: window {name!r} of {num_bytes} bytes and {num_slots} slots is window "
                f"{own.name!r} of {len(own.local)} bytes and {len(own.slots)} slots on another rank"
            )
        return own

    def reduce(self, destination: Array, sources: Sequence[Array]) -> None:
        """destination = (sources[0] + sources[1]) + ..., in the time that the machine model gives it.

        Windows that hold no data are not added.
        """
        add = partial(_native.reduce, destination, sources)
        self._work(add, sources, [destination], "reduce", "reduce (its sum)")

    def work(self, what: Callable[[], None], reads: Sequence[Array], writes: Sequence[Array]) -> None:
        """See `samovar.transports.base.Modelled`; timed like a reduction of as many bytes."""
        self._work(what, reads, writes, "work (its input)", "work (its result)")

    def _work(
        self, what: Callable[[], None], reads: Sequence[Array], writes: Sequence[Array], reading: str, writing: str
    ) -> None:
        if self._port.fabric.races is not None:
            for array in reads:
                self.note(array, writes=False, verb=reading)
            for array in writes:
                self.note(array, writes=True, verb=writing)
        seconds = self._machine.reduce_s(self._port.rank, sum(map(self._port.fabric.num_bytes, (*reads, *writes))))
        if seconds > 0.0:
            self._busy(seconds)
        if self._port.all_are_real or self._holds(*writes, *reads):
            what()

    def _holds(self, *arrays: Array) -> bool:
        """Whether all of them are memory, and none only counts."""
        windows = (self._port.find(array)[0] for array in arrays)
        return all(window is None or window.is_real for window in windows)

    def counts(self, window: Window) -> bool:
        """See `CountingTransport`. Not if accesses or events are noted."""
        is_noted = self._port.fabric.races is not None or self._port.fabric.network.is_logged
        return not is_noted and isinstance(window, SimWindow) and not window.is_real

    def counted_part(self, window: Window, heed: Callable[[int], None]) -> CountedPart:
        """See `CountingTransport`."""
        assert isinstance(window, SimWindow)
        return CountedPart(self._port, window, self._machine, heed)

    def among(self, name: Hashable, ranks: Sequence[int]) -> "SimTransport":
        """This rank's access to the memory of a part of the ranks. All that belong to it call this with one `name`."""
        group = Group(ranks.index(self._port.rank), len(ranks))
        return SimTransport(group, self._port, self._windows.among(name, ranks), self._machine)

    def spawn(self, what: str, work: Callable[[Deadline], None]) -> Pending:
        """See `samovar.transports.base.Spawning`; the race finder takes both for one thread of control."""
        return self._port.spawn(what, lambda: work(self.deadline(math.inf)))

    def port_use(self) -> PortUse:
        """How long each port of the network was occupied so far."""
        return self._port.fabric.network.use()

    @property
    def now_s(self) -> float:
        """The virtual clock."""
        return self._port.fabric.scheduler.now_s

    def compute(self, nominal_s: float) -> None:
        """Work as long as this rank needs for `nominal_s` of the machine's nominal rank."""
        self._busy(self._machine.compute_s(self._port.rank, nominal_s))

    def _busy(self, seconds: float) -> None:
        """Keep the core of this rank busy. Messages that it does meanwhile make that longer."""
        cores = () if self._machine.spare_cores else self._port.fabric.network.cores
        if not cores:
            self._port.sleep(seconds)
            return
        core = cores[self._port.rank]
        while seconds > 0.0:
            before_s = core.busy_s(self.now_s)
            self._port.sleep(seconds)
            seconds = core.busy_s(self.now_s) - before_s

    def deadline(self, seconds: float) -> VirtualDeadline:
        """`seconds` of virtual time from now; infinity leaves it to the deadlock report."""
        scheduler = self._port.fabric.scheduler
        return VirtualDeadline(scheduler.now_s + seconds, lambda: scheduler.now_s)


def simulate(
    program: Callable[[SimTransport], _Result],
    world_size: int,
    config: SimConfig,
    window_type: type[SimWindow] = SimWindow,
) -> SimRun[_Result]:
    """Run `program` on every rank until all have returned.

    Raises Deadlock, Race, and any error of a rank (with a note that names it). All randomness that the
    simulator uses is drawn from config.seed.
    """
    random = Random(config.seed)
    scheduler = Scheduler(random)
    hosts = [*map(config.machine.host, range(world_size)), *config.server_hosts]
    network = Network(
        scheduler, config.machine, hosts, world_size, random, config.max_delay_s, config.is_logged, config.held_s
    )
    races = RaceFinder(world_size) if config.check else None
    fabric = Fabric(scheduler, network, races, config.magnification)
    tasks = [Task(f"rank {rank}") for rank in range(world_size)]
    ports = [SimPort(rank, fabric, task) for rank, task in enumerate(tasks)]
    windows = Windows(ports, config.counted_above_bytes, window_type)
    for rank, (task, port) in enumerate(zip(tasks, ports, strict=True)):
        transport = SimTransport(Group(rank, world_size), port, windows, config.machine)
        task.program = partial(program, transport)
    scheduler.run(tasks)
    network.end()
    windows.end()
    return SimRun(
        results=[task.result for task in tasks],
        seconds=scheduler.now_s,
        num_messages=network.num_messages,
        bytes_sent=tuple(port.bytes_sent for port in ports),
        event_hash=network.event_hash(),
    )


def simulated(
    program: Callable[[SimTransport], _Result],
    num_workers: int,
    machine: MachineModel,
    magnification: float,
    server_hosts: tuple[int, ...] = (),
    learning_seed: int | None = None,
) -> SimRun[_Result]:
    """Run the program on each worker, for a prediction: only times and bytes count. Nothing is checked or logged.

    Windows hold no bytes, except if something is learned with a seed.
    """
    config = SimConfig(
        seed=learning_seed or 0,
        machine=machine,
        check=False,
        counted_above_bytes=0 if learning_seed is None else math.inf,
        magnification=magnification,
        server_hosts=server_hosts,
        is_logged=False,
    )
    with _collected_once():
        return simulate(program, num_workers, config)


@contextmanager
def _collected_once() -> Iterator[None]:
    """Collect only what the block made, at its end, and only if that is much: it takes a fourth of the time then.

    The cycle collector would look through everything again and again. A simulation that ends well leaves no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MANY_OBJECTS:
            gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _zeros(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Aligned to a cache line; untouched pages take no memory."""
    memory = np.zeros(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -address_of(memory) % _ALIGNMENT_BYTES
    return memory[start : start + num_bytes]
