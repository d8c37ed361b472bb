"""Connects the ranks of a job, and gives the collectives of all of them."""

import atexit
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import torch

from samovar.api.connect_hosts import (
    connected_by_library,
    connected_by_tcp,
    connected_leaders,
    connected_near,
    host_addresses,
)
from samovar.api.emulated import Emulated, connected_emulated
from samovar.api.heartbeats import Heartbeats
from samovar.api.rendezvous import Choice, Gathering, RankHello, hosts_of
from samovar.collectives.cost import choose_all_reduce
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, require_choice
from samovar.core.group import Group, Host
from samovar.core.machine import NOMINAL
from samovar.core.modules import require_optional
from samovar.launch.identity import LIBRARIES, TRANSPORTS, Identity, identity_in_group, own_identity
from samovar.membership.job_center import Home
from samovar.membership.session import KeptCenter
from samovar.strategies.config import COLLECTIVES
from samovar.strategies.traits import AUTO
from samovar.transports.gaspi_library import gaspi_library
from samovar.transports.keys import make_key
from samovar.transports.looking import LookingTransport
from samovar.transports.processes import PeerProcess
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.torch_dist import ConnectNear, JobStore, default_group


@dataclass(slots=True)
class Joined:
    """The ranks that train together. This process takes part in their collectives until `close`.

    They exchange between `hosts`. If `is_one_host`, they may do so as if each had a host of its own. `home` is the
    place for a center of theirs. `heartbeats` says which waits continue. `connect_near` connects the devices of all
    ranks; None if they cannot be. `emulated` is set if `hosts` are those of a described cluster.
    """

    group: Group
    hosts: tuple[Host, ...]
    is_one_host: bool
    collectives: Collectives
    home: Home
    heartbeats: Heartbeats
    connect_near: ConnectNear | None = None
    emulated: Emulated | None = None
    _closing: ExitStack = field(default_factory=ExitStack, repr=False)
    _process_id: int = field(default_factory=os.getpid, repr=False)

    @property
    def host(self) -> Host:
        """The host that this rank runs on."""
        return next(host for host in self.hosts if self.group.rank in host.ranks)

    def at_close(self, call: Callable[[], None]) -> None:
        self._closing.callback(call)

    def close(self) -> None:
        """End background work, and release sockets and shared memory. Never waits for other ranks.

        The interpreter's exit calls it too. A second call does nothing, nor does one in a forked process: it has the
        sockets of its parent, and not the threads, for which it would wait.
        """
        atexit.unregister(self.close)
        if os.getpid() == self._process_id:
            self._closing.close()


def join_group(
    timeout_s: float,
    collective: str = AUTO,
    identity: Identity | None = None,
    transport: str = AUTO,
    key_file: Path | None = None,
    device: torch.device | None = None,
) -> Joined:
    """Meet the other ranks. All ranks call this equally often, and it returns when all have come.

    `transport` `auto` is `shm` on one host and `gloo` between several; `shm` is refused between hosts. Ranks with their
    own GPUs may exchange there by NCCL, which `nccl` demands. `device` is the model's (None: the CPU).
    `gloo` and `tcp` take each rank of a single host for a host of its own. `mpi` needs MPI's start, `gaspi` GPI-2.

    `key_file` is the job's key, for `tcp` and for a center between hosts. It is the same on all hosts, and rank 0 makes
    it if it is missing. Without it the ranks of a single host make a key that no file has. `collective` names the
    all-reduce (AUTO: the best for each buffer by nominal figures). Between hosts only `tcp` uses it. Arguments that are
    left out come from the environment. If the program has opened a process group of torch.distributed, its ranks are
    those of that group, and they meet in its store.

    Raises InputError if ranks do not fit together, RankFailed, and after `timeout_s` DeadlineExceeded with the missing
    ranks.
    """
    require_choice("collective", collective, COLLECTIVES)
    identity, store = (identity, None) if identity is not None else _found()
    choice = Choice(collective, _chosen_transport(transport, identity), key_file or identity.key_file, device)
    deadline = Deadline.after(timeout_s)
    with ExitStack() as closing:
        if identity.world_size == 1 or identity.life:
            joined = _alone(identity, choice, closing)
        else:
            if choice.transport == "tcp" and identity.rank == 0 and choice.key_file:
                make_key(choice.key_file)
            gathering = Gathering(identity, choice, timeout_s, deadline, store)
            processes = gathering.take_processes(closing)
            joined = _together(gathering, processes, timeout_s, closing)
            joined.connect_near = connected_near(gathering, timeout_s, joined.at_close)
        joined._closing = closing.pop_all()
    atexit.register(joined.close)
    return joined


