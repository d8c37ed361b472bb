"""PyTorch's parts for ranks on several hosts: its store, where they meet, and collectives of gloo and NCCL.

The only file below the rooms of training that imports torch.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias
from weakref import WeakSet

import torch
from torch import distributed
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore
from torch.distributed.distributed_c10d import Work

from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, RankFailed
from samovar.core.near import NearArray, NearRegion
from samovar.transports.base import Array
from samovar.transports.leaders import Operation
from samovar.transports.rendezvous import Rendezvous, await_server, first_line, listen_at, within

_Group: TypeAlias = Any  # torch gives its process groups no types, and builds without CUDA have none for NCCL
_LOOPBACK = "127.0.0.1"
# How long NCCL may take to close, for which it may wait for other hosts.
_CLOSING_S, _PAUSE_S = 5.0, 0.01
_threaded: WeakSet[Any] = WeakSet()  # PyTorch's objects that have threads


def open_store(
    address: str, port: int, *, serves: bool, listen_descriptor: int | None, who: str, deadline: Deadline
) -> "JobStore":
    """The store at `address`:`port`; `serves` opens it here, on the inherited listening socket if there is one.

    A process that already serves that port (torch's own process group does) shares the store. Raises InputError
    if the address is not ours, DeadlineExceeded if nobody opens it.
    """
    if not serves:
        await_server(address, port, who, deadline)
    elif listen_descriptor is None and (listener := listen_at(address, port)) is not None:
        listen_descriptor = listener.detach()
    try:
        store = TCPStore(
            address,
            port,
            is_master=serves,
            timeout=timedelta(seconds=max(deadline.remaining_s(), 0.1)),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listen_descriptor if serves else None,
        )
    except RuntimeError as error:
        reason = first_line(error)
        raise RankFailed(f"{who}: the store at {address}:{port} cannot be had: {reason}; is the port free?") from error
    return JobStore(store, f"{address}:{port}")


def default_group() -> tuple[int, int, "JobStore"] | None:
    """Rank, number of ranks and store of the process group that the program has opened itself; None without one."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    store = distributed.distributed_c10d._get_default_store()  # torch has no public name for it
    return distributed.get_rank(), distributed.get_world_size(), JobStore(store, "torch.distributed")


def _host_of(store: Store) -> str | None:
    """Where `store` is served; None if not by TCP."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else None


class JobStore:
    """The store of a job; it lives as long as this object where it is served here.

    `place` is where it is served, for errors, and `address` its host; None if it is not served by TCP.
    """

    def __init__(self, store: Store, place: str) -> None:
        _threaded.add(store)
        self._store = store
        self._place = place
        self.address = _host_of(store)

    def rendezvous(self, prefix: str, who: str) -> Rendezvous:
        """The part of the store whose keys begin with `prefix`; `who` begins every error."""
        return Rendezvous(PrefixStore(prefix, self._store), self._place, who)

    def gloo(
        self, prefix: str, number: int, addresses: Sequence[str], interfaces: Sequence[str], timeout_s: float
    ) -> "Gloo":
        """Connect the first ranks of all hosts, at `addresses`, each with each; this is that of host `number`.

        It has nothing to do with a process group of the user's own.
        """
        group: _Group = ProcessGroupGloo
        options = group._Options()
        # One thread: operations come to an end in the order of their start, the most urgent first.
        options._threads = 1
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [group.create_device(interface=name, lazy_init=False) for name in interfaces] or [
            group.create_device(hostname=addresses[number], lazy_init=False)
        ]
        return Gloo(group(PrefixStore(prefix, self._store), number, len(addresses), options))

    def near(self, prefix: str, rank: int, world_size: int, device: torch.device, timeout_s: float) -> _Group:
        """A process group of NCCL among all ranks, each with a GPU of its own; connected when this returns.

        For memory of the CPU it is one of gloo, on this host. Nothing waits for its operations: where one hangs for
        `timeout_s`, PyTorch's watchdog ends the process. Raises RuntimeError. NCCL was run among ranks that share
        a GPU (tests/gpu), never between GPUs.
        """
        if device.type == "cpu":
            return self.gloo(prefix, rank, [_LOOPBACK] * world_size, (), timeout_s)._group
        library: Any = distributed
        options = library.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        group = library.ProcessGroupNCCL(PrefixStore(prefix, self._store), rank, world_size, options)
        ones = torch.ones(1, device=device)
        group.allreduce([ones]).wait()
        if int(ones.item()) != world_size:
            raise RuntimeError(f"NCCL added {world_size} ones and found {ones.item()}")
        _threaded.add(group)
        return group


class Gloo:
    """See `samovar.transports.leaders.Library`: gloo moves the arrays themselves, around a ring.

    Each chunk is added up once, on one rank.
    """

    def __init__(self, group: _Group) -> None:
        _threaded.add(group)
        self._group = group

    def all_reduce(self, array: Array) -> "_InPlace":
        return _InPlace(self._group.allreduce([torch.from_numpy(array)]))

    def broadcast(self, array: Array) -> "_InPlace":
        return _InPlace(self._group.broadcast(torch.from_numpy(array), 0))

    def all_gather(self, own: Array, gathered: Array) -> "_InPlace":
        parts = [torch.from_numpy(part) for part in gathered]
        return _InPlace(self._group.allgather([parts], [torch.from_numpy(own)]))

    def close(self, left: Sequence[Operation]) -> None:
        if left:
            _keep(self._group)  # its destructor would wait for the operations, which nothing can call off
        for operation in left:  # a thread of gloo's would free the arrays, with an interpreter that may be ending
            _keep(operation)
        del self._group


class _InPlace:
    """See `samovar.transports.leaders.Operation`."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def is_over(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, limit_s: float) -> None:
        self._work.wait(timedelta(seconds=limit_s))


def _keep(thing: object) -> None:
    """Have it go with the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


# A forked process lacks the threads, for which a destructor would wait there, or end the process.
os.register_at_fork(after_in_child=lambda: [*map(_keep, _threaded)])


class NearCollectives:
    """Sums and broadcasts of `samovar.core.near` memory where it is, by a process group of PyTorch's.

    On a device nothing here waits: what the device computes next waits there for the operation. NCCL runs it on a
    stream of its own, behind what the caller's stream was given before. Records travel by `host`, as without a device,
    and tell which ranks are gone. On the CPU, with gloo, `finish` waits.

    Cost: that of the library; a ring's bytes are counted.
    """

    def __init__(self, group: _Group, host: Any, device: torch.device) -> None:
        self.group = host.group
        self.device = device
        self.records = host.records
        self._host = host
        self._process_group = group
        self._last: Work | None = None
        self._num_bytes = 0

    @property
    def bytes_sent(self) -> int:
        return int(self._host.bytes_sent) + self._num_bytes

    @property
    def backend(self) -> str:
        """torch's name of what adds up; "" for a single rank."""
        return "" if self._process_group is None else "gloo" if self.device.type == "cpu" else "nccl"

    def region(self, _name: str, num_bytes: int) -> NearRegion:
        return NearRegion(NearArray(torch.zeros(num_bytes // 4, dtype=torch.float32, device=self.device)))

    def all_reduce(self, name: str, buffer: NearRegion) -> "_NearRun":
        tensor = buffer.array.tensor_N
        return _NearRun(self, f"all-reduce {name!r}", lambda group: group.allreduce([tensor]), 2 * tensor.nbytes)

    def broadcast(self, name: str, buffer: NearRegion) -> "_NearRun":
        tensor = buffer.array.tensor_N
        return _NearRun(self, f"broadcast {name!r}", lambda group: group.broadcast(tensor, 0), tensor.nbytes)

    def begin(self, run: "_NearRun", num_bytes: int) -> Work | None:
        """The operation, which is under way; None for a single rank."""
        world_size = self.group.world_size
        if world_size == 1:
            return None
        self._num_bytes += num_bytes * (world_size - 1) // world_size
        try:
            self._last = run.call(self._process_group)
        except RuntimeError as error:
            raise RankFailed(f"rank {self.group.rank}: {run.what}: {first_line(error)}") from error
        return self._last

    def close(self) -> None:
        """End the connections when the last operations are over; if these hang, they stay with the process.

        They also do at the interpreter's exit, where Python 3.12 begins no thread: a destructor would abort operations.
        """
        group, self._process_group = self._process_group, None
        last, self._last, deadline = self._last, None, Deadline.after(_CLOSING_S)
        if self.device.type == "cpu":  # gloo has nothing to shut down
            return
        with suppress(TimeoutError, RuntimeError):
            if last is None or polled(last.is_completed, deadline, _PAUSE_S):
                within(group.shutdown, deadline)
                return
        _keep(group)


# Connects the devices of all ranks of the given collectives, which all call it together.
ConnectNear: TypeAlias = Callable[[Any], NearCollectives]


class _NearRun:
    """See `samovar.collectives.execute.PlanRunner`."""

    last_steps = 0

    def __init__(self, owner: NearCollectives, what: str, call: Callable[[_Group], Work], num_bytes: int) -> None:
        self.what, self.call = what, call
        self._owner, self._num_bytes = owner, num_bytes
        self._work: Work | None = None

    def run(self, deadline: Deadline) -> None:
        self.start()
        self.finish(deadline)

    def start(self) -> None:
        self._work = self._owner.begin(self, self._num_bytes)

    def finish(self, deadline: Deadline) -> None:
        work, self._work = self._work, None
        if work is None:
            return
        if self._owner.device.type != "cpu":
            work.block_current_stream()
            return
        try:
            work.wait(timedelta(seconds=max(deadline.remaining_s(), 0.001)))
        except RuntimeError as error:
            failed = DeadlineExceeded if deadline.passed() else RankFailed
            raise failed(f"rank {self._owner.group.rank}: {self.what}: {first_line(error)}") from error


def nccl_card(device: torch.device | None) -> tuple[str, str]:
    """NCCL's version and GPU for `device`, as VERSION/GPU, or "" and the reason why it cannot be used."""
    if device is None or device.type != "cuda":
        return "", f"its model is on {device or 'the CPU'}"
    if not distributed.is_nccl_available():
        return "", f"PyTorch {torch.__version__} is built without NCCL there"
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    found = torch.cuda.get_device_properties(device)
    if " MIG " in found.name:
        return "", f"its GPU is a part of one ({found.name}), and NCCL takes whole ones"
    return f"{version}/{found.uuid}", ""
