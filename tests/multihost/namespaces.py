"""Hosts on one machine: network namespaces joined by a cable or a switch. Needs root and `ip`; a rate also needs `tc`.

    with two_hosts(rate="100mbit") as (left, right):
        left.start([sys.executable, "train.py"], env=...)
    with switched_hosts(4) as network:
        network.set_rate("100mbit")

Names hold the process id of their owner. What a killed owner has left goes when the next one makes hosts.
Imported by benchmarks by its path, so it needs nothing but the standard library.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from samovar.core.clock import Deadline, polled

INTERFACE = "eth0"
# Ethernet, IPv4, TCP with time stamps: what every packet of an established connection has before its payload.
HEADER_BYTES = 14 + 20 + 32
LARGEST_MTU = 65_535
_BURST_BYTES, _LATENCY = 64 * 1024, "50ms"
# `ip netns exec` puts files of the second folder in place of those in /etc.
_RUN, _FILES = Path("/run/netns"), Path("/etc/netns")
_numbers = count()


@dataclass(frozen=True)
class Traffic:
    """The bytes that an interface has sent so far."""

    packets: int
    num_bytes: int
    retransmissions: int

    def payload_since(self, before: "Traffic") -> int:
        """Bytes that TCP carried, if no connection was opened and nothing sent twice."""
        return self.num_bytes - before.num_bytes - HEADER_BYTES * (self.packets - before.packets)


@dataclass
class NamespaceHost:
    """One host: a namespace with loopback and one interface."""

    name: str
    address: str
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words of a command that runs another one on this host."""
        return ("ip", "netns", "exec", self.name)

    def start(
        self, command: Sequence[object], env: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[str]":
        """Start a command on this host; its process is killed, if it still runs, when the hosts go."""
        words = [*self.prefix, *map(str, command)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process: subprocess.Popen[str] = subprocess.Popen(words, env=env, **(pipes | options))
        self.started.append(process)
        return process

    def traffic(self) -> Traffic:
        """Counted by the interface; bytes sent twice are counted by TCP."""
        answer = _ip("-n", self.name, "-s", "-j", "link", "show", "dev", INTERFACE)
        sent = json.loads(answer)[0]["stats64"]["tx"]
        names, values = (
            line.split() for line in _run(*self.prefix, "cat", "/proc/net/snmp").splitlines() if line.startswith("Tcp:")
        )
        return Traffic(sent["packets"], sent["bytes"], int(values[names.index("RetransSegs")]))

    def set_kernel(self, name: str, value: int) -> None:
        """A setting of this host's network, as `sysctl` names it."""
        _run(*self.prefix, "sysctl", "-qw", f"{name}={value}")

    def set_interface(self, state: str) -> None:
        """`up` or `down`."""
        _ip("-n", self.name, "link", "set", INTERFACE, state)

    def end(self) -> None:
        """Kill what was started here and still runs."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            with suppress(ValueError):  # its pipes may have been read already
                process.communicate()


def reason_against() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces need `ip` and `tc` (Debian's iproute2)"
    probe = f"samovar-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    _ip("netns", "del", probe)
    return None


@contextmanager
def two_hosts(rate: str | None = None, mtu: int = LARGEST_MTU) -> Iterator[tuple[NamespaceHost, NamespaceHost]]:
    """Two namespaces and the cable between them; `rate` (as `tc` writes it) limits each direction.

    The neighbours know each other's hardware address and IPv6 is off: nothing but what is sent is counted.
    """
    with ExitStack() as cleaning:
        hosts = _namespaces(2, next(_numbers), cleaning)
        ends = [("name", INTERFACE, "netns", host.name, "mtu", str(mtu)) for host in hosts]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for host, other in (hosts, hosts[::-1]):
            _go_up(host)
            known = (other.address, "lladdr", _interface(other)["address"], "dev", INTERFACE, "nud", "permanent")
            _ip("-n", host.name, "neighbour", "replace", *known)
            if rate is not None:
                _limit(host.name, INTERFACE, rate)
        _await_up(hosts)
        yield hosts[0], hosts[1]


@dataclass(frozen=True)
class Network:
    """Hosts whose cables all lead to one switch, a namespace with a bridge; `ports` are its ends of the cables."""

    hosts: tuple[NamespaceHost, ...]
    switch: str
    ports: tuple[str, ...]

    def set_rate(self, rate: str) -> None:
        """Limit both directions of every cable to `rate`, as `tc` writes it."""
        for host, port in zip(self.hosts, self.ports, strict=True):
            _limit(host.name, INTERFACE, rate)
            _limit(self.switch, port, rate)


@contextmanager
def switched_hosts(count: int, mtu: int = LARGEST_MTU) -> Iterator[Network]:
    """So many namespaces around a switch, which forwards at once; their cables have no limit at first."""
    with ExitStack() as cleaning:
        number = next(_numbers)
        hosts = _namespaces(count, number, cleaning)
        network = Network(hosts, f"samovar-{os.getpid()}-{number}-switch", tuple(f"port{k}" for k in range(count)))
        _ip("netns", "add", network.switch)
        cleaning.callback(_ip, "netns", "del", network.switch)
        _ip("-n", network.switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", network.switch, "link", "set", "bridge", "up")
        for host, port in zip(hosts, network.ports, strict=True):
            ends = [
                ("name", *end, "mtu", str(mtu))
                for end in ((INTERFACE, "netns", host.name), (port, "netns", network.switch))
            ]
            _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
            _ip("-n", network.switch, "link", "set", port, "master", "bridge", "up")
            _go_up(host)
        _await_up(hosts)
        yield network


def _namespaces(count: int, number: int, cleaning: ExitStack) -> tuple[NamespaceHost, ...]:
    """Hosts without a cable, which go when `cleaning` does."""
    remove_abandoned()
    network = f"10.{os.getpid() % 200 + 20}.{number % 256}"
    hosts = tuple(
        NamespaceHost(f"samovar-{os.getpid()}-{number}-{'abcdefgh'[k]}", f"{network}.{k + 1}") for k in range(count)
    )
    for host in hosts:
        _ip("netns", "add", host.name)
        cleaning.callback(_ip, "netns", "del", host.name)
        cleaning.callback(host.end)
        host.set_kernel("net.ipv6.conf.all.disable_ipv6", 1)
    return hosts


def _go_up(host: NamespaceHost) -> None:
    _ip("-n", host.name, "link", "set", "lo", "up")
    _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
    _ip("-n", host.name, "link", "set", INTERFACE, "up")


def _await_up(hosts: Sequence[NamespaceHost]) -> None:
    """The kernel may say only a second later that a cable is plugged in, and UCX takes no interface before."""
    deadline = Deadline.after(10.0)
    for host in hosts:
        assert polled(lambda host=host: _interface(host)["operstate"] == "UP", deadline, 0.01), host  # type: ignore[misc]


def _interface(host: NamespaceHost) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(_ip("-n", host.name, "-j", "link", "show", "dev", INTERFACE))[0]
    return described


def _limit(namespace: str, interface: str, rate: str) -> None:
    shaping = ("tbf", "rate", rate, "burst", str(_BURST_BYTES), "latency", _LATENCY)
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *shaping)


@contextmanager
def named(hosts: Sequence[NamespaceHost], names: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
    """Give each host a name, or some with spaces between; the words that run a command on each, called by its first."""
    text = "".join(f"{host.address} {name}\n" for host, name in zip(hosts, names, strict=True))
    call_it = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
    with ExitStack() as cleaning:
        for host in hosts:
            folder = _FILES / host.name
            folder.mkdir(parents=True)
            cleaning.callback(shutil.rmtree, folder)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{text}")
        yield [(*host.prefix, *call_it, name.split()[0]) for host, name in zip(hosts, names, strict=True)]


def mpiexec_over(hosts: Sequence[NamespaceHost], counts: Sequence[int], mpiexec: Path, folder: Path) -> list[str]:
    """The words by which MPICH's mpiexec starts so many ranks on each host, which a script in `folder` reaches."""
    reach = folder / "reach"
    cases = "".join(f"{host.address}) name={host.name};; " for host in hosts)
    reach.write_text(f'#!/bin/sh\ncase "$1" in {cases}esac\nshift\nexec ip netns exec "$name" sh -c "$*"\n')
    reach.chmod(0o700)
    places = ",".join(f"{host.address}:{count}" for host, count in zip(hosts, counts, strict=True))
    words = ["-launcher", "rsh", "-launcher-exec", reach, "-iface", INTERFACE, "-hosts", places, "-n", sum(counts)]
    # All hosts are one machine, whose shared memory UCX would use.
    network = ["-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", INTERFACE]
    return [*hosts[0].prefix, str(mpiexec), *map(str, words), *network]


def left_over() -> list[str]:
    """Namespaces of this process that are still there."""
    return sorted(path.name for path in _RUN.glob(f"samovar-{os.getpid()}-*"))


def remove_abandoned() -> None:
    """Remove the namespaces, their processes and files of owners that were killed before they could."""
    for name in sorted({path.name for folder in (_RUN, _FILES) for path in folder.glob("samovar-*-*")}):
        owner = name.split("-")[1]
        if not owner.isdecimal() or Path("/proc", owner).exists():
            continue
        inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for process_id in inside.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(process_id), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)  # another test may be faster
        shutil.rmtree(_FILES / name, ignore_errors=True)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*words: str) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(words)}: {ended.stderr}"
    return ended.stdout
