"""One rank of the conformance suite over a library: `external_rank_program.py mpi|gaspi PART FOLDER`.

It writes what it found to FOLDER/RANK.json, one JSON value a line. A failed assertion ends all ranks.
"""

import hashlib
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import count, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samovar.api.connect import join_group
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.transports.base import Notification
from samovar.transports.gaspi import GaspiTransport
from samovar.transports.gaspi_library import gaspi_library
from samovar.transports.looking import LookingTransport
from tests.conformance import cases
from tests.conformance.rank_program import TIMEOUT_S, run_case
from tests.conformance.test_hosts import olds_of
from tests.conformance.test_libraries import STRATEGIES, job
from tests.unit.strategies import center_harness, harness, test_center, test_definitions

FOLDER = Path(sys.argv[3])
_numbers = count()


def of_all(transport: LookingTransport, value: Any) -> list[Any]:
    """The values of all ranks, by files."""
    name, world_size = f"{next(_numbers)}", transport.group.world_size
    (FOLDER / f"{name}.{transport.group.rank}").write_bytes(pickle.dumps(value))
    window = transport.open_window("files", 0, world_size)
    for peer in range(world_size):
        window.notify(peer, Notification(transport.group.rank, 1))
    for peer in range(world_size):
        window.wait(peer, 1, peer, harness.in_time())
    return [pickle.loads((FOLDER / f"{name}.{rank}").read_bytes()) for rank in range(world_size)]


