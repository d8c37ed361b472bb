"""The work of a rank process: its part of the job, and a report to the launcher if it cannot continue."""

import faulthandler
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from functools import partial

import torch

from samovar.config import RunConfig
from samovar.core import errors
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.group import Group, rank_names
from samovar.launch.identity import variables_of_gaspi
from samovar.launch.local_group import take_place
from samovar.launch.rank_arguments import RankArguments
from samovar.model.device import use_device
from samovar.report.records import Failed, RecordWriter
from samovar.strategies.traits import AUTO
from samovar.training.context import Boundary, BoxDescriptors, RankContext, SignalRequests
from samovar.training.evaluation import gather
from samovar.training.testing import run_evaluation
from samovar.training.time_rank import run_probe, run_timing
from samovar.training.train_rank import run_training
from samovar.transports.gaspi import GaspiTransport
from samovar.transports.gaspi_library import started_gaspi
from samovar.transports.hosts import HostsTransport, open_hosts
from samovar.transports.keys import key_path, read_key
from samovar.transports.looking import LookingTransport, end_at_once, mpi_windows
from samovar.transports.shm import RunBoard, ShmTransport
from samovar.transports.tcp import TcpTransport

_PARTING_S = 15.0  # others may still read what this rank shows
_LOOPBACK = "127.0.0.1"
_JOBS = {"train": run_training, "test": run_evaluation, "time": run_timing, "probe": run_probe}


def work(given: RankArguments) -> int:
    """Do this rank's part of the job. The exit code is 0, or that of the error that the launcher gets."""
    writer = RecordWriter(given.pipe)
    try:
        _run(given, writer)
    except SamovarError as error:
        return _tell(writer, given.rank, str(error), error.exit_code, error)
    except Exception as error:
        traceback.print_exc()  # into the rank's log
        return _tell(writer, given.rank, f"{type(error).__name__}: {error}", SamovarError.exit_code, error)
    return 0


def _run(given: RankArguments, writer: RecordWriter) -> None:
    config = RunConfig.load(given.config)
    ranks = config.host_of(given.rank).ranks
    inside = Group(ranks.index(given.rank), len(ranks))
    signals = given.segment if given.signals < 0 else given.signals
    requests = SignalRequests(RunBoard(signals, config.workers), Group(given.rank, config.workers))
    if cpus := config.cpus[inside.rank]:
        os.sched_setaffinity(0, cpus)  # of this process, and of the threads that it starts later
    torch.set_num_threads(config.threads_per_worker)
    transport = _transport(given, config, inside)
    box = BoxDescriptors(given.board, given.center) if given.center >= 0 else None
    device = use_device(config.device, inside.rank)
    boundary = Boundary(requests, config.threads_per_worker, writer, given.rank)
    key = None if config.hosts is None else key_path(given.key)
    lasting = transport.lasting() if isinstance(transport, HostsTransport) else transport
    ways = (transport, lasting, writer, boundary.at, requests.is_gone)
    context = RankContext(config, *ways, box, device, given.life, key, partial(requests.meet, given.life))
    _JOBS[config.job](context)
    if isinstance(transport, LookingTransport):
        transport.farewell()
    elif not isinstance(transport, ShmTransport):
        transport.close(Deadline.after(_PARTING_S))


def _transport(
    given: RankArguments, config: RunConfig, inside: Group
) -> ShmTransport | HostsTransport | TcpTransport | LookingTransport:
    """The windows of all ranks: those of a library, or in the memory of this host, and over TCP to other hosts."""
    if config.transport == "mpi":
        return _by_mpi(given, config, inside)
    reached = _own_transport(given, config, inside)
    return reached if config.transport == AUTO else _by_gaspi(given.rank, config, reached)


def _by_mpi(given: RankArguments, config: RunConfig, inside: Group) -> LookingTransport:
    """Its start waits for all ranks, and has no limit of its own."""
    take_place(inside.rank, inside.world_size, Deadline.after(config.timeout_s))
    faulthandler.dump_traceback_later(config.timeout_s, exit=True)
    group, names = Group(given.rank, config.workers), _names(config)
    transport: LookingTransport = mpi_windows().MpiTransport(group, config.timeout_s, names, fail=end_at_once)
    faulthandler.cancel_dump_traceback_later()
    return transport


def _by_gaspi(rank: int, config: RunConfig, reached: ShmTransport | HostsTransport | TcpTransport) -> LookingTransport:
    """Ranks agree on ports by windows in which they reach each other already."""
    if config.hosts is None:
        hosts, addresses = [config.host_of(rank)], [_LOOPBACK] * config.workers
    else:
        hosts, addresses = list(config.hosts.hosts), [address for address, _ in config.hosts.addresses]

    def show(_what: str, row: Sequence[int]) -> list[list[int]]:
        rows = gather(reached, [float(number) for number in row], config.timeout_s)
        return [list(map(int, rows[host.ranks[0]])) for host in hosts]

    deadline = Deadline.after(config.timeout_s)
    library = started_gaspi(rank, hosts, addresses, show, deadline, variables_of_gaspi)
    reached.close()
    return GaspiTransport(Group(rank, config.workers), library, config.timeout_s, _names(config))


def _names(config: RunConfig) -> list[str] | None:
    return None if config.hosts is None else rank_names(config.hosts.hosts)


def _own_transport(
    given: RankArguments, config: RunConfig, inside: Group
) -> ShmTransport | HostsTransport | TcpTransport:
    hosts, is_back, names = config.hosts, given.life > 0, _names(config)
    if hosts is not None and names is not None:
        names = [names[rank] for rank in hosts.of(given.rank).ranks]
    local = ShmTransport(given.segment, inside, oversubscribed=config.oversubscribed, names=names, is_back=is_back)
    if hosts is None:
        return local
    key, listening = read_key(key_path(given.key)), socket.socket(fileno=given.listening)
    return open_hosts(given.rank, hosts, local, listening, key, config.timeout_s)


def _tell(writer: RecordWriter, rank: int, message: str, exit_code: int, error: Exception) -> int:
    # The launcher knows the classes of core.errors alone, not those that a room derives from them.
    kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ in ("builtins", errors.__name__))
    sys.last_value = error  # at the end of this process libraries see that it has failed, as after a traceback
    writer.write(Failed(rank=rank, message=message, step=None, exit_code=exit_code, kind=kind))
    return exit_code
