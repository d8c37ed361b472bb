"""Bringing the ranks of a job together: the collectives of all that are there."""

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache

from samovar.api.gathering import Gathering, Hello, hosts_of
from samovar.collectives.choose import choose_all_reduce
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.hierarchical import HierarchicalCollectives
from samovar.core.calibration import NOMINAL
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.core.hosts import Host
from samovar.launch.identity import Identity, own_identity
from samovar.strategies.config import AUTO, COLLECTIVES
from samovar.transports.interfaces import address_of, addresses_towards, interface_of
from samovar.transports.meeting import is_loopback
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.torch_dist import GlooCollectives, Leader


@dataclass(slots=True)
class Joined:
    """The ranks that train together, in whose collectives this process takes part until `close`."""

    group: Group
    hosts: tuple[Host, ...]
    collectives: Collectives
    _closing: ExitStack = field(repr=False)

    @property
    def host(self) -> Host:
        """The one that this rank runs on."""
        return next(host for host in self.hosts if self.group.rank in host.ranks)

    def close(self) -> None:
        """End what runs in the background and let go of sockets and shared memory; never waits for other ranks.

        Happens at the interpreter's exit where it did not before. Twice is as good as once.
        """
        atexit.unregister(self.close)
        self._closing.close()


def join_group(timeout_s: float, collective: str = AUTO, identity: Identity | None = None) -> Joined:
    """Meet the other ranks, which must all call this, equally often; returns when all are there.

    `collective` names the all-reduce inside a host (AUTO: the best for each buffer by nominal figures) where there is
    one host only; `identity` is read from the environment where it is not given. A single process needs no store and
    no socket.

    Raises InputError where ranks do not fit together, DeadlineExceeded after `timeout_s`, naming who is missing, and
    RankFailed.
    """
    if collective not in COLLECTIVES:
        raise InputError(f"collective: got {collective!r}; choose one of: {', '.join(COLLECTIVES)}")
    identity = identity or own_identity()
    deadline = Deadline.after(timeout_s)
    with ExitStack() as closing:
        if identity.world_size == 1:
            joined = _alone(identity, collective, closing)
        else:
            joined = _together(Gathering(identity, collective, timeout_s, deadline), collective, timeout_s, closing)
        joined._closing = closing.pop_all()
    atexit.register(joined.close)
    return joined


def _alone(identity: Identity, collective: str, closing: ExitStack) -> Joined:
    hellos = [Hello.own(identity, collective)]
    hosts = hosts_of(hellos)
    transport, choose = _inside(create_segment(1), 0, hosts[0], hellos, collective, closing)
    return Joined(Group(0, 1), hosts, PlannedCollectives(transport, choose), closing)


def _together(gathering: Gathering, collective: str, timeout_s: float, closing: ExitStack) -> Joined:
    rank, hosts = gathering.identity.rank, gathering.hosts
    group = Group(rank, gathering.identity.world_size)
    transport, choose = _inside(gathering.segment(), rank, gathering.host, gathering.hellos, collective, closing)
    collectives: Collectives = PlannedCollectives(transport, choose)
    if len(hosts) > 1:
        between = _between(gathering, timeout_s) if rank == gathering.host.ranks[0] else None
        hierarchical = HierarchicalCollectives(transport, group, hosts, between, timeout_s)
        closing.callback(hierarchical.close)
        if between is not None:
            closing.callback(between.close)  # runs first, and ends the waits of the other's thread
        collectives = hierarchical
    gathering.close()
    return Joined(group, hosts, collectives, closing)


def _inside(
    descriptor: int, rank: int, host: Host, hellos: Sequence[Hello], collective: str, closing: ExitStack
) -> tuple[ShmTransport, Callable[[int], str]]:
    """Shared memory among the ranks of a host, and the name of the all-reduce there for a number of bytes."""
    closing.callback(os.close, descriptor)
    cores = {core for local in host.ranks for core in hellos[local].cores}
    oversubscribed = len(host.ranks) > len(cores)
    local = Group(host.ranks.index(rank), len(host.ranks))
    names = [f"rank {number} on {host.name}" for number in host.ranks]
    transport = ShmTransport(descriptor, local, oversubscribed=oversubscribed, names=names)
    closing.callback(transport.close)
    if collective != AUTO:
        return transport, lambda _num_bytes: collective
    return transport, cache(
        lambda num_bytes: choose_all_reduce(NOMINAL, local.world_size, num_bytes, True, oversubscribed)
    )


def _between(gathering: Gathering, timeout_s: float) -> GlooCollectives:
    """The collectives of the hosts' first ranks, of which this is one."""
    identity, number = gathering.identity, gathering.host_number
    numbers = range(len(gathering.hosts))
    first = gathering.tell_and_hear("route", _own_address(identity, identity.address), numbers)
    # A host whose own name leads to loopback takes the address from which it reaches another host.
    outside = next((address for address in first if not is_loopback(address)), None)
    address = _own_address(identity, outside) if is_loopback(first[number]) else first[number]
    if is_loopback(address):
        raise InputError(
            f"{gathering.who}: MASTER_ADDR {identity.address} leads to loopback, but there are "
            f"{len(gathering.hosts)} hosts; set MASTER_ADDR to an address that all reach"
        )
    addresses = gathering.tell_and_hear("address", address, numbers)
    leaders = [Leader(host, of) for host, of in zip(gathering.hosts, addresses, strict=True)]
    if identity.rank == 0:
        _announce(gathering, identity.interfaces or (interface_of(address) or "",), address)
    return GlooCollectives.connect(
        gathering.store,
        f"{gathering.prefix}/gloo",
        number,
        leaders,
        identity.interfaces,
        timeout_s,
        gathering.deadline,
    )


def _own_address(identity: Identity, towards: str | None) -> str:
    """That of the interface which the user named, else the one that leads `towards`."""
    for interface in identity.interfaces:
        if (address := address_of(interface)) is None:
            raise InputError(f"GLOO_SOCKET_IFNAME: interface {interface!r} has no IPv4 address here; see `ip address`")
        return address
    try:
        return addresses_towards(towards or "localhost")[0]
    except OSError as error:
        raise InputError(f"no route to MASTER_ADDR {towards}: {error}; name an address that all hosts reach") from error


def _announce(gathering: Gathering, interfaces: Sequence[str], address: str) -> None:
    ranks = gathering.identity.world_size
    names = ", ".join(filter(None, interfaces))
    place = f"{address} ({names})" if names else address
    print(f"samovar: {ranks} ranks on {len(gathering.hosts)} hosts; between hosts gloo, from {place}", file=sys.stderr)
