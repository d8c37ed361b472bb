"""The launchers of a run's hosts find each other: host 0 listens, the others say who they are, and all get the plan."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.core.group import Host, JobHosts
from samovar.core.plain import from_plain, to_plain
from samovar.launch.agent_store import ask_place, tell_place
from samovar.transports.keys import copy_in_memory, key_path, make_key, make_key_in_memory, read_key
from samovar.transports.links import HostLink, door, link_to
from samovar.transports.rendezvous import listen_at
from samovar.transports.tcp_listen import address_of, listen

_LOOK_S = 0.5
_ANSWER_S = 5.0  # host 0 gives up first, and says why
_SHOWN = 80
_MOST_NAMED = 8  # strangers


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The number of this host, where host 0 is met, and when all have come: `num_hosts` hosts, or `num_ranks` ranks.

    With `num_ranks`, numbers only give the order of hosts. With `store`, a launcher's store is at the address, and host
    0 tells under this key where it listens. Host 0 may listen already. `watch()` says why another host cannot come.
    """

    number: int
    address: str
    port: int
    num_hosts: int | None = None
    num_ranks: int | None = None
    key_file: Path | None = None
    store: str | None = None
    listening: socket.socket | None = None
    watch: Callable[[], str | None] = lambda: None

    @property
    def leads(self) -> bool:
        """Whether this is host 0, where the run's console and folder are."""
        return self.number == 0

    @property
    def lacks_key(self) -> bool:
        """Whether host 0 has yet to make the key. One that it is just making is empty."""
        return self.key_file is not None and not (self.key_file.exists() and self.key_file.stat().st_size)


@dataclass(frozen=True, slots=True)
class HostHello:
    """A host's description of itself: its workers, where they listen, and what must be the same on all hosts.

    `threads` are the cores on which each worker computes, and `spare` its further ones. `versions` are those of
    packages. `settings` are the flags of the run, `nets` a hash of the solver, its nets and an own strategy.
    """

    number: int
    name: str
    workers: int
    threads: int
    spare: int
    oversubscribed: bool
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    nets: str
    address: str = ""
    ports: tuple[int, ...] = ()


@dataclass(slots=True)
class Met:
    """All hosts have come. This one has `number`, counted from 0 without gaps; `links` lead from host 0 to all others.

    `listening` are the sockets of this host's ranks, `key` is the descriptor of the job's key; `close` closes all.
    """

    number: int
    hosts: JobHosts
    oversubscribed: bool
    links: dict[int, HostLink]
    listening: list[socket.socket]
    key: int
    is_secret: bool
    _closing: ExitStack = field(repr=False)

    @property
    def host(self) -> Host:
        return self.hosts.hosts[self.number]

    def close(self) -> None:
        self._closing.close()


def meet(place: HostPlace, own: HostHello, timeout_s: float, warn: Callable[[str], None] = lambda _text: None) -> Met:
    """Meet the launchers of all hosts. On host 0, `warn` gets a sentence for an address without the job's key.

    Raises InputError if hosts do not fit together, DeadlineExceeded with the numbers of hosts that do not come.
    """
    with ExitStack() as closing:
        here = _Host0(place, own, timeout_s, warn) if place.leads else _OtherHost(place, own, timeout_s)
        met = here.met(closing)
        met._closing = closing.pop_all()
    return met


