"""Connects ranks of several hosts that have met: hosts' first ranks by gloo, or all by NCCL, TCP, MPI or GASPI."""

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from socket import socket

from samovar.api.figures_wanted import say
from samovar.api.heartbeats import Heartbeats
from samovar.api.rendezvous import Gathering, RankHello
from samovar.collectives.cost import chosen_between, require_messages
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed
from samovar.core.group import Group, JobHosts, consecutive_sizes, rank_names
from samovar.core.machine import NOMINAL
from samovar.launch.identity import Identity, variables_of_gaspi
from samovar.strategies.traits import AUTO
from samovar.transports.gaspi import GaspiTransport
from samovar.transports.gaspi_library import GaspiLibrary, started_gaspi
from samovar.transports.hosts import open_hosts
from samovar.transports.keys import Key, key_path, make_key_in_memory, read_key
from samovar.transports.leaders import Leader, LeaderCollectives, Library
from samovar.transports.looking import mpi_windows
from samovar.transports.rendezvous import address_of, addresses_towards, first_line, interface_of, is_loopback, within
from samovar.transports.shm import ShmTransport
from samovar.transports.tcp import meet
from samovar.transports.tcp_listen import address_of as listening_address
from samovar.transports.tcp_listen import listen
from samovar.transports.torch_dist import ConnectNear, NearCollectives

# Those who wait have a limit of their own, which heartbeats prolong. This one would end an exchange with a busy rank.
_GLOO_LIMIT_S = 86_400.0


def connected_leaders(gathering: Gathering, addresses: Sequence[str]) -> LeaderCollectives | None:
    """The collectives of the hosts' first ranks, by gloo; None on the others. `addresses` are the hosts'."""
    identity, number = gathering.identity, gathering.host_number
    if identity.rank != gathering.host.ranks[0]:
        return None
    leaders = [Leader(host, of) for host, of in zip(gathering.hosts, addresses, strict=True)]
    _announce(gathering, "gloo", _from(identity, addresses[0]))

    def make() -> Library:
        return gathering.store.gloo(f"{gathering.prefix}/gloo", number, addresses, identity.interfaces, _GLOO_LIMIT_S)

    advice = "name the interface with GLOO_SOCKET_IFNAME"
    return LeaderCollectives.connect(make, number, leaders, advice, gathering.deadline)


def lacks_nccl(hellos: Sequence[RankHello]) -> str:
    """Why ranks cannot exchange by NCCL, from their own reports; "" if they can."""
    for rank, hello in enumerate(hellos):
        if not hello.card:
            return f"rank {rank} on {hello.name}: {hello.no_card}"
    versions = sorted({hello.card.partition("/")[0] for hello in hellos})
    if len(versions) > 1:
        return f"ranks have different versions of it, {' and '.join(versions)}"
    cards = [hello.card for hello in hellos]
    for rank, card in enumerate(cards):
        if (first := cards.index(card)) != rank:
            return f"ranks {first} and {rank} compute on the same GPU, and NCCL takes one rank on each"
    return ""


def connected_near(
    gathering: Gathering, timeout_s: float, at_close: Callable[[Callable[[], None]], None]
) -> ConnectNear | None:
    """A function that connects the devices of all ranks by NCCL; None if it is lacking or another transport named.

    Raises InputError if NCCL is named and a rank lacks it.
    """
    lacking, transport, device = lacks_nccl(gathering.hellos), gathering.choice.transport, gathering.choice.device
    if transport == "nccl" and lacking:
        raise InputError(f"{gathering.who}: transport 'nccl' is impossible: {lacking}; give auto, shm or gloo")
    identity = gathering.identity
    if lacking or device is None or transport not in (AUTO, "nccl"):
        if device is not None and device.type == "cuda" and transport == AUTO and identity.rank == 0:
            say(f"models are copied through the host's memory: {lacking}")
        return None
    store, prefix, who = gathering.store, f"{gathering.prefix}/near", gathering.who

    def connect(collectives: Collectives) -> NearCollectives:
        _announce(gathering, "nccl between their GPUs, tested on one GPU only")

        def make() -> NearCollectives:
            group = store.near(prefix, identity.rank, identity.world_size, device, timeout_s)
            return NearCollectives(group, collectives, device)

        try:
            near = within(make, Deadline.after(timeout_s))
        except (TimeoutError, RuntimeError) as error:
            raise RankFailed(
                f"{who}: NCCL does not connect the GPUs: {first_line(error) or 'not in time'}; name the interface with "
                "NCCL_SOCKET_IFNAME, or give transport gloo (shm on one host), which copies through the host's memory"
            ) from error
        at_close(near.close)
        return near

    return connect


