"""What PyTorch brings along for ranks on several hosts: its store, where they meet, and gloo's collectives.

The only place below the rooms of training that imports torch.
"""

import ctypes
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Work

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.core.hosts import Host
from samovar.transports.base import Array
from samovar.transports.gloo_cost import all_gather_bytes, broadcast_bytes, ring_all_reduce_bytes
from samovar.transports.meeting import Meeting, await_server, first_line, listen_at, within

_PEER = re.compile(r"\[([^\[\]/ ]+)\]:[0-9]+")
_Gloo: TypeAlias = Any  # torch gives its ProcessGroupGloo no types
# Torch takes no time at all for no limit.
_SHORTEST_WAIT_S = 0.001
# How long a wait goes on after `close`.
_SLICE_S = 0.1


def open_store(
    address: str, port: int, *, serves: bool, listen_descriptor: int | None, who: str, deadline: Deadline
) -> "JobStore":
    """The store at `address`:`port`; `serves` opens it here, on the inherited listening socket where there is one.

    A process that already serves that port (torch's own process group does) shares the store. Raises InputError
    where the address is not ours, DeadlineExceeded where nobody opens it.
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
    return JobStore(store)


class JobStore:
    """The store of a job; it lives as long as this object where it is served here."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store

    def meeting(self, prefix: str, who: str) -> Meeting:
        """The part of the store whose keys begin with `prefix`; `who` begins every error."""
        return Meeting(PrefixStore(prefix, self._store), f"{self._store.host}:{self._store.port}", who)

    def gloo(
        self, prefix: str, number: int, leaders: Sequence["Leader"], interfaces: Sequence[str], timeout_s: float
    ) -> _Gloo:
        """Connect the first ranks of all hosts, each with each; this is that of host `number`.

        It has nothing to do with a process group of the user's own.
        """
        group: _Gloo = ProcessGroupGloo
        options = group._Options()
        # One thread: operations come to an end in the order of their start, the most urgent first.
        options._threads = 1
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [group.create_device(interface=name, lazy_init=False) for name in interfaces] or [
            group.create_device(hostname=leaders[number].address, lazy_init=False)
        ]
        return group(PrefixStore(prefix, self._store), number, len(leaders), options)


@dataclass(frozen=True, slots=True)
class Leader:
    """A host as the others see it: its ranks, of which the first speaks for all, and the address of that one."""

    host: Host
    address: str

    def __str__(self) -> str:
        return str(self.host)