def _found() -> tuple[Identity, JobStore | None]:
    """This process's rank, and the store of the process group that the program has opened itself, if any."""
    there = default_group()
    if there is None:
        return own_identity(), None
    rank, world_size, store = there
    found = identity_in_group(rank, world_size, store.address)
    if found.emulation is not None:
        raise InputError(
            "samovar run --emulate: the script has opened a process group of torch.distributed, whose messages are not "
            "shaped; leave init_process_group out, or start it without --emulate"
        )
    return found, store


def _chosen_transport(given: str, identity: Identity) -> str:
    require_choice("transport", given, TRANSPORTS)
    of_environment = identity.transport
    if AUTO not in (given, of_environment) and given != of_environment:
        raise InputError(
            f"transport: the script says {given!r}, and SAMOVAR_TRANSPORT or `samovar run --transport` "
            f"{of_environment!r}; leave one of them out"
        )
    chosen = of_environment if given == AUTO else given
    if identity.emulation is not None and chosen != AUTO:
        raise InputError(f"transport {chosen!r}: under samovar run --emulate ranks exchange in memory; leave it out")
    if chosen == "mpi":
        require_optional("mpi4py")
    elif chosen == "gaspi":
        gaspi_library()
    return chosen


def _alone(identity: Identity, choice: Choice, closing: ExitStack) -> Joined:
    """A single process, or a rank that was started again alone: it reaches the center of its job, and no other rank."""
    rank, world_size = identity.rank, identity.world_size
    hellos = [RankHello.own(identity, choice)] * world_size
    hosts = hosts_of(hellos)
    transport, choose = _inside(create_segment(world_size), rank, hosts[0], hellos, choice.collective, closing)
    transport.watch_nobody(
        f"rank {rank} was started again, and reaches only the center: mean(), gather(), barrier() and all else that "
        "waits for other ranks is impossible; leave it out under samovar run --keep-going"
    )
    collectives, home = PlannedCollectives(transport, choose), Home(tuple(range(world_size)), kept=_kept(identity))
    return Joined(Group(rank, world_size), hosts, True, collectives, home, Heartbeats())


def _kept(identity: Identity) -> KeptCenter | None:
    return None if identity.kept_files is None else KeptCenter(*identity.kept_files, identity.life)