def connected_by_tcp(
    gathering: Gathering,
    addresses: Sequence[str],
    local: ShmTransport | None,
    timeout_s: float,
    heartbeats: Heartbeats,
    closing: ExitStack,
) -> PlannedCollectives:
    """Our own plans over windows of all ranks. Those of this host are in `local`, if there is one."""
    identity, host_sizes = gathering.identity, _host_sizes(gathering)
    key = _key(gathering)
    _announce(gathering, "tcp, encrypted", _from(identity, addresses[0]))
    listening, job = _met(gathering, addresses[gathering.host_number])
    transport = open_hosts(identity.rank, job, local, listening, key, timeout_s, heartbeats.deadline)
    closing.callback(transport.close)
    plan = plan_between(gathering.choice.collective, host_sizes, identity.world_size)
    return PlannedCollectives(transport, plan, host_sizes)


def connected_by_library(
    gathering: Gathering,
    addresses: Sequence[str],
    inside: PlannedCollectives,
    timeout_s: float,
    heartbeats: Heartbeats,
    closing: ExitStack,
) -> PlannedCollectives:
    """Our own plans over a library's windows of all ranks. Those `inside` a host see there how others end."""
    sizes, local = _host_sizes(gathering), inside.transport
    assert isinstance(local, ShmTransport), local
    group = Group(gathering.identity.rank, gathering.identity.world_size)
    places = {rank: place for place, rank in enumerate(gathering.host.ranks)}
    if gathering.choice.transport == "mpi":
        mpi = mpi_windows()
        transport, means = mpi.MpiTransport, f"MPI ({mpi.described()})"
    else:
        library = _started_gaspi(gathering, addresses)
        transport, means = partial(GaspiTransport, library=library), f"GASPI (GPI-2, {library.network})"
    opened = transport(
        group, timeout_s=timeout_s, names=rank_names(gathering.hosts), deadline_after=heartbeats.deadline
    )
    opened.lost_elsewhere = lambda rank: local.lost(places[rank]) if rank in places else None
    opened.give_up = lambda rank: local.lost(places[rank], tells=True) if rank in places else None
    closing.callback(opened.close)
    _announce(gathering, means)
    if gathering.is_one_host:
        return PlannedCollectives(opened, inside.all_reduce_name)
    return PlannedCollectives(opened, plan_between(gathering.choice.collective, sizes, group.world_size), sizes)


def plan_between(collective: str, sizes: Sequence[int] | None, world_size: int) -> Callable[[int], str]:
    """The name of the all-reduce for a number of bytes, among hosts with these numbers of ranks."""
    return chosen_between(NOMINAL, sizes, world_size) if collective == AUTO else lambda _num_bytes: collective


def _started_gaspi(gathering: Gathering, addresses: Sequence[str]) -> GaspiLibrary:
    leads = gathering.identity.rank == gathering.host.ranks[0]

    def show(kind: str, row: Sequence[int]) -> list[list[int]]:
        own = " ".join(map(str, row)) if leads else None
        told = gathering.tell_and_hear(kind, own, range(len(gathering.hosts)))
        return [[int(word) for word in words.split()] for words in told]

    of_rank = {rank: address for host, address in zip(gathering.hosts, addresses, strict=True) for rank in host.ranks}
    places = [of_rank[rank] for rank in sorted(of_rank)]
    rank, deadline = gathering.identity.rank, gathering.deadline
    return started_gaspi(rank, gathering.hosts, places, show, deadline, variables_of_gaspi)