class GlooCollectives:
    """`samovar.transports.base.NativeCollectives` among the first ranks of hosts, over TCP.

    Ranks are numbers of hosts here. Sums are made in the order of gloo's ring: each chunk once, on one rank, so all
    get the same bits, and the same at every run. An operation fails by itself where nothing moves for `timeout_s`.

    Cost: `samovar.transports.gloo_cost`.
    """

    def __init__(self, gloo: _Gloo, number: int, leaders: Sequence[Leader]) -> None:
        self.group = Group(number, len(leaders))
        self.bytes_sent = 0
        self._gloo = gloo
        self._leaders = leaders
        self._pending: list[_GlooPending] = []
        self._closing = threading.Event()

    @classmethod
    def connect(
        cls,
        store: JobStore,
        prefix: str,
        number: int,
        leaders: Sequence[Leader],
        interfaces: Sequence[str],
        timeout_s: float,
        deadline: Deadline,
    ) -> "GlooCollectives":
        """Raises DeadlineExceeded or RankFailed where not all hosts can be reached, naming addresses."""
        others = ", ".join(f"{other} at {other.address}" for k, other in enumerate(leaders) if k != number)
        who = f"{leaders[number]} at {leaders[number].address}: connecting to {others}"
        waiting_s = deadline.remaining_s()
        try:
            gloo = within(lambda: store.gloo(prefix, number, leaders, interfaces, timeout_s), deadline)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{who}: not done within {waiting_s:.1f} s; do the hosts reach each other at these addresses, any "
                "port? Name the interface with GLOO_SOCKET_IFNAME"
            ) from error
        except RuntimeError as error:
            raise RankFailed(f"{who}: {first_line(error)}; name the interface with GLOO_SOCKET_IFNAME") from error
        return cls(gloo, number, leaders)

    def all_reduce(self, what: str, array: Array) -> "_GlooPending":
        number, world_size = self.group.rank, self.group.world_size
        self.bytes_sent += ring_all_reduce_bytes(number, world_size, array.nbytes, array.itemsize)
        return self._begun(f"all-reduce {what!r}", self._gloo.allreduce([torch.from_numpy(array)]))

    def broadcast(self, what: str, array: Array) -> "_GlooPending":
        self.bytes_sent += broadcast_bytes(self.group.rank, self.group.world_size, array.nbytes)
        return self._begun(f"broadcast {what!r}", self._gloo.broadcast(torch.from_numpy(array), 0))

    def all_gather(self, what: str, own: Array, gathered: Array) -> "_GlooPending":
        assert gathered.shape == (self.group.world_size, *own.shape), (gathered.shape, own.shape)
        self.bytes_sent += all_gather_bytes(self.group.world_size, own.nbytes)
        parts = [torch.from_numpy(part) for part in gathered]
        return self._begun(f"all-gather {what!r}", self._gloo.allgather([parts], [torch.from_numpy(own)]))

    def close(self) -> None:
        """Let go of the connections; where an operation still hangs, they go with the process instead.

        Waits for operations end at once.
        """
        self._closing.set()
        if any(not pending.is_over() for pending in self._pending):
            # Its destructor would wait for the operation, which nothing can call off.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._gloo))
        self._pending.clear()
        del self._gloo

    def _begun(self, what: str, work: Work) -> "_GlooPending":
        self._pending = [pending for pending in self._pending if not pending.is_over()]
        self._pending.append(_GlooPending(what, work, self.group.rank, self._leaders, self._closing))
        return self._pending[-1]


class _GlooPending:
    """See `samovar.transports.base.Pending`."""

    def __init__(self, what: str, work: Work, number: int, leaders: Sequence[Leader], closing: threading.Event) -> None:
        self._what = what
        self._closing = closing
        self._work = work
        self._own = leaders[number].host
        self._others = [leader for k, leader in enumerate(leaders) if k != number]
        self._began_s = time.monotonic()

    def is_over(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, deadline: Deadline) -> None:
        while True:
            # An operation that ends while a slice of this wait gives up is asked again how it ended.
            was_over = self.is_over()
            try:
                self._work.wait(timedelta(seconds=min(max(deadline.remaining_s(), _SHORTEST_WAIT_S), _SLICE_S)))
                return
            except RuntimeError as error:
                if was_over or deadline.passed() or self._closing.is_set():
                    raise self._failure(error) from error

    def _failure(self, error: RuntimeError) -> SamovarError:
        """Gloo tells a closed connection by the peer's address, and a silent peer not at all."""
        who = f"rank {self._own.ranks[0]} on {self._own.name}: {self._what} between hosts"
        after_s = time.monotonic() - self._began_s
        if not self.is_over() or "imed out" in str(error):
            silent = " or ".join(map(str, self._others))
            return DeadlineExceeded(
                f"{who}: {silent} did not answer within {after_s:.1f} s; is it stopped, cut off or much slower? "
                "See its log, or raise timeout_s"
            )
        found = _PEER.search(str(error))
        gone = [leader for leader in self._others if found is not None and leader.address == found[1]] or self._others
        named = " or ".join(map(str, gone))
        return RankFailed(f"{who}: {named} closed the connection after {after_s:.1f} s ({_reason(error)}); see its log")


def _reason(error: RuntimeError) -> str:
    """What gloo says, without the place in its source before and the advice behind."""
    return re.sub(r"^\[[^]]*\] ?", "", first_line(error)).partition(". This is")[0]
