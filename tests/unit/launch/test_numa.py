"""Where a machine's memory lies, read from a made-up /sys, and workers that keep to it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from samovar.core.host import num_available_cpus
from samovar.launch import numa
from samovar.launch.numa import numa_nodes, place, spread

Nodes = tuple[tuple[int, ...], ...]
MakeNodes = Callable[..., Nodes]


@pytest.fixture
def make_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeNodes:
    """make(cpulists, allowed) gives what is read of a machine with these nodes by a process that may use `allowed`."""

    def make(cpulists: Sequence[str], allowed: Sequence[int]) -> Nodes:
        for number, cpulist in enumerate(cpulists):
            (tmp_path / f"node{number}").mkdir()
            (tmp_path / f"node{number}/cpulist").write_text(cpulist + "\n")
        (tmp_path / "online").write_text("0\n")
        (tmp_path / "has_cpu").write_text("0\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(allowed))
        return numa_nodes(tmp_path)

    return make


@pytest.mark.parametrize(
    ("cpulists", "allowed", "nodes"),
    [
        (["0-3"], range(4), ((0, 1, 2, 3),)),
        (["0-1,4-5", "2-3,6-7"], range(8), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (["0-1", "2-3", "4-5", "6-7"], range(8), ((0, 1), (2, 3), (4, 5), (6, 7))),
        (["0-1", "2-7"], range(8), ((0, 1), (2, 3, 4, 5, 6, 7))),
        (["0-3", "4-7"], [0, 1, 3, 4, 5, 6, 7], ((0, 1, 3), (4, 5, 6, 7))),  # cpu 2 is offline
        (["0-3", "4-7"], [5, 6], ((5, 6),)),  # taskset
        (["0-3", "4-7", ""], [3, 4], ((3,), (4,))),  # a node of memory alone
        (["0-3", "what"], range(4), ((0, 1, 2, 3),)),
        (["0-3"], range(8), (tuple(range(8)),)),  # half of a machine is not described
        (["0-3", "3-7"], range(8), (tuple(range(8)),)),
        ([], [2, 7], ((2, 7),)),
    ],
)
def test_nodes_are_what_the_kernel_says_and_the_process_may_use(
    make_nodes: MakeNodes, cpulists: Sequence[str], allowed: Sequence[int], nodes: Nodes
) -> None:
    assert make_nodes(cpulists, allowed) == nodes


def test_ten_nodes_come_in_the_order_of_their_numbers(make_nodes: MakeNodes) -> None:
    assert make_nodes([str(number) for number in range(12)], range(12)) == tuple((number,) for number in range(12))


ONE = (tuple(range(16)),)
TWO = (tuple(range(8)), tuple(range(8, 16)))
FOUR = tuple(tuple(range(start, start + 4)) for start in range(0, 16, 4))
UNEVEN = ((0, 1, 2), (3, 4, 5, 6, 7))


@pytest.mark.parametrize(
    ("nodes", "workers", "threads", "cpus", "words"),
    [
        (ONE, 2, None, ((0, 8), (8, 16)), ""),
        (TWO, 1, None, ((0, 16),), "on 2 NUMA nodes"),
        (TWO, 1, 4, ((0, 4),), "on one NUMA node"),
        (TWO, 2, None, ((0, 8), (8, 16)), "one per NUMA node"),
        (TWO, 2, 3, ((0, 3), (8, 11)), "one per NUMA node"),
        (TWO, 4, 2, ((0, 2), (2, 4), (8, 10), (10, 12)), "2 per NUMA node"),
        (TWO, 3, 4, ((0, 4), (4, 8), (8, 12)), "each on one NUMA node"),
        (TWO, 3, 5, ((0, 5), (8, 13), (5, 8, 13, 15)), "some on several NUMA nodes"),
        (FOUR, 2, None, ((0, 8), (8, 16)), "each on 2 NUMA nodes"),
        (FOUR, 4, None, ((0, 4), (4, 8), (8, 12), (12, 16)), "one per NUMA node"),
        (UNEVEN, 2, 3, ((0, 3), (3, 6)), "one per NUMA node"),
        (UNEVEN, 2, 4, ((3, 7), (0, 3, 7, 8)), "some on several NUMA nodes"),
        (UNEVEN, 2, 2, ((0, 2), (3, 5)), "one per NUMA node"),
        (UNEVEN, 2, 1, ((3, 4), (4, 5)), "all on one NUMA node"),
    ],
)
def test_a_worker_keeps_to_a_node_where_there_is_room(
    nodes: Nodes, workers: int, threads: int | None, cpus: Sequence[Sequence[int]], words: str
) -> None:
    """`cpus` are [start, stop) of each run of a worker's cores."""
    found = place(workers, threads, nodes=nodes)
    wanted = [
        tuple(cpu for start, stop in zip(own[::2], own[1::2], strict=True) for cpu in range(start, stop))
        for own in cpus
    ]
    assert list(found.cpus) == wanted
    assert spread(found.cpus, nodes) == words


def test_spare_cores_are_those_of_the_own_node() -> None:
    assert place(2, 5, with_spare=True, nodes=TWO).cpus == TWO
    assert [len(own) for own in place(3, 2, with_spare=True, nodes=TWO).cpus] == [4, 4, 4]
    assert [len(own) for own in place(3, 5, with_spare=True, nodes=TWO).cpus] == [5, 5, 5]


def test_shared_cores_are_all_cores() -> None:
    found = place(9, 2, nodes=TWO)
    assert found.oversubscribed
    assert found.cpus == (tuple(range(16)),) * 9


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine of six cores, of which this process may use five."""
    available = [1, 2, 3, 5, 8]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(available))
    monkeypatch.setattr(numa, "numa_nodes", lambda: (tuple(available),))
    return available


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("workers", "threads", "expected_threads", "cpus"),
    [
        (1, None, 5, ((1, 2, 3, 5, 8),)),
        (2, None, 2, ((1, 2), (3, 5))),
        (5, None, 1, ((1,), (2,), (3,), (5,), (8,))),
        (2, 1, 1, ((1,), (2,))),
        (1, 3, 3, ((1, 2, 3),)),
    ],
)
def test_workers_get_neighbouring_cores_of_their_own(
    workers: int, threads: int | None, expected_threads: int, cpus: tuple[tuple[int, ...], ...]
) -> None:
    found = place(workers, threads)
    assert (found.threads_per_worker, found.cpus) == (expected_threads, cpus)
    assert not found.oversubscribed


@pytest.mark.parametrize(("workers", "threads", "expected_threads"), [(6, None, 1), (2, 3, 3), (1, 6, 6)])
def test_with_too_few_cores_all_share_all(
    cores: list[int], workers: int, threads: int | None, expected_threads: int
) -> None:
    found = place(workers, threads)
    assert found.oversubscribed
    assert found.threads_per_worker == expected_threads
    assert found.cpus == (tuple(cores),) * workers
    assert num_available_cpus() == 5


@pytest.mark.parametrize(
    ("workers", "threads", "expected_threads", "is_too_much"),
    [(2, None, 1, False), (1, None, 2, False), (1, 2, 2, False), (3, None, 1, True), (1, 3, 3, True)],
)
def test_with_the_time_of_fewer_cores_no_worker_has_its_own(
    cores: list[int], workers: int, threads: int | None, expected_threads: int, is_too_much: bool
) -> None:
    found = place(workers, threads, most_threads=2)
    assert (found.threads_per_worker, found.oversubscribed) == (expected_threads, is_too_much)
    assert found.cpus == (tuple(cores),) * workers
    assert place(workers, threads, most_threads=9) == place(workers, threads)
