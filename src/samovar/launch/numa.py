"""The NUMA nodes of this machine: which cpus have which memory near."""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

Cpus = tuple[int, ...]

NODES = Path("/sys/devices/system/node")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def numa_nodes(folder: Path = NODES) -> tuple[Cpus, ...]:
    """The cpus that this process may use, by node, nodes without any left out.

    All in one where the kernel does not tell of every one of them where it lies (as in some containers).
    """
    available = os.sched_getaffinity(0)
    paths = sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    nodes = [tuple(sorted(available & _cpus(path / "cpulist"))) for path in paths]
    if sum(map(len, nodes)) != len(available) or set().union(*nodes) != available:
        return (tuple(sorted(available)),)
    return tuple(node for node in nodes if node)


def spread(cpus: Sequence[Cpus], nodes: Sequence[Cpus]) -> str:
    """How workers with these cpus lie on the nodes, in words; nothing on a machine with one node."""
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
    """Those of a list such as 0-3,8-11; none where there is none."""
    with contextlib.suppress(OSError, ValueError):
        found = [_RANGE.fullmatch(part) for part in path.read_text(encoding="ascii").strip().split(",")]
        return {cpu for match in found if match for cpu in range(int(match[1]), int(match[2] or match[1]) + 1)}
    return set()
