"""Processes of one host that torchrun, mpiexec or srun started: the first runs the host's workers for all of them.

The others give it their cores, wait, and end as it does.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.launch.identity import Identity, launcher_process
from samovar.transports import unix_sockets

_RETRY_S = 0.05
_END_S = 5.0
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def leads_host(identity: Identity) -> bool:
    """Whether this process runs the workers of its host. If its launcher does not say, each is as a host of its own."""
    return identity.local_rank in (0, None) or identity.local_world_size is None


def num_local(identity: Identity) -> int:
    """The processes for which the first one of this host runs workers."""
    return 1 if identity.local_rank is None else identity.local_world_size or 1


@contextmanager
def local_group(identity: Identity, timeout_s: float) -> Iterator[list[socket.socket]]:
    """The connections to this host's other processes, of which this one is the first.

    Inside, this process may use the cores of all. Raises DeadlineExceeded if one does not come.
    """
    count = num_local(identity) - 1
    if count == 0:
        yield []
        return
    before = os.sched_getaffinity(0)
    with ExitStack() as stack:
        listener = stack.enter_context(unix_sockets.listen(_address(identity)))
        others = _gathered(listener, count, timeout_s, stack)
        cpus = before.union(*(set(cpus) for _, cpus in others))
        with suppress(OSError):  # a control group may hold it to fewer
            os.sched_setaffinity(0, cpus)
        try:
            yield [connection for connection, _ in others]
        finally:
            os.sched_setaffinity(0, before)


def tell(others: list[socket.socket], outcome: Mapping[str, Any]) -> None:
    """Let the others end, with this outcome."""
    for connection in others:
        with suppress(SamovarError):  # its launcher may have ended it
            unix_sockets.send(connection, outcome, Deadline.after(_END_S))


def await_first(identity: Identity, timeout_s: float) -> Mapping[str, Any]:
    """The outcome of the run, from the first process of this host.

    Signals are for that one, which the launcher signals too. Raises RankFailed if it ends without a word.
    """
    connection = _connected(identity, Deadline.after(timeout_s))
    with connection, _ignoring():
        unix_sockets.send(connection, {"cpus": sorted(os.sched_getaffinity(0))}, Deadline.after(_END_S))
        try:
            return unix_sockets.receive(connection, FOR_EVER).content
        except SamovarError as error:
            raise RankFailed(
                f"rank {identity.rank}: the first process of this host, which runs its workers, ended without a word; "
                "see its log"
            ) from error


def _gathered(
    listener: socket.socket, count: int, timeout_s: float, stack: ExitStack
) -> list[tuple[socket.socket, list[int]]]:
    deadline = Deadline.after(timeout_s)
    others: list[tuple[socket.socket, list[int]]] = []
    while len(others) < count:
        listener.settimeout(deadline.timeout_s())
        try:
            connection = stack.enter_context(listener.accept()[0])
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{len(others) + 1} of {count + 1} processes of this host came within {timeout_s:.1f} s; see the logs "
                "of the others"
            ) from error
        if unix_sockets.user_process(connection) is not None:
            others.append((connection, unix_sockets.receive(connection, deadline).content["cpus"]))
    return others


def _connected(identity: Identity, deadline: Deadline) -> socket.socket:
    waiting_s = deadline.remaining_s()
    while not deadline.passed():
        if (connection := unix_sockets.connect(_address(identity), deadline)) is not None:
            return connection
        time.sleep(min(_RETRY_S, deadline.remaining_s()))
    raise DeadlineExceeded(
        f"rank {identity.rank}: the first process of this host did not come within {waiting_s:.1f} s; see its log"
    )


def _address(identity: Identity) -> str:
    """Its launcher's process on this host is what they have in common."""
    return f"samovar-host-{os.getuid()}-{launcher_process()}-{identity.attempt}"


@contextmanager
def _ignoring() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_one_per_host(identity: Identity, workers: int | str) -> bool:
    """Whether the launcher started one process a host, each for `workers` workers.

    Raises InputError if workers were given, but the launcher started one process for each.
    """
    if workers in (1, "1"):
        return False
    if num_local(identity) > 1 or identity.local_rank is None:
        raise InputError(
            f"--workers {workers}: {identity.launcher} started {identity.world_size} processes, and each is a worker; "
            "leave --workers out, or start one process on each host"
        )
    return True