class _Host0:
    def __init__(self, place: HostPlace, own: HostHello, timeout_s: float, warn: Callable[[str], None]) -> None:
        self._place, self._own, self._timeout_s, self._warn = place, own, timeout_s, warn
        self._who = f"host 0 ({own.name})"

    def met(self, closing: ExitStack) -> Met:
        place = self._place
        if place.key_file is not None:
            make_key(place.key_file)
        key = make_key_in_memory() if place.key_file is None else copy_in_memory(place.key_file)
        closing.callback(os.close, key)
        hellos, links = self._gathered(None if place.key_file is None else read_key(place.key_file), closing)
        order = sorted(hellos)
        address = links[order[1]].own_address
        listening = _listening(address, self._own.workers, closing)
        own = replace(self._own, address=address, ports=_ports(listening))
        all_hosts = [own, *(hellos[number] for number in order[1:])]
        job, oversubscribed = _job(all_hosts), any(hello.oversubscribed for hello in all_hosts)
        secret = None if place.key_file else key_path(key).read_text()
        for number, link in enumerate((links[each] for each in order[1:]), 1):
            plan = {"is": "plan", "number": number, "key": secret, "hosts": to_plain(job), "crowded": oversubscribed}
            link.send(plan, Deadline.after(self._timeout_s))
        numbered = {number: links[each] for number, each in enumerate(order[1:], 1)}
        return Met(0, job, oversubscribed, numbered, listening, key, place.key_file is not None, closing)

    def _gathered(self, key: Any, closing: ExitStack) -> tuple[dict[int, HostHello], dict[int, HostLink]]:
        place, deadline = self._place, Deadline.after(self._timeout_s)
        listener = place.listening or listen_at(place.address, 0 if place.store else place.port)
        if listener is None:
            raise InputError(
                f"{self._who}: port {place.port} of {place.address} is taken, perhaps by another run; give all hosts "
                "another --master-port"
            )
        hellos: dict[int, HostHello] = {0: self._own}
        links: dict[int, HostLink] = {}
        keyless, named = set[str](), set[str]()
        with door(listener, key, keyless) as next_link:
            if place.store is not None:
                here = (place.address, address_of(listener)[1])
                tell_place(place.address, place.port, place.store, here, self._timeout_s)
            while not self._is_complete(_present(hellos, links)):
                for address in sorted(keyless - named)[: _MOST_NAMED - len(named)]:
                    named.add(address)
                    self._warn(f"{self._who}: {_keyless(address)}")
                if deadline.passed():
                    self._refuse(
                        links, DeadlineExceeded("; ".join([self._absent(hellos), *map(_keyless, sorted(named))]))
                    )
                if (why := place.watch()) is not None:
                    self._refuse(links, InputError(f"{self._who}: {why}"))
                look = Deadline(min(deadline.at_s, Deadline.after(_LOOK_S).at_s))
                if (came := next_link(look)) is not None:
                    self._take(*came, hellos, links, closing)
        return hellos, links

    def _take(
        self,
        link: HostLink,
        message: Mapping[str, Any],
        hellos: dict[int, HostHello],
        links: dict[int, HostLink],
        closing: ExitStack,
    ) -> None:
        closing.callback(link.close)
        deadline = Deadline.after(_ANSWER_S)
        why = _strange(self._own, message) or _misfit(self._own, _hello_of(message), self._place)
        if why is not None:
            links[-1] = link
            self._refuse(links, InputError(f"{self._who}: {why}"))
        hello = _hello_of(message)
        if hello.number in _present(hellos, links):
            # The others stay: this one may be of another run.
            number, there = hello.number, hellos[hello.number]
            why = (
                f"host {number} ({hello.name}): {there.name} is host {number} of the run at {self._place.address}:"
                f"{self._place.port} already; give each host its own --node-rank, and each run its own --master-port"
            )
            with suppress(SamovarError):  # it is gone, and needs no answer
                link.send(refusal(why), deadline)
            return
        hellos[hello.number], links[hello.number] = hello, link

    def _is_complete(self, hellos: Mapping[int, HostHello]) -> bool:
        if self._place.num_hosts is not None:
            return len(hellos) == self._place.num_hosts
        return sum(hello.workers for hello in hellos.values()) >= (self._place.num_ranks or 0)

    def _absent(self, hellos: Mapping[int, HostHello]) -> str:
        within = f"within {self._timeout_s:.1f} s"
        if self._place.num_hosts is None:
            came, names = sum(hello.workers for hello in hellos.values()), [hello.name for hello in hellos.values()]
            came_of = f"{came} of {self._place.num_ranks} ranks came {within}, on {', '.join(names)}"
            return f"{self._who}: {came_of}; see the logs of the others"
        absent = [str(number) for number in range(self._place.num_hosts) if number not in hellos]
        one = len(absent) == 1
        return (
            f"{self._who}: host{'' if one else 's'} {', '.join(absent)} did not come to {self._place.address}:"
            f"{self._place.port} {within}; start the same command there, with --node-rank {absent[0]}"
            f"{'' if one else ' and so on'}"
        )

    def _refuse(self, links: Mapping[int, HostLink], error: SamovarError) -> None:
        """Tell the hosts that have come, and raise."""
        for link in links.values():
            with suppress(SamovarError):
                link.send(refusal(str(error), type(error)), Deadline.after(_ANSWER_S))
        raise error


def _present(hellos: dict[int, HostHello], links: dict[int, HostLink]) -> dict[int, HostHello]:
    """Those that have come, without those that have gone, which may come again."""
    for number in [number for number, link in links.items() if link.is_gone]:
        del hellos[number], links[number]
    return hellos


