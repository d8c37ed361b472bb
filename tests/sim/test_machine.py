"""Virtual time is what the machine model's equation says."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from samovar.collectives.execute import Channel, CountedChannel, PlanRunner, open_channel
from samovar.collectives.plan import Plan, PlanFunction
from samovar.collectives.plans import ALL_REDUCE_NAMES, all_reduce, ring_all_reduce
from samovar.collectives.tree import tree_all_reduce
from samovar.core.errors import DeadlineExceeded
from samovar.core.machine import Link, MachineModel, Ports, Racks
from samovar.transports.base import Notification, Region
from samovar.transports.sim.network import PortUse, ServerMemory, ServerRequest
from samovar.transports.sim.scheduler import Deadlock
from samovar.transports.sim.world import SimConfig, SimTransport, simulate

LATENCY_S, BANDWIDTH, OVERHEAD_S = 3.0, 10.0, 0.5
NUM_BYTES = 20
OCCUPIED_S = OVERHEAD_S + NUM_BYTES / BANDWIDTH
LINK = Link(LATENCY_S, BANDWIDTH, OVERHEAD_S)

Messages = dict[int, list[int]]  # source -> destinations, in order


def arrivals(machine: MachineModel, world_size: int, messages: Messages) -> dict[tuple[int, int], float]:
    """When each message of NUM_BYTES has arrived, all sent at the time zero."""

    def program(transport: SimTransport) -> list[tuple[int, int, float]]:
        rank = transport.group.rank
        window = transport.open_window("data", NUM_BYTES * world_size, world_size)
        for peer in messages.get(rank, []):
            window.put(peer, NUM_BYTES * rank, np.zeros(NUM_BYTES, np.uint8), Notification(rank, 1))
        found = []
        for _ in range(sum(peers.count(rank) for peers in messages.values())):
            source, _value = window.wait_any(range(world_size), transport.deadline(math.inf))
            found.append((source, rank, transport.now_s))
        return found

    run = simulate(program, world_size, SimConfig(machine=machine))
    return {(source, rank): time_s for found in run.results for source, rank, time_s in found}


def test_a_message_that_meets_nobody_takes_alpha_and_its_bytes() -> None:
    found = arrivals(MachineModel(LINK), 2, {0: [1]})
    assert found == {(0, 1): pytest.approx(LATENCY_S + OCCUPIED_S)}
    assert LINK.message_s(NUM_BYTES) == pytest.approx(LATENCY_S + OCCUPIED_S)


PROCESSED_S = 5.0
CORES = MachineModel(LINK, processing_bytes_per_s=NUM_BYTES / PROCESSED_S, spare_cores=False)


def test_a_message_is_there_when_the_slower_of_its_link_and_its_cores_is_done() -> None:
    assert arrivals(CORES, 2, {0: [1]}) == {(0, 1): pytest.approx(LATENCY_S + PROCESSED_S)}
    fast = MachineModel(LINK, processing_bytes_per_s=NUM_BYTES / 0.1)
    assert arrivals(fast, 2, {0: [1]}) == {(0, 1): pytest.approx(LATENCY_S + OCCUPIED_S)}


def test_a_core_does_what_it_sends_and_what_it_receives_one_after_the_other() -> None:
    found = arrivals(CORES, 2, {0: [1], 1: [0]})
    assert found == {(0, 1): pytest.approx(2 * PROCESSED_S), (1, 0): pytest.approx(2 * PROCESSED_S)}


@pytest.mark.parametrize("work", ["compute", "reduce"])
def test_messages_take_their_time_from_the_computation_of_their_core(work: str) -> None:
    """Both ranks compute for 4 s: the sender from the time zero, the receiver when the first byte comes."""
    machine = replace(CORES, reduce_bytes_per_s=3 * NUM_BYTES / 4.0)

    def program(transport: SimTransport) -> float:
        window = transport.open_window("data", 4 * NUM_BYTES, 1)
        rows = window.local.view(np.float32).reshape(4, -1)
        if transport.group.rank == 0:
            window.put(1, 0, rows[0], Notification(0, 1))
        else:
            transport.sleep(LATENCY_S)
        if work == "compute":
            transport.compute(4.0)
        else:
            transport.reduce(rows[1], [rows[2], rows[3]])
        return transport.now_s

    def ends(machine: MachineModel) -> list[float]:
        return simulate(program, 2, SimConfig(machine=machine)).results

    assert ends(machine) == [pytest.approx(4.0 + PROCESSED_S), pytest.approx(LATENCY_S + 4.0 + PROCESSED_S)]
    assert ends(replace(machine, spare_cores=True)) == [4.0, LATENCY_S + 4.0]
    assert ends(replace(machine, ranks_per_host=2, host_link=LINK)) == [4.0, LATENCY_S + 4.0]


def test_a_rank_sends_one_message_after_the_other() -> None:
    found = arrivals(MachineModel(LINK), 3, {0: [1, 2]})
    assert found[0, 1] == pytest.approx(LATENCY_S + OCCUPIED_S)
    assert found[0, 2] == pytest.approx(LATENCY_S + 2 * OCCUPIED_S)


def test_a_rank_receives_one_message_after_the_other() -> None:
    found = arrivals(MachineModel(LINK), 3, {1: [0], 2: [0]})
    assert sorted(found.values()) == pytest.approx([LATENCY_S + OCCUPIED_S, LATENCY_S + 2 * OCCUPIED_S])


def test_unlimited_ports_carry_any_number_of_messages() -> None:
    machine = MachineModel(LINK, ports=Ports.UNLIMITED)
    found = arrivals(machine, 4, {0: [1, 2], 3: [1]})
    assert list(found.values()) == pytest.approx([LATENCY_S + OCCUPIED_S] * 3)


@pytest.mark.parametrize(("ports", "last_s"), [(Ports.DUPLEX, OCCUPIED_S), (Ports.SHARED, 2 * OCCUPIED_S)])
def test_a_shared_port_either_sends_or_receives(ports: Ports, last_s: float) -> None:
    link = Link(0.0, BANDWIDTH, OVERHEAD_S)
    found = arrivals(MachineModel(link, ports=ports), 2, {0: [1], 1: [0]})
    assert max(found.values()) == pytest.approx(last_s)


def test_ranks_of_a_host_share_its_port_and_have_their_own_inside() -> None:
    machine = MachineModel(LINK, Link(0.0, BANDWIDTH), ranks_per_host=2)
    outside = arrivals(machine, 4, {0: [2], 1: [3]})
    assert sorted(outside.values()) == pytest.approx([LATENCY_S + OCCUPIED_S, LATENCY_S + 2 * OCCUPIED_S])
    inside = arrivals(machine, 4, {0: [1], 1: [0]})
    assert list(inside.values()) == pytest.approx([NUM_BYTES / BANDWIDTH] * 2)


def test_racks_share_their_uplinks() -> None:
    uplink = Link(1.0, BANDWIDTH / 2)
    machine = MachineModel(LINK, racks=Racks(2, uplink))
    inside = arrivals(machine, 4, {0: [1]})
    assert inside == {(0, 1): pytest.approx(LATENCY_S + OCCUPIED_S)}
    # The uplinks are the slower ports: behind them a message comes at their pace.
    alone = arrivals(machine, 4, {0: [2]})
    assert alone == {(0, 2): pytest.approx(LATENCY_S + 1.0 + 2 * NUM_BYTES / BANDWIDTH)}
    both = arrivals(machine, 4, {0: [2], 1: [3]})
    passing_s = 2 * NUM_BYTES / BANDWIDTH
    assert sorted(both.values()) == pytest.approx([LATENCY_S + 1.0 + passing_s, LATENCY_S + 1.0 + 2 * passing_s])


def test_numbers_of_a_net_are_magnified_and_words_of_a_protocol_are_not() -> None:
    def program(transport: SimTransport) -> float:
        window = transport.open_window("data", 64, 2)
        if transport.group.rank == 0:
            window.put(1, 0, np.zeros(5, np.float32), Notification(0, 1))
            return 0.0
        window.wait(0, 1, 0, transport.deadline(math.inf))
        begun_s = transport.now_s
        window.get(0, 0, np.zeros(5, np.int64))
        return transport.now_s - begun_s

    machine = MachineModel(Link(0.0, BANDWIDTH))
    run = simulate(program, 2, SimConfig(machine=machine, check=False, magnification=10.0))
    assert run.bytes_sent == (200, 0)
    assert run.results[1] == pytest.approx(40 / BANDWIDTH)
    assert run.seconds == pytest.approx(240 / BANDWIDTH)


def test_a_server_serves_one_request_after_the_other() -> None:
    memory = ServerMemory(2)
    served: list[float] = []

    def program(transport: SimTransport) -> float:
        note = lambda: served.append(transport.now_s)  # noqa: E731
        transport.request([ServerRequest(memory, 20, 5.0, 10, note)])
        return transport.now_s

    machine = MachineModel(Link(1.0, BANDWIDTH))
    run = simulate(program, 2, SimConfig(machine=machine, check=False, server_hosts=(2,)))
    # To the server: 1 s, and 2 s for each of both at its port; back: 1 s, and 1 s each.
    assert served == pytest.approx([3 + 5, 3 + 5 + 5])
    assert sorted(run.results) == pytest.approx([8 + 2, 13 + 2])
    assert memory.busy_s(run.seconds) == 10.0


def test_a_port_is_occupied_as_long_as_its_messages_take() -> None:
    def program(transport: SimTransport) -> PortUse | None:
        window = transport.open_window("data", NUM_BYTES, 1)
        if transport.group.rank == 0:
            for _ in range(2):
                window.put(1, 0, np.zeros(NUM_BYTES, np.uint8), Notification(0, 1))
            transport.sleep(OCCUPIED_S)
            return transport.port_use()
        window.wait(0, 1, 0, transport.deadline(math.inf))
        return None

    use = simulate(program, 2, SimConfig(machine=MachineModel(Link(0.0, BANDWIDTH, OVERHEAD_S)), check=False)).results[
        0
    ]
    assert use is not None
    assert use.hosts_s == pytest.approx((OCCUPIED_S, OCCUPIED_S))


def all_reduce_s(function: PlanFunction, world_size: int, size: int, machine: MachineModel) -> float:
    """The virtual time of one all-reduce, its bytes only counted."""
    config = SimConfig(machine=machine, check=False, counted_above_bytes=0)
    return simulate(partial(reduce_once, function, size), world_size, config).seconds


def reduce_once(function: PlanFunction, size: int, transport: SimTransport) -> None:
    buffer = Region.of(transport.open_window("data", size * 4, 0), 0, size, np.float32)
    plan = function(transport.group.rank, transport.group.world_size)
    Channel("all-reduce", plan, transport, buffer).run(transport.deadline(math.inf))


@pytest.mark.parametrize("world_size", [2, 4, 8, 64])
def test_a_tree_takes_as_long_as_its_steps(world_size: int) -> None:
    machine = MachineModel(Link(0.0, 1e9, 1e-6))
    taken_s = all_reduce_s(tree_all_reduce, world_size, 1000, machine)
    assert taken_s == pytest.approx(2 * math.log2(world_size) * (1e-6 + 4000 / 1e9))


@pytest.mark.parametrize("world_size", [2, 3, 5, 8, 33])
def test_a_ring_takes_as_long_as_its_steps(world_size: int) -> None:
    machine = MachineModel(Link(1e-6, 1e9, 1e-7))
    taken_s = all_reduce_s(ring_all_reduce, world_size, 1000 * world_size, machine)
    assert taken_s == pytest.approx(2 * (world_size - 1) * (1.1e-6 + 4000 / 1e9))


def test_additions_take_the_time_of_their_bytes_on_their_rank() -> None:
    machine = MachineModel(reduce_bytes_per_s=1e9, compute_factors=(3.0, 1.0))
    assert all_reduce_s(tree_all_reduce, 2, 1000, machine) == pytest.approx(3.0 * 3 * 4000 / 1e9)


def test_slow_ranks_compute_longer() -> None:
    machine = MachineModel(compute_factors=(1.0, 2.5))

    def program(transport: SimTransport) -> float:
        transport.compute(2.0)
        return transport.now_s

    run = simulate(program, 4, SimConfig(machine=machine))
    assert run.results == [2.0, 5.0, 2.0, 5.0]
    assert run.seconds == 5.0


COUNTED = SimConfig(
    machine=MachineModel(
        Link(3e-5, 1e9, 5e-6),
        Link(1e-6, 1e10),
        ranks_per_host=2,
        reduce_bytes_per_s=1e10,
        compute_factors=(1.0, 1.0, 1.7),
        racks=Racks(2, Link(2e-6, 5e8)),
    ),
    check=False,
    counted_above_bytes=0,
    magnification=3.7,
    is_logged=False,
)
Executor = Callable[[str, Plan, SimTransport, Region], PlanRunner]
Seen = list[tuple[float, int, int]]


def seen(plan: str, num_elements: int, executor: Executor, transport: SimTransport) -> Seen:
    """The moments, steps and bytes of runs at once, of which some are in the background."""
    rank, world_size = transport.group.rank, transport.group.world_size
    region = Region.of(transport.open_window("data", 4 * num_elements, 0), 0, num_elements, np.float32)
    function = all_reduce(plan, host_size=COUNTED.machine.ranks_per_host)(rank, world_size)
    parts = [region.part(0, num_elements // 3), region.part(num_elements // 3, num_elements)]
    channels = [executor(f"part {index}", function, transport, part) for index, part in enumerate(parts)]
    found: Seen = []
    random = Random(rank)
    for _ in range(3):
        transport.compute(1e-4 * random.random())
        channels[0].start()
        transport.compute(1e-5 * random.random())
        channels[1].run(transport.deadline(math.inf))
        channels[0].finish(transport.deadline(math.inf))
        found += [(transport.now_s, channel.last_steps, transport.bytes_sent) for channel in channels]
    return found


@pytest.mark.parametrize("world_size", [2, 3, 8, 13])
@pytest.mark.parametrize("plan", ALL_REDUCE_NAMES)
def test_counted_plans_take_the_steps_and_the_time_of_their_operations(plan: str, world_size: int) -> None:
    runs = [
        simulate(partial(seen, plan, num_elements, executor), world_size, COUNTED)
        for num_elements in (5, 4096)
        for executor in (Channel, open_channel)
    ]
    assert runs[0] == runs[1]
    assert runs[2] == runs[3]


def left_alone(deadline_s: float, transport: SimTransport) -> None:
    """Only the first rank runs the plan."""
    region = Region.of(transport.open_window("data", 64, 0), 0, 16, np.float32)
    channel = open_channel("sum", ring_all_reduce(transport.group.rank, 2), transport, region)
    assert isinstance(channel, CountedChannel)
    if transport.group.rank == 0:
        channel.run(transport.deadline(deadline_s))


def test_a_counted_plan_that_cannot_end_is_named() -> None:
    with pytest.raises(Deadlock, match="rank 0 waits for the end of plan 'ring', which waits at slot 0"):
        simulate(partial(left_alone, math.inf), 2, COUNTED)
    with pytest.raises(DeadlineExceeded, match=r"rank 0: the end of plan 'ring'.* did not come before 2.000000 s"):
        simulate(partial(left_alone, 2.0), 2, COUNTED)