def plans(transport: LookingTransport) -> Iterator[Any]:
    chosen = [case for case in cases.cases() if case.executor == "python"]
    data = transport.open_window("data", max(case.size * int(case.dtype[-2:]) // 8 for case in chosen), 0)
    for case in chosen:
        yield from run_case(transport, data, case)


def strategies(transport: LookingTransport) -> Iterator[Any]:
    for config in STRATEGIES.values():
        left = harness.train(job(config), transport)
        yield [None if bits is None else hashlib.sha256(bits).hexdigest() for bits in harness.bits(left)]


def centers(transport: LookingTransport) -> Iterator[Any]:
    """Rank 0 compares the work of all with the definition."""
    for name, config in test_center.CONFIGS.items():
        work = center_harness.Work(config, test_definitions.gradient, test_center.NUM_STEPS)
        done = center_harness.work(work, transport, lambda _seconds: None, harness.in_time)
        everybody = of_all(transport, replace(done, strategy=None))
        if transport.group.rank == 0:
            test_center.assert_is_reference(everybody, config, center_harness.in_order(everybody))
        yield name


def verbs(transport: LookingTransport) -> Iterator[Any]:
    rank, world_size = transport.group.rank, transport.group.world_size
    changes = range(-1, world_size - 1)
    window = transport.open_window("words", 8 * world_size + 64, world_size)
    assert window.local.ctypes.data % 64 == 0
    assert not transport.open_window("untouched", 1000, 3).local.any()
    window.put(0, 8 * rank, np.array([rank + 1], np.uint64), Notification(rank, 1))
    if rank == 0:
        for peer in range(world_size):
            window.wait(peer, 1, peer, harness.in_time())
        for peer in range(1, world_size):
            window.notify(peer, Notification(0, 2))
    else:
        assert window.wait_any(range(world_size), harness.in_time()) == (0, 2)
    old = window.fetch_add(0, 0, changes[rank])
    assert window.compare_swap(0, 8, 2, 2) == 2
    found = np.zeros(world_size, np.uint64)
    window.get(0, 0, found)
    assert found[1:].tolist() == [*range(2, world_size + 1)]
    olds = tuple(of_all(transport, old))
    assert olds in {olds_of(tuple(changes), order) for order in permutations(range(world_size))}
    add(transport)
    yield old


def add(transport: LookingTransport) -> None:
    """Every rank adds to the memory of rank 0, as rank 0 itself."""
    rank, world_size = transport.group.rank, transport.group.world_size
    window = transport.open_window("sums", 4000, world_size)
    sent = transport.bytes_sent
    for value in range(1, 101):
        window.accumulate(0, 0, np.full(1000, rank + 1, np.float32), Notification(rank, value))
    assert transport.bytes_sent - sent == (0 if rank == 0 else 400_000)
    if rank == 0:
        for peer in range(world_size):
            window.wait(peer, 100, peer, harness.in_time())
        assert (window.local.view(np.float32) == 100 * world_size * (world_size + 1) // 2).all()


def mistakes(transport: LookingTransport) -> Iterator[Any]:
    """On the window of two ranks; the last is about a rank that is gone."""
    rank = transport.group.rank
    window = transport.open_window("data", 64, 2)
    for wrong in (partial(window.put, 2, 0), partial(window.put, 0, 61), partial(window.put, 0, -1)):
        with pytest.raises(IndexError, match="outside the window 'data'"):
            wrong(np.zeros(4, np.uint8))
    with pytest.raises(IndexError, match="slot 2 of 2"):
        window.notify(0, Notification(2, 1))
    with pytest.raises(SamovarError, match="divisible by 8, got 4"):
        window.fetch_add(0, 4, 1)
    with pytest.raises(DeadlineExceeded, match=rf"rank {rank}: rank {1 - rank} did not notify slot 0 .*within 0.1 s"):
        window.wait(0, 1, 1 - rank, Deadline.after(0.1))
    with pytest.raises(DeadlineExceeded, match="nobody notified slots 0 to 1"):
        window.wait_any(range(2), Deadline.after(0.1))
    with pytest.raises(SamovarError, match=f"{rank + 1} bytes and 0 slots here, {2 - rank} bytes and 0 slots on rank"):
        transport.open_window("uneven", rank + 1, 0)
    transport.lost_elsewhere = lambda peer: f"rank {peer} is gone"
    with pytest.raises(RankFailed, match=f"did not notify slot 0 of window 'data': rank {1 - rank} is gone"):
        window.wait(0, 1, 1 - rank, harness.in_time())
    yield "done"


def stopped(transport: LookingTransport) -> Iterator[Any]:
    """Rank 1 is stopped, and rank 0 asks it for a word that only rank 1 can give."""
    window = transport.open_window("data", 64, 1)
    if transport.group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        yield window.fetch_add(1, 0, 1)


def killed(transport: LookingTransport) -> Iterator[Any]:
    """Rank 2 is killed; rank 0 waits for its notification, and rank 1 puts data into it."""
    rank = transport.group.rank
    window = transport.open_window("data", 1 << 20, 1)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)

    def use() -> None:
        while True:
            window.put(2, 0, window.local)

    with pytest.raises(RankFailed, match=rf"rank {rank}: rank 2.*its connection broke"):
        window.wait(0, 1, 2, harness.in_time()) if rank == 0 else use()
    assert transport.lost(1 - rank) is None
    yield "seen"


def opened(library: str, timeout_s: float) -> LookingTransport:
    if library == "gaspi":
        group = join_group(TIMEOUT_S, transport="gaspi").group
        return GaspiTransport(group, gaspi_library(), timeout_s)
    world = import_module("mpi4py.MPI").COMM_WORLD
    transport: LookingTransport = import_module("samovar.transports.mpi").MpiTransport(
        Group(world.rank, world.size), timeout_s
    )
    return transport


def main() -> None:
    part = sys.argv[2]
    transport = opened(sys.argv[1], 1.0 if part == "stopped" else TIMEOUT_S)
    parts: dict[str, Callable[[LookingTransport], Iterator[Any]]] = {
        "plans": plans,
        "strategies": strategies,
        "centers": centers,
        "verbs": verbs,
        "mistakes": mistakes,
        "stopped": stopped,
        "killed": killed,
    }
    lines = [json.dumps(found) for found in parts[part](transport)]
    transport.close()
    (FOLDER / f"{transport.group.rank}.json").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
