"""The NUMA nodes of this machine: which memory is near to which cpus."""

import contextlib
import os
import re
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from samovar.core.clock import Deadline, polled

Cpus = tuple[int, ...]

NODES = Path("/sys/devices/system/node")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def numa_nodes(folder: Path = NODES) -> tuple[Cpus, ...]:
    """The cpus that this process may use, by node; nodes without any are left out.

    All are in one node if the kernel does not know the node of each, as in some containers.
    """
    available = os.sched_getaffinity(0)
    paths = sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    nodes = [tuple(sorted(available & _cpus(path / "cpulist"))) for path in paths]
    if sum(map(len, nodes)) != len(available) or set().union(*nodes) != available:
        return (tuple(sorted(available)),)
    return tuple(node for node in nodes if node)


def spread(cpus: Sequence[Cpus], nodes: Sequence[Cpus]) -> str:
    """How workers with these cpus are placed on the nodes, as text; "" on a machine with one node."""
    if len(nodes) < 2:
        return ""
    used = [tuple(number for number, node in enumerate(nodes) if set(own) & set(node)) for own in cpus]
    if len(set(used)) == 1 and len(used[0]) > 1:
        return f"{'each ' if len(cpus) > 1 else ''}on {len(used[0])} NUMA nodes"
    if any(len(own) > 1 for own in used):
        whole = {len(own) for own in used}
        return f"each on {whole.pop()} NUMA nodes" if len(whole) == 1 else "some on several NUMA nodes"
    counts = {used.count(own) for own in set(used)}
    if len(set(used)) == 1:
        return "all on one NUMA node" if len(cpus) > 1 else "on one NUMA node"
    number = counts.pop() if len(counts) == 1 else 0
    return {0: "each on one NUMA node", 1: "one per NUMA node"}.get(number, f"{number} per NUMA node")


