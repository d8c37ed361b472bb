"""The collectives among the present workers of an elastic job, on one host or several."""

import os
from contextlib import ExitStack

from samovar.api.connect import shared_memory
from samovar.api.connect_hosts import plan_between
from samovar.collectives.engine import PlannedCollectives
from samovar.core.group import Group, Host, JobHosts, rank_names
from samovar.launch.identity import ElasticJob
from samovar.membership.quorum_messages import Go
from samovar.membership.quorum_seat import QuorumSeat
from samovar.transports.hosts import open_hosts
from samovar.transports.keys import Key
from samovar.transports.processes import open_process
from samovar.transports.shm import ShmTransport


class ElasticGroups:
    """Connects this worker with those of each Go: in shared memory inside a host, and over TCP between hosts.

    In a job on several hosts all hold the job's `key`. A request to another host ends after `timeout_s`.
    """

    def __init__(self, job: ElasticJob, seat: QuorumSeat, key: Key | None, collective: str, timeout_s: float) -> None:
        self._job, self._seat, self._key = job, seat, key
        self._collective, self._timeout_s = collective, timeout_s

    def join(self, go: Go, closing: ExitStack) -> PlannedCollectives:
        """Never waits for other workers. `closing` ends what is opened here."""
        numbers = {name: [rank for rank, host in enumerate(go.hosts) if host == name] for name in go.hosts}
        hosts = tuple(Host(name or "this host", tuple(ranks)) for name, ranks in numbers.items())
        local, collectives = self._inside(go, numbers[go.hosts[go.rank]], hosts, closing)
        if len(hosts) == 1:
            return collectives
        assert self._key is not None
        addresses = tuple(address for address in go.addresses if address is not None)
        job = JobHosts(f"{self._job.name}/{go.generation}", hosts, addresses)
        transport = open_hosts(go.rank, job, local, self._seat.take_listening(), self._key, self._timeout_s)
        closing.callback(transport.close)
        self._seat.watch(lambda rank, who: transport.lose(rank, f"{who} is gone"))
        return PlannedCollectives(transport, plan_between(self._collective, job.sizes, len(go.marks)), job.sizes)

    def _inside(
        self, go: Go, here: list[int], hosts: tuple[Host, ...], closing: ExitStack
    ) -> tuple[ShmTransport, PlannedCollectives]:
        """Shared memory among the ranks `here`, each of which learns at once of another one's end."""
        descriptor = os.dup(self._seat.segment)
        closing.callback(os.close, descriptor)
        names = [f"rank {rank}" for rank in here] if len(hosts) == 1 else [rank_names(hosts)[rank] for rank in here]
        made = (descriptor, Group(here.index(go.rank), len(here)), names, self._collective, closing)
        transport, choose = shared_memory(*made, oversubscribed=go.oversubscribed)
        others = {place: open_process(go.marks[rank]) for place, rank in enumerate(here) if rank != go.rank}
        processes = {place: process for place, process in others.items() if process is not None}
        for process in processes.values():
            closing.callback(process.close)
        transport.watch(names, processes)
        return transport, PlannedCollectives(transport, choose)
