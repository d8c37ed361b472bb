"""One rank of the all-reduce benchmark: every side in turn, cell by cell, seconds as JSON in a file.

A *side* is a plan of ours by name, `tcp PLAN` (over encrypted windows), `mpi PLAN` (over windows of MPI), `gloo`
(torch.distributed), `mpi` (mpi4py), or `copy` (the memory's rate). All sides run in the same processes; each block of
each side begins at a barrier and its sum is verified exactly.
"""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from turns import open_barrier

from samovar import _native
from samovar.collectives.execute import open_channel
from samovar.collectives.plans import ALL_REDUCES
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.base import Region, Transport
from samovar.transports.keys import read_key
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.tcp import TcpTransport
from samovar.transports.tcp_listen import address_of, listen
from samovar.transports.tcp_service import TcpConfig
from samovar.transports.unix_sockets import join_files, offer_files

TIMEOUT_S = 120.0
# An all-reduce in place multiplies by the (power of two) world size: exact, and far from overflow.
RUNS_PER_FILL = 32
# What ranks sum, over and over: small whole numbers.
PATTERN = (np.arange(251 * 4096) % 251).astype(np.float32)

Array = npt.NDArray[np.float32]


class Side(Protocol):
    """One way to sum `array` over all ranks, in place."""

    array: Array

    def run(self) -> None: ...


class Ours:
    def __init__(self, plan: str, transport: Transport, data: Region) -> None:
        self.array: Array = data.array
        group = transport.group
        self._channel = open_channel(plan, ALL_REDUCES[plan](group.rank, group.world_size), transport, data)

    def run(self) -> None:
        self._channel.run(Deadline.after(TIMEOUT_S))


class Gloo:
    def __init__(self, array: Array) -> None:
        self.array = array
        self._tensor = torch.from_numpy(array)

    def run(self) -> None:
        torch.distributed.all_reduce(self._tensor)


class Mpi:
    def __init__(self, array: Array, module: Any) -> None:
        self.array = array
        self._communicator, self._in_place = module.COMM_WORLD, module.IN_PLACE

    def run(self) -> None:
        self._communicator.Allreduce(self._in_place, self.array)


class Copy:
    """No all-reduce: every rank copies N bytes within its window, as fast as the machine lets all of them."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self._half = len(array) // 2

    def run(self) -> None:
        np.copyto(self.array[self._half : 2 * self._half], self.array[: self._half])
        np.copyto(self.array[: self._half], self.array[self._half : 2 * self._half])


class Rank:
    """This process and its ways to the others; `store` is torch's, `mpi` mpi4py's module or None."""

    def __init__(self, job: dict[str, Any], rank: int, mpi: Any) -> None:
        self.group = Group(rank, job["world_size"])
        self.oversubscribed: bool = job["oversubscribed"]
        self.mpi = mpi
        if job["between"]:  # hosts have nothing in common but MPI
            self.barrier: Callable[[], None] = mpi.COMM_WORLD.Barrier
            return
        self.store = torch.distributed.FileStore(f"{job['folder']}/store", self.group.world_size)
        torch.distributed.init_process_group("gloo", store=self.store, rank=rank, world_size=self.group.world_size)
        self._num_segments = 0
        self.barrier = open_barrier(self.transport())
        self._key_file = Path(job["folder"], "key.pem")

    def transport(self) -> ShmTransport:
        """A segment of its own, so that its memory is free again when its windows are."""
        self._num_segments += 1
        key = f"segment {self._num_segments}"
        if self.group.rank == 0:
            descriptor = create_segment(self.group.world_size)
            secret = secrets.token_hex(16)
            with offer_files(secret.encode(), (descriptor,)):
                self.store.set(key, secret)
                torch.distributed.barrier()
        else:
            [descriptor] = join_files(self.store.get(key), 1, Deadline.after(TIMEOUT_S))
            torch.distributed.barrier()
        return ShmTransport(descriptor, self.group, oversubscribed=self.oversubscribed)

    @cached_property
    def tcp(self) -> TcpTransport:
        """One for all cells."""
        listening = listen()
        host, port = address_of(listening)
        self.store.set(f"address {self.group.rank}", f"{host} {port}")
        told = [self.store.get(f"address {rank}").decode().split() for rank in range(self.group.world_size)]
        addresses = [(address, int(number)) for address, number in told]
        config = TcpConfig("benchmark", TIMEOUT_S)
        return TcpTransport(self.group, config, read_key(self._key_file), listening, addresses)

    @cached_property
    def mpi_windows(self) -> Any:
        return import_module("samovar.transports.mpi").MpiTransport(self.group, TIMEOUT_S)

    def close(self) -> None:
        """End the threads that wait for peers: the interpreter's end would find them in native code."""
        if "tcp" in vars(self):
            self.tcp.close(Deadline.after(TIMEOUT_S))
        if "mpi_windows" in vars(self):
            self.mpi_windows.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def blocks(array: Array) -> Iterator[Array]:
    """The array in pieces as long as the pattern."""
    return (array[start : start + len(PATTERN)] for start in range(0, len(array), len(PATTERN)))