def _cpus(path: Path) -> set[int]:
    with contextlib.suppress(OSError, ValueError):
        found = [_RANGE.fullmatch(part) for part in path.read_text(encoding="ascii").strip().split(",")]
        return {cpu for match in found if match for cpu in range(int(match[1]), int(match[2] or match[1]) + 1)}
    return set()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where ranks run: `cpus[rank]` are the cores of that rank; `oversubscribed` if they had to be shared."""

    threads_per_worker: int
    cpus: tuple[Cpus, ...]
    oversubscribed: bool


def place(
    num_workers: int,
    threads_per_worker: int | None,
    with_spare: bool = False,
    nodes: Sequence[Cpus] | None = None,
    most_threads: int | None = None,
) -> Placement:
    """Place the workers on the cores that this process may use; by default with cores / workers threads each.

    While there are enough cores, each worker gets neighbouring cores of its own: one for each thread, or its share of
    all (`with_spare`, for exchanges behind the computation). Else all workers share all cores. A worker's cores are in
    one NUMA node if they fit. Workers are spread evenly over the nodes, and neighbours in rank share one. `nodes` None:
    those of this machine. If all may have the time of only `most_threads` of these cores, no worker has its own.
    """
    nodes = numa_nodes() if nodes is None else nodes
    available = tuple(sorted(cpu for node in nodes for cpu in node))
    most = min(most_threads or len(available), len(available))
    threads = max(1, most // num_workers) if threads_per_worker is None else threads_per_worker
    oversubscribed = num_workers * threads > most
    if oversubscribed or most < len(available):
        return Placement(threads, (available,) * num_workers, oversubscribed)
    width = _with_spare(num_workers, threads, nodes) if with_spare else threads
    return Placement(threads, _shares(num_workers, width, nodes), oversubscribed=False)


def num_inside(width: int, node_sizes: Sequence[int]) -> int:
    """How many workers of `width` cores fit inside nodes."""
    return sum(size // width for size in node_sizes)


def _with_spare(num_workers: int, threads: int, nodes: Sequence[Cpus]) -> int:
    """An equal share of all cores for each worker, without cores that would take it out of its node."""
    sizes = [len(node) for node in nodes]
    most = sum(sizes) // num_workers
    inside = [width for width in range(threads, most + 1) if num_inside(width, sizes) >= num_workers]
    return max(inside, default=most)


def _shares(num_workers: int, width: int, nodes: Sequence[Cpus]) -> tuple[Cpus, ...]:
    """`width` cores for each worker, from the node with most left, or from several if no node has enough."""
    left = [len(node) for node in nodes]
    counts = [0] * len(nodes)
    for _ in range(num_workers):
        roomiest = left.index(max(left))
        if left[roomiest] < width:
            break
        left[roomiest] -= width
        counts[roomiest] += 1
    inside = [
        node[place * width : (place + 1) * width]
        for node, count in zip(nodes, counts, strict=True)
        for place in range(count)
    ]
    rest = [node[count * width :] for node, count in zip(nodes, counts, strict=True)]
    cores = [cpu for node in sorted(rest, key=len, reverse=True) for cpu in node]
    across = [tuple(cores[place * width : (place + 1) * width]) for place in range(num_workers - len(inside))]
    return (*inside, *across)


_PREFIX: Final = "samovar-cpu"
_SOCKETS: Final = Path("/proc/net/unix")
# A turn takes milliseconds; who does not get one goes on without.
_TURN_S, _POLL_S = 2.0, 0.005


@contextlib.contextmanager
def apart(
    planned: tuple[Cpus, ...], prefix: str = _PREFIX, nodes: Sequence[Cpus] | None = None
) -> Iterator[tuple[Cpus, ...]]:
    """Cores for ranks, as many as `planned`: those that the fewest other runs have; for the block.

    Ranks that share cores by plan, or are not pinned, stay so. A run marks its cores by abstract sockets, one each,
    named `samovar-cpu-CORE-PROCESS`. They end with the process, and all users of its network namespace see them. One
    process at a time chooses, so that a second one sees the choice of the first. The number of a rank's cores never
    depends on other runs. Cost: a socket a core. `nodes` None: those of this machine.
    """
    width = min(map(len, planned), default=0)
    if width == 0 or len({core for own in planned for core in own}) < width * len(planned):
        yield planned
        return
    with contextlib.ExitStack() as held:
        with _turn(prefix):
            there, rather = numa_nodes() if nodes is None else nodes, {core for own in planned for core in own}
            free = least_taken(there, _num_runs(prefix), width * len(planned), rather)
            chosen = place(len(planned), width, nodes=free).cpus
            for core in sorted(core for own in chosen for core in own):
                _bind(held.enter_context(_socket()), f"{prefix}-{core}-{os.getpid()}")
        yield chosen


def least_taken(
    nodes: Sequence[Cpus], num_runs: Mapping[int, int], num_cores: int, rather: Collection[int] = ()
) -> tuple[Cpus, ...]:
    """The cores of each node with the fewest runs, `num_cores` in all; of equals those of `rather` come first."""
    taken = {core: num_runs.get(core, 0) for node in nodes for core in node}
    most = sorted(taken.values())[num_cores - 1]
    fit = [[core for core in node if taken[core] <= most] for node in nodes]
    return tuple(tuple(sorted(cores, key=lambda core: (taken[core], core not in rather, core))) for cores in fit)


@contextlib.contextmanager
def _turn(prefix: str) -> Iterator[None]:
    with _socket() as turn:
        polled(lambda: _bind(turn, prefix), Deadline.after(_TURN_S), _POLL_S)
        yield


def _num_runs(prefix: str) -> Mapping[int, int]:
    """How many runs have each core; empty if the kernel does not list sockets."""
    claim = re.compile(rf"@{re.escape(prefix)}-([0-9]{{1,6}})-[0-9]+")
    try:
        lines = _SOCKETS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    found = [claim.fullmatch(line.rpartition(" ")[2]) for line in lines]
    return Counter(int(match[1]) for match in found if match)


def _socket() -> socket.socket:
    """A socket for its name alone: a stream that does not listen takes nothing from other programs."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _bind(given: socket.socket, name: str) -> bool:
    try:
        given.bind(f"\0{name}")
    except OSError:
        return False
    return True
