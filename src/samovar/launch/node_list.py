"""SLURM's short forms: `node[01-03,07],x` for names, `2(x3),1` for tasks per node."""

import re

from samovar.core.errors import InputError

_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_NAME = re.compile(r"[^\[\],\s]*(?:\[[0-9,-]+\][^\[\],\s]*)*")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")


def first_node(nodes: str) -> str:
    """The first name of the list: each pair of brackets stands for its first number, leading zeros kept."""
    found = _NAME.match(nodes)
    if found is None or not found[0] or nodes[found.end() :][:1] not in ("", ","):
        raise InputError(f"the list of nodes {nodes!r} cannot be read; set MASTER_ADDR to the host of rank 0")
    return _BRACKETS.sub(lambda bracket: re.split("[,-]", bracket[1])[0], found[0])


def tasks_on_node(counts: str, node: int) -> int:
    """How many tasks run on node number `node` (from 0)."""
    position = node
    for part in counts.split(","):
        found = _COUNT.fullmatch(part)
        if found is None:
            break
        repeated = int(found[2] or 1)
        if position < repeated:
            return int(found[1])
        position -= repeated
    raise InputError(f"SLURM_STEP_TASKS_PER_NODE is {counts!r}, which does not tell the tasks of node {node}")