def fill(array: Array, factor: float) -> None:
    for block in blocks(array):
        np.multiply(PATTERN[: len(block)], np.float32(factor), out=block)


class Cell:
    """All sides at one size."""

    def __init__(self, rank: Rank, num_bytes: int, sides: list[str]) -> None:
        self._rank = rank
        self._num_bytes = num_bytes
        # Memory of the others' own, as their users have it.
        other = np.zeros(num_bytes // 4, np.float32)
        self.sides = {name: self._open(name, other) for name in sides}

    @cached_property
    def _shared(self) -> ShmTransport:
        return self._rank.transport()

    @cached_property
    def _data(self) -> Region:
        return self._region(self._shared)

    def _region(self, transport: Transport) -> Region:
        window = transport.open_window("data", self._num_bytes, 0)
        return Region.of(window, 0, self._num_bytes // 4, np.float32)

    def _open(self, name: str, other: Array) -> Side:
        if name == "gloo":
            return Gloo(other)
        if name == "mpi":
            return Mpi(other, self._rank.mpi)
        way, _, plan = name.partition(" ")
        if plan:
            over = self._rank.tcp if way == "tcp" else self._rank.mpi_windows
            return Ours(plan, over, self._region(over))
        return Copy(self._data.array) if name == "copy" else Ours(name, self._shared, self._data)

    def block(self, side: Side, num_runs: int, verified: bool) -> tuple[float, float]:
        """When this rank began and ended `num_runs` all-reduces."""
        fill(side.array, self._rank.group.rank + 1)
        self._rank.barrier()
        began_s = time.perf_counter()
        for run in range(num_runs):
            if run > 0 and run % RUNS_PER_FILL == 0:
                fill(side.array, self._rank.group.rank + 1)
            side.run()
        ended_s = time.perf_counter()
        if verified:
            self._verify(side, (num_runs - 1) % RUNS_PER_FILL)
        return began_s, ended_s

    def _verify(self, side: Side, num_doublings: int) -> None:
        if isinstance(side, Copy):
            return
        world_size = self._rank.group.world_size
        factor = float(world_size * (world_size + 1) // 2 * world_size**num_doublings)
        if not all(np.array_equal(block, PATTERN[: len(block)] * np.float32(factor)) for block in blocks(side.array)):
            raise SystemExit(f"rank {self._rank.group.rank}: {type(side).__name__}: the sum is wrong")


def measure(rank: Rank, num_bytes: int, sides: list[str], num_runs: int, num_pairs: int) -> dict[str, Any]:
    """Per side, one (began, ended) a pair, the first one left out."""
    cell = Cell(rank, num_bytes, sides)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for pair in range(1 + num_pairs):
        for name, side in cell.sides.items():
            measured = cell.block(side, num_runs, verified=pair in (0, num_pairs) or num_bytes <= 1 << 20)
            if pair > 0:
                times[name].append(measured)
    return times


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    mpi: Any = import_module("mpi4py.MPI") if job["mpi"] else None
    number = mpi.COMM_WORLD.rank if mpi else int(sys.argv[2])
    _native.die_with_parent()
    os.sched_setaffinity(0, job["cpus"][number])
    torch.set_num_threads(1)
    rank = Rank(job, number, mpi)
    cells = [measure(rank, **cell) for cell in job["cells"]]
    Path(job["folder"], f"rank{number}.json").write_text(json.dumps(cells))
    rank.barrier()
    rank.close()


if __name__ == "__main__":
    main()