def _together(gathering: Gathering, processes: dict[int, PeerProcess], timeout_s: float, closing: ExitStack) -> Joined:
    rank, hosts, choice = gathering.identity.rank, gathering.hosts, gathering.choice
    group = Group(rank, gathering.identity.world_size)
    if len(hosts) > 1 and choice.transport == "shm":
        raise InputError(
            f"{gathering.who}: transport 'shm' is for one host, and ranks run on {', '.join(map(str, hosts))}; "
            "choose auto, gloo, nccl, tcp, mpi or gaspi"
        )
    inside: PlannedCollectives | None = None
    if choice.transport != "tcp" or any(len(host.ranks) > 1 for host in hosts):
        segment = gathering.segment()
        local, choose = _inside(segment, rank, gathering.host, gathering.hellos, choice.collective, closing)
        short = [f"rank {number}" for number in gathering.host.ranks]
        local.watch(short if gathering.is_one_host else local.names, processes)
        inside = PlannedCollectives(local, choose)
    addresses = host_addresses(gathering) if len(hosts) > 1 or choice.transport == "gaspi" else []
    heartbeats = Heartbeats(gathering.rendezvous)
    closing.callback(heartbeats.close)
    collectives: Collectives
    emulated, emulation = None, gathering.identity.emulation
    if emulation is not None:
        assert inside is not None
        collectives, hosts, emulated = connected_emulated(emulation, inside.transport, choice.collective, closing)
    else:
        collectives = _of_all(gathering, addresses, inside, timeout_s, heartbeats, closing)
    gathering.close()
    home = Home(tuple(range(group.world_size)), kept=_kept(gathering.identity))
    if not gathering.is_one_host:
        over = getattr(collectives, "transport", None)
        windows = over if isinstance(over, LookingTransport) else None
        home = Home(hosts[0].ranks, addresses[0], choice.key_file, windows=windows)
    return Joined(group, hosts, gathering.is_one_host, collectives, home, heartbeats, emulated=emulated)


def _of_all(
    gathering: Gathering,
    addresses: list[str],
    inside: PlannedCollectives | None,
    timeout_s: float,
    heartbeats: Heartbeats,
    closing: ExitStack,
) -> Collectives:
    """The collectives of all ranks. Those `inside` a host share memory, unless each is taken for a host of its own."""
    local = None if inside is None else inside.transport
    assert local is None or isinstance(local, ShmTransport), local
    if gathering.choice.transport == "tcp":
        return connected_by_tcp(gathering, addresses, local, timeout_s, heartbeats, closing)
    assert inside is not None
    assert local is not None
    if gathering.choice.transport in LIBRARIES:
        return connected_by_library(gathering, addresses, inside, timeout_s, heartbeats, closing)
    if len(gathering.hosts) == 1:
        return inside
    between, group = connected_leaders(gathering, addresses), Group(gathering.identity.rank, len(gathering.hellos))
    deadline = partial(heartbeats.deadline, timeout_s)
    collectives = HierarchicalCollectives(local, group, gathering.hosts, between, deadline)
    closing.callback(collectives.close)
    if between is not None:
        closing.callback(between.close)  # runs first, and ends the waits of the other's thread
    return collectives


def _inside(
    descriptor: int, rank: int, host: Host, hellos: Sequence[RankHello], collective: str, closing: ExitStack
) -> tuple[ShmTransport, Callable[[int], str]]:
    """Shared memory among the ranks of a host, and the name of the all-reduce there for a number of bytes."""
    closing.callback(os.close, descriptor)
    cores = {core for local in host.ranks for core in hellos[local].cores}
    oversubscribed = len(host.ranks) > len(cores) or hellos[rank].is_emulated
    local = Group(host.ranks.index(rank), len(host.ranks))
    names = [f"rank {number} on {host.name}" for number in host.ranks]
    maps = hellos[rank].transport not in LIBRARIES
    return shared_memory(descriptor, local, names, collective, closing, oversubscribed=oversubscribed, maps=maps)


def shared_memory(
    descriptor: int,
    group: Group,
    names: Sequence[str],
    collective: str,
    closing: ExitStack,
    *,
    oversubscribed: bool,
    maps: bool = True,
) -> tuple[ShmTransport, Callable[[int], str]]:
    """Shared memory among these ranks, and the name of the all-reduce there for a number of bytes.

    Unless it `maps` what is summed, that is a plan of messages.
    """
    transport = ShmTransport(descriptor, group, oversubscribed=oversubscribed, names=names)
    closing.callback(transport.close)
    if collective != AUTO:
        return transport, lambda _num_bytes: collective
    return transport, cache(
        lambda num_bytes: choose_all_reduce(NOMINAL, group.world_size, num_bytes, maps, oversubscribed)
    )
