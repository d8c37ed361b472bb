"""Processes of one host that torchrun, mpiexec or srun started: the first runs the host's workers for all of them.

The others give it their cores, wait, and end as it does.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.launch.identity import Identity, launcher_process, own_identity
from samovar.transports import unix_sockets

_RETRY_S = 0.05
_END_S = 5.0
# What the launcher of MPI tells a process, and the variable with the descriptor of their connection.
_OF_MPI = ("PMI", "OMPI_", "PRTE_", "MPI", "HYD", "I_MPI_", "SLURM_")
_CONNECTION = "PMI_FD"
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def leads_host(identity: Identity) -> bool:
    """Whether this process runs the workers of its host. If its launcher does not say, each is as a host of its own."""
    return identity.local_rank in (0, None) or identity.local_world_size is None


def num_local(identity: Identity) -> int:
    """The processes for which the first one of this host runs workers."""
    return 1 if identity.local_rank is None else identity.local_world_size or 1


@contextmanager
def local_group(identity: Identity, timeout_s: float, *, for_mpi: bool = False) -> Iterator[list[socket.socket]]:
    """The connections to this host's other processes, of which this one is the first.

    Inside, this process may use the cores of all, and `for_mpi` its ranks may take their places. Raises
    DeadlineExceeded if one does not come.
    """
    before = os.sched_getaffinity(0)
    with ExitStack() as stack:
        others = _gathered(identity, num_local(identity) - 1, timeout_s, stack)
        cpus = before.union(*(set(message.content["cpus"]) for _, message in others))
        if for_mpi:
            own = _introduction(identity, for_mpi=True)
            stack.enter_context(_offered(identity, [own, *(message for _, message in others)]))
        with suppress(OSError):  # a control group may hold it to fewer
            os.sched_setaffinity(0, cpus)
        try:
            yield [connection for connection, _ in others]
        finally:
            os.sched_setaffinity(0, before)


@contextmanager
def _offered(identity: Identity, processes: Sequence[unix_sockets.LocalMessage]) -> Iterator[None]:
    """The places of this host's processes at MPI's launcher, for ranks that this process starts; see `take_place`."""
    ordered = sorted(processes, key=lambda process: process.content["number"])
    with _file_of([process.content["told"] for process in ordered]) as told:
        connections = [process.descriptors[0] if process.descriptors else told for process in ordered]
        with unix_sockets.offer_files(_address(identity).encode(), (told, *connections)):
            yield


@contextmanager
def _file_of(content: object) -> Iterator[int]:
    """The descriptor of a file in memory, for others to read."""
    with os.fdopen(os.memfd_create("samovar"), "wb") as file:
        file.write(json.dumps(content).encode())
        file.flush()
        yield file.fileno()


def _read(descriptor: int) -> Any:
    return json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))


def take_place(number: int, count: int, deadline: Deadline) -> None:
    """Let this rank, `number` of `count` on its host, start MPI as if MPI's launcher had started it.

    It gets the variables of a process that the launcher started, and that one's connection to the launcher. A shell
    passes the same to the program that it runs. Raises as `join_files`.
    """
    told, *connections = unix_sockets.join_files(_address(own_identity()).encode(), 1 + count, deadline)
    variables = _read(told)[number]
    own = connections.pop(number)
    for descriptor in (told, *connections):
        os.close(descriptor)
    os.environ.update(variables)
    if _CONNECTION in variables:
        os.environ[_CONNECTION] = str(own)


def tell(others: list[socket.socket], outcome: Mapping[str, Any]) -> None:
    """Let the others end, with this outcome. A file holds it: the figures of many workers are longer than a message."""
    with _file_of(outcome) as told:
        for connection in others:
            with suppress(SamovarError):  # its launcher may have ended it
                unix_sockets.send(connection, {}, Deadline.after(_END_S), [told])


def await_first(identity: Identity, timeout_s: float, *, for_mpi: bool = False) -> Mapping[str, Any]:
    """The outcome of the run, from the first process of this host. A rank takes this one's place `for_mpi`.

    Signals are for that one, which the launcher signals too. Raises RankFailed if it ends without a word.
    """
    connection = _connected(identity, Deadline.after(timeout_s))
    with connection, _ignoring():
        own = _introduction(identity, for_mpi=for_mpi)
        unix_sockets.send(connection, own.content, Deadline.after(_END_S), own.descriptors)
        try:
            with closing(unix_sockets.receive(connection, FOR_EVER)) as message:
                outcome: Mapping[str, Any] = _read(message.descriptors[0])
                return outcome
        except SamovarError as error:
            raise RankFailed(
                f"rank {identity.rank}: the first process of this host, which runs its workers, ended without a word; "
                "see its log"
            ) from error


def _introduction(identity: Identity, *, for_mpi: bool) -> unix_sockets.LocalMessage:
    """The cores of this process, and `for_mpi` its place at MPI's launcher."""
    told = {name: value for name, value in os.environ.items() if for_mpi and name.startswith(_OF_MPI)}
    content = {"number": identity.local_rank or 0, "cpus": sorted(os.sched_getaffinity(0)), "told": told}
    return unix_sockets.LocalMessage(content, [int(told[_CONNECTION])] if _CONNECTION in told else [])


def _gathered(
    identity: Identity, count: int, timeout_s: float, stack: ExitStack
) -> list[tuple[socket.socket, unix_sockets.LocalMessage]]:
    others: list[tuple[socket.socket, unix_sockets.LocalMessage]] = []
    if count == 0:
        return others
    listener, deadline = stack.enter_context(unix_sockets.listen(_address(identity))), Deadline.after(timeout_s)
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
            message = unix_sockets.receive(connection, deadline)
            stack.callback(message.close)
            others.append((connection, message))
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