def _host_sizes(gathering: Gathering) -> tuple[int, ...] | None:
    """The ranks of each host, where they are consecutive. Raises InputError if the plan cannot run among them."""
    require_messages(gathering.choice.collective)
    sizes = consecutive_sizes(gathering.hosts)
    if gathering.choice.collective == "two-level" and sizes is None:
        raise InputError(
            f"{gathering.who}: two-level needs consecutive ranks on each host, and they run on "
            f"{', '.join(map(str, gathering.hosts))}; choose another collective, or auto"
        )
    return sizes


def _met(gathering: Gathering, own_address: str) -> tuple[socket, JobHosts]:
    """A socket at which this rank listens, only at the address of its host, and where all ranks do."""
    identity = gathering.identity
    listening = listen(own_address)
    group = Group(identity.rank, identity.world_size)
    reached = meet(gathering.rendezvous, group, listening_address(listening), gathering.deadline)
    job = gathering.tell_and_hear("job", secrets.token_hex(16) if identity.rank == 0 else None, [0])[0]
    return listening, JobHosts(job, gathering.hosts, tuple(reached))


def _key(gathering: Gathering) -> Key:
    """The job's key, from the file. On a single host, rank 0 makes one for the ranks of this user."""
    if gathering.choice.key_file is not None:
        return read_key(gathering.choice.key_file)
    if not gathering.is_one_host:
        raise InputError(
            f"{gathering.who}: tcp between hosts needs a key that all of them have. Name its file by SAMOVAR_KEY_FILE "
            "or `samovar run --key-file`. If there is none, rank 0 makes it: copy it to the other hosts and start again"
        )
    ranks = range(gathering.identity.world_size)
    descriptor = gathering.shared_descriptor("key", ranks, make_key_in_memory)
    try:
        return read_key(key_path(descriptor))
    finally:
        os.close(descriptor)


def host_addresses(gathering: Gathering) -> list[str]:
    """The address of each host, for all ranks. The first rank of each host finds it.

    On a single host it is loopback, unless an interface is named.
    """
    identity, number = gathering.identity, gathering.host_number
    numbers = range(len(gathering.hosts))
    leads = identity.rank == gathering.host.ranks[0]
    towards = "localhost" if gathering.is_one_host else identity.address
    first = gathering.tell_and_hear("route", _own_address(identity, towards) if leads else None, numbers)
    if not leads:
        return gathering.tell_and_hear("address", None, numbers)
    # A host whose own name leads to loopback takes the address from which it reaches another host.
    outside = next((address for address in first if not is_loopback(address)), None)
    address = _own_address(identity, outside) if is_loopback(first[number]) else first[number]
    if is_loopback(address) and not gathering.is_one_host:
        place = f"MASTER_ADDR {identity.address}" if identity.address else "the store of the process group"
        raise InputError(
            f"{gathering.who}: {place} leads to loopback, but there are {len(gathering.hosts)} hosts; set MASTER_ADDR "
            "to an address that all reach, or GLOO_SOCKET_IFNAME to the interface that leads to the others"
        )
    return gathering.tell_and_hear("address", address, numbers)


def _own_address(identity: Identity, towards: str | None) -> str:
    """The address of the interface that the user named, else of the one that leads `towards`."""
    for interface in identity.interfaces:
        if (address := address_of(interface)) is None:
            raise InputError(f"GLOO_SOCKET_IFNAME: interface {interface!r} has no IPv4 address here; see `ip address`")
        return address
    try:
        return addresses_towards(towards or "localhost")[0]
    except OSError as error:
        raise InputError(f"no route to MASTER_ADDR {towards}: {error}; name an address that all hosts reach") from error


def _from(identity: Identity, address: str) -> str:
    names = ", ".join(filter(None, identity.interfaces or (interface_of(address) or "",)))
    return f"{address} ({names})" if names else address


def _announce(gathering: Gathering, means: str, place: str = "") -> None:
    """Print once, on rank 0, how the ranks exchange."""
    if gathering.identity.rank != 0:
        return
    where = "one host; by" if gathering.is_one_host else f"{len(gathering.hosts)} hosts; between hosts"
    say(f"{gathering.identity.world_size} ranks on {where} {means}{place and f', from {place}'}")
