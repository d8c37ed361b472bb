"""The work of a rank process: its part of the job, and a report to the launcher if it cannot continue."""

import socket
import traceback

import torch

from samovar.config import RunConfig
from samovar.core import errors
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.core.group import Group, rank_names
from samovar.launch.rank_arguments import RankArguments
from samovar.model.device import use_device
from samovar.report.records import Failed, RecordWriter
from samovar.training.context import Boundary, BoxDescriptors, RankContext, SignalRequests, use_cpus
from samovar.training.evaluate_rank import run_evaluation
from samovar.training.time_rank import run_probe, run_timing
from samovar.training.train_rank import run_training
from samovar.transports.hosts import HostsTransport, open_hosts
from samovar.transports.keys import key_path, read_key
from samovar.transports.shm import RunBoard, ShmTransport
from samovar.transports.tcp import TcpTransport

_PARTING_S = 15.0  # others may still read what this rank shows
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
    use_cpus(config.cpus[inside.rank])
    torch.set_num_threads(config.threads_per_worker)
    transport = _transport(given, config, inside)
    box = BoxDescriptors(given.board, given.center) if given.center >= 0 else None
    device = use_device(config.device, inside.rank)
    boundary = Boundary(requests, config.threads_per_worker, writer, given.rank)
    key = None if config.hosts is None else key_path(given.key)
    lasting = transport.lasting() if isinstance(transport, HostsTransport) else transport
    ways = (transport, lasting, writer, boundary.at, requests.is_gone)
    context = RankContext(config, *ways, box, device, given.life, key)
    _JOBS[config.job](context)
    if not isinstance(transport, ShmTransport):
        transport.close(Deadline.after(_PARTING_S))


def _transport(given: RankArguments, config: RunConfig, inside: Group) -> ShmTransport | HostsTransport | TcpTransport:
    """The windows of all ranks: in the memory of this host, and over TCP to other hosts."""
    hosts, is_back = config.hosts, given.life > 0
    names = None if hosts is None else [rank_names(hosts.hosts)[rank] for rank in hosts.of(given.rank).ranks]
    local = ShmTransport(given.segment, inside, oversubscribed=config.oversubscribed, names=names, is_back=is_back)
    if hosts is None:
        return local
    key, listening = read_key(key_path(given.key)), socket.socket(fileno=given.listening)
    return open_hosts(given.rank, hosts, local, listening, key, config.timeout_s)


def _tell(writer: RecordWriter, rank: int, message: str, exit_code: int, error: Exception) -> int:
    # The launcher knows the classes of core.errors alone, not those that a room derives from them.
    kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ in ("builtins", errors.__name__))
    writer.write(Failed(rank=rank, message=message, step=None, exit_code=exit_code, kind=kind))
    return exit_code
