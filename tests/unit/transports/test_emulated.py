"""Windows with the delays of a described machine: when messages arrive, what they bring, and how waits end."""

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random

import numpy as np
import pytest

from samovar.collectives.execute import Channel
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError
from samovar.core.machine import Link, MachineModel, Ports, Racks
from samovar.transports.base import Notification, Region
from samovar.transports.emulated import EmulatedTransport, Roads
from samovar.transports.shm import ShmTransport
from samovar.transports.sim.network import CallMessage, Network
from samovar.transports.sim.scheduler import Scheduler
from tests.conformance import cases

MakeTransports = Callable[[int], list[ShmTransport]]
TIMEOUT_S = 50.0
SOON = MachineModel(Link(1e-4, 1e8, 1e-5), Link(1e-5, 1e9), ranks_per_host=2, racks=Racks(2, Link(1e-5, 1e8)))


class VirtualClock:
    """Time passes between calls."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()

    def now_ns(self) -> int:
        return self._now_ns

    def at(self, moment_ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (moment_ns, next(self._number), call))

    def run(self) -> None:
        while self._heap:
            self._now_ns, _, call = heapq.heappop(self._heap)
            call()


def machine_of(random: Random) -> MachineModel:
    """Any machine, some without a part of all this."""

    def link() -> Link:
        bandwidth = random.choice([random.uniform(1e6, 1e9), float("inf")])
        return Link(random.uniform(1e-5, 1e-3), bandwidth, random.choice([0.0, 1e-5]))

    racks = random.choice([None, Racks(random.randint(1, 2), link())])
    return MachineModel(link(), link(), random.randint(1, 3), random.choice(list(Ports)), racks=racks)


def messages_of(random: Random, num_places: int) -> list[tuple[float, int, int, int]]:
    """Moments of sending, sources, destinations and bytes; no two are sent at one moment."""
    moments = sorted(random.uniform(0, 5e-3) for _ in range(40))
    ways = [random.sample(range(num_places), 2) for _ in moments]
    sizes = [random.randint(0, 100_000) for _ in moments]
    return [(at_s, way[0], way[1], size) for at_s, way, size in zip(moments, ways, sizes, strict=True)]


@pytest.mark.parametrize("seed", range(100))
def test_a_message_arrives_when_it_does_on_the_simulated_machine(make_transports: MakeTransports, seed: int) -> None:
    random = Random(seed)
    machine, world_size = machine_of(random), 5
    server_hosts = tuple(random.sample(range(4), random.randint(0, 2)))
    messages = messages_of(random, world_size + len(server_hosts))
    simulated = simulated_arrivals(machine, world_size, server_hosts, messages)
    window = make_transports(1)[0].open_window("ports", Roads.num_bytes(machine, world_size, server_hosts), 0)
    clock = VirtualClock()
    roads = Roads(window, machine, world_size, server_hosts, clock)
    arrivals = [0.0] * len(messages)
    for number, (at_s, source, destination, num_bytes) in enumerate(messages):

        def send(number: int = number, way: tuple[int, int, int] = (source, destination, num_bytes)) -> None:
            roads.send(*way, lambda: arrivals.__setitem__(number, clock.now_ns() / 1e9))

        clock.at(round(at_s * 1e9), send)
    clock.run()
    assert arrivals == pytest.approx(simulated, abs=2e-7)


def simulated_arrivals(
    machine: MachineModel, world_size: int, server_hosts: Sequence[int], messages: Sequence[tuple[float, int, int, int]]
) -> list[float]:
    scheduler = Scheduler(Random(0))
    hosts = [*(machine.host(rank) for rank in range(world_size)), *server_hosts]
    network = Network(scheduler, machine, hosts, len(hosts), Random(0), 0.0)
    arrivals = [0.0] * len(messages)

    def note(number: int) -> Callable[[], None]:
        return lambda: arrivals.__setitem__(number, scheduler.now_s)

    for number, (at_s, source, destination, num_bytes) in enumerate(messages):
        message = CallMessage(source, destination, num_bytes, note(number))
        scheduler.at((at_s, 0.0), network.send, message)
    scheduler._num_live = 1  # events run although there are no tasks
    with pytest.raises(AssertionError, match="deadlock"):
        scheduler._run_events()
    return arrivals


def emulated(transports: Sequence[ShmTransport], machine: MachineModel = SOON) -> list[EmulatedTransport]:
    names = [f"rank {rank}" for rank in range(len(transports))]

    def make(transport: ShmTransport) -> EmulatedTransport:
        transport.watch(names, {})
        return EmulatedTransport(transport, machine, (0,), 1e-4)

    with ThreadPoolExecutor(len(transports)) as pool:
        return list(pool.map(make, transports))


@pytest.mark.parametrize("name", ["tree", "ring", "halving-doubling", "direct", "two-level", "server"])
def test_a_collective_gives_the_same_bits(make_transports: MakeTransports, name: str) -> None:
    size = 1000
    ranks = emulated(make_transports(4))

    def run(transport: EmulatedTransport) -> bytes:
        buffer = Region.of(transport.open_window("data", 4 * size, 0), 0, size, np.float32)
        plan = cases.COLLECTIVES[name]
        channel = Channel(name, plan.function(transport.group.rank, 4), transport, buffer)
        buffer.array[:] = cases.contribution(transport.group.rank, 1, size, "float32")
        channel.start()
        channel.finish(Deadline.after(TIMEOUT_S))
        return buffer.array.tobytes()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, ranks))
    for transport in ranks:
        transport.close()
    total = sum(cases.contribution(rank, 1, size, "float32").astype(np.float64) for rank in range(4))
    assert set(found) == {found[0]}
    np.testing.assert_allclose(np.frombuffer(found[0], np.float32), total, rtol=1e-5, atol=1e-5)


def test_a_put_takes_its_source_as_it_was_and_a_question_is_answered_behind_it(make_transports: MakeTransports) -> None:
    first, second = emulated(make_transports(2))
    window, there = (transport.open_window("data", 64, 2) for transport in (first, second))
    source = np.arange(8, dtype=np.uint64)
    window.put(1, 0, source, Notification(1, 7))
    source[:] = 0
    assert window.fetch_add(1, 8, 10) == 1
    assert there.wait(1, 7, 0, Deadline.after(TIMEOUT_S)) == 7
    assert there.local.view(np.uint64).tolist() == [0, 11, 2, 3, 4, 5, 6, 7]
    copy = np.empty(2, np.uint64)
    window.get(1, 8, copy)
    assert copy.tolist() == [11, 2]
    assert first.bytes_sent == 64
    first.close()
    second.close()


def test_what_was_sent_arrives_before_a_transport_is_closed(make_transports: MakeTransports) -> None:
    slow = MachineModel(Link(0.05, 1e6))
    first, second = emulated(make_transports(2), slow)
    window, there = (transport.open_window("data", 8, 1) for transport in (first, second))
    window.put(1, 0, np.full(8, 3, np.uint8), Notification(0, 1))
    first.close()
    assert there.wait_any(range(1), Deadline.after(0.0)) == (0, 1)
    assert there.local.tolist() == [3] * 8
    second.close()


def test_waits_end_by_their_deadline_and_at_the_close(make_transports: MakeTransports) -> None:
    first, second = emulated(make_transports(2))
    window = first.open_window("data", 8, 1)
    second.open_window("data", 8, 1)
    with pytest.raises(DeadlineExceeded, match="rank 1 did not notify slot 0 of window 'data'"):
        window.wait(0, 1, 1, Deadline.after(0.01))
    with pytest.raises(IndexError, match="outside the window 'data': rank 1, bytes 8"):
        window.put(1, 8, np.zeros(1, np.uint8))
    first.close()
    with pytest.raises(SamovarError, match="closed here"):
        window.wait(0, 1, 1, Deadline.after(TIMEOUT_S))
    second.close()
