"""The cores to which runs of this machine have pinned ranks, so that runs beside each other take different ones."""

import contextlib
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from samovar.core.clock import Deadline, polled
from samovar.launch.numa import Cpus, numa_nodes
from samovar.launch.placement import place

_PREFIX: Final = "samovar-cpu"
_SOCKETS: Final = Path("/proc/net/unix")
# A turn takes milliseconds; who does not get one goes on without.
_TURN_S, _POLL_S = 2.0, 0.005


@contextlib.contextmanager
def apart(
    planned: tuple[Cpus, ...], prefix: str = _PREFIX, nodes: Sequence[Cpus] | None = None
) -> Iterator[tuple[Cpus, ...]]:
    """Cores for ranks that shall have as many as `planned`: those that the fewest other runs have; for the block.

    Ranks that share cores by plan, or are not pinned, stay so. A run's cores are abstract sockets, one each, of the
    name `samovar-cpu-CORE-PROCESS`: they end with the process, however that ends, and all who share its network
    namespace see them listed, of any user. One process at a time chooses, so that of two that start at once the
    second sees what the first has. How many cores a rank has never depends on others. Cost: a socket a core.
    `nodes` None: those of this machine.
    """
    width = min(map(len, planned), default=0)
    if width == 0 or len({core for own in planned for core in own}) < width * len(planned):
        yield planned
        return
    with contextlib.ExitStack() as held:
        with _turn(prefix):
            free = least_taken(numa_nodes() if nodes is None else nodes, _num_runs(prefix), width * len(planned))
            chosen = place(len(planned), width, nodes=free).cpus
            for core in sorted(core for own in chosen for core in own):
                _bind(held.enter_context(_socket()), f"{prefix}-{core}-{os.getpid()}")
        yield chosen


def least_taken(nodes: Sequence[Cpus], num_runs: Mapping[int, int], num_cores: int) -> tuple[Cpus, ...]:
    """The cores of each node that no more runs have than is needed for `num_cores` in all, the least taken first."""
    taken = {core: num_runs.get(core, 0) for node in nodes for core in node}
    most = sorted(taken.values())[num_cores - 1]
    fit = [[core for core in node if taken[core] <= most] for node in nodes]
    return tuple(tuple(sorted(cores, key=lambda core: (taken[core], core))) for cores in fit)


@contextlib.contextmanager
def _turn(prefix: str) -> Iterator[None]:
    with _socket() as turn:
        polled(lambda: _bind(turn, prefix), Deadline.after(_TURN_S), _POLL_S)
        yield


def _num_runs(prefix: str) -> Mapping[int, int]:
    """How many runs have each core; nothing where the kernel does not list sockets."""
    claim = re.compile(rf"@{re.escape(prefix)}-([0-9]{{1,6}})-[0-9]+")
    try:
        lines = _SOCKETS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    found = [claim.fullmatch(line.rpartition(" ")[2]) for line in lines]
    return Counter(int(match[1]) for match in found if match)


def _socket() -> socket.socket:
    """For a name alone: a stream that does not listen takes nothing from anybody, as datagrams would be taken."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _bind(given: socket.socket, name: str) -> bool:
    """Whether the name was free."""
    try:
        given.bind(f"\0{name}")
    except OSError:
        return False
    return True