class _OtherHost:
    def __init__(self, place: HostPlace, own: HostHello, timeout_s: float) -> None:
        self._place, self._own, self._timeout_s = place, own, timeout_s

    def met(self, closing: ExitStack) -> Met:
        place, who = self._place, f"host {self._own.number} ({self._own.name})"
        deadline = Deadline.after(self._timeout_s)
        while place.lacks_key and not deadline.passed():
            time.sleep(_LOOK_S)
        key = None if place.key_file is None else read_key(place.key_file)
        address = (place.address, place.port)
        if place.store is not None:
            address = ask_place(*address, place.store, place.number, self._timeout_s)
        try:
            link = link_to(address, key, who, Deadline.after(self._timeout_s))
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"{error}; was host 0 started, and are --master-addr, --master-port and --key-file those of host 0?"
            ) from error
        closing.callback(link.close)
        listening = _listening(link.own_address, self._own.workers, closing)
        own = replace(self._own, address=link.own_address, ports=_ports(listening))
        link.send({"is": "hello", **asdict(own)}, Deadline.after(self._timeout_s))
        plan = self._answer(link, who)
        if place.key_file is not None:
            descriptor = copy_in_memory(place.key_file)
        else:
            descriptor = make_key_in_memory(plan["key"].encode())
        closing.callback(os.close, descriptor)
        found = (plan["number"], from_plain(JobHosts, plan["hosts"]), plan["crowded"], {0: link})
        return Met(*found, listening, descriptor, place.key_file is not None, closing)

    def _answer(self, link: HostLink, who: str) -> Mapping[str, Any]:
        try:
            answer, _ = link.receive(Deadline.after(self._timeout_s + _ANSWER_S))
        except SamovarError as error:
            where = f"{self._place.address}:{self._place.port}"
            raise type(error)(
                f"{who}: {link.peer} gave no plan ({error}); is it host 0 of a run of the same version, at {where}, "
                "with the same --key-file or none?"
            ) from error
        if answer.get("is") == "refused":
            kind = DeadlineExceeded if answer["kind"] == DeadlineExceeded.__name__ else InputError
            raise kind(answer["why"])
        return answer


def _keyless(address: str) -> str:
    return f"{address} came without the same key; give all hosts the same --key-file, or none"


def refusal(why: str, kind: type[SamovarError] = InputError) -> dict[str, str]:
    """The answer to a host that is not taken in."""
    return {"is": "refused", "why": why, "kind": kind.__name__}


def _hello_of(message: Mapping[str, Any]) -> HostHello:
    """Raises ValueError if it is none."""
    return from_plain(HostHello, {name: value for name, value in message.items() if name != "is"})


def _strange(own: HostHello, message: Mapping[str, Any]) -> str | None:
    """Why another version of Samovar, or nobody, sent the message; None if this version did."""
    versions = message.get("versions")
    unknown = f"a message does not come from this version of Samovar ({_shown(message)}); install the same everywhere"
    if message.get("is") != "hello" or not isinstance(versions, Mapping):
        return unknown
    for package in sorted({*own.versions, *versions}):
        here, there = own.versions.get(package), versions.get(package)
        if here != there:
            who = f"host {message.get('number')} ({message.get('name')})"
            return f"{who} has {package} {there}, and host 0 {here}; install the same version on all hosts"
    try:
        _hello_of(message)
    except ValueError:
        return unknown
    return None


def _misfit(own: HostHello, hello: HostHello, place: HostPlace) -> str | None:
    """The first difference of another host from host 0, as text; None if it fits."""
    who = f"host {hello.number} ({hello.name})"
    if place.num_hosts is not None and not 0 < hello.number < place.num_hosts:
        return (
            f"{who}: hosts are numbered from 0 to {place.num_hosts - 1}; give each its own --node-rank, and one --nodes"
        )
    for setting in sorted({*own.settings, *hello.settings}):
        here, there = own.settings.get(setting), hello.settings.get(setting)
        if here != there:
            return f"{who} has {setting} {_shown(there)}, and host 0 {_shown(here)}; give all hosts the same"
    if hello.nets != own.nets:
        return f"{who} has another solver, net or strategy than host 0; copy the files of host 0 there"
    return None


def _shown(value: object) -> str:
    return str(value)[:_SHOWN]


def _listening(address: str, count: int, closing: ExitStack) -> list[socket.socket]:
    """A socket for each rank of this host."""
    return [closing.enter_context(listen(address)) for _ in range(count)]


def _ports(listening: Sequence[socket.socket]) -> tuple[int, ...]:
    return tuple(address_of(each)[1] for each in listening)


def _job(hellos: Sequence[HostHello]) -> JobHosts:
    names = [hello.name for hello in hellos]
    if len(set(names)) < len(names):  # containers of one image, for example
        names = [f"{name}#{number}" for number, name in enumerate(names)]
    stops = accumulate(hello.workers for hello in hellos)
    ranks = [range(stop - hello.workers, stop) for stop, hello in zip(stops, hellos, strict=True)]
    return JobHosts(
        secrets.token_hex(16),
        tuple(Host(name, tuple(own)) for name, own in zip(names, ranks, strict=True)),
        tuple((hello.address, port) for hello in hellos for port in hello.ports),
        min(hello.threads for hello in hellos),
        min(hello.spare for hello in hellos),
    )
