"""Hosts on one machine: network namespaces joined by one link. Needs root and `ip`; a rate also needs `tc`.

    with two_hosts(rate="100mbit") as (left, right):
        left.start([sys.executable, "train.py"], env=...)

Imported by benchmarks by its path, so it needs nothing but the standard library.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

INTERFACE = "eth0"
# Ethernet, IPv4, TCP with time stamps: what every packet of an established connection has before its payload.
HEADER_BYTES = 14 + 20 + 32
LARGEST_MTU = 65_535
_BURST_BYTES, _LATENCY = 64 * 1024, "50ms"
_numbers = count()


@dataclass(frozen=True)
class Traffic:
    """What an interface has sent so far."""

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

    def start(
        self, command: Sequence[object], env: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[str]":
        """Start a command on this host; its process is killed, if it still runs, when the hosts go."""
        words = ["ip", "netns", "exec", self.name, *map(str, command)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process: subprocess.Popen[str] = subprocess.Popen(words, env=env, **(pipes | options))
        self.started.append(process)
        return process

    def traffic(self) -> Traffic:
        """Counted by the interface; what was sent twice, by TCP."""
        answer = _ip("-n", self.name, "-s", "-j", "link", "show", "dev", INTERFACE)
        sent = json.loads(answer)[0]["stats64"]["tx"]
        names, values = (
            line.split()
            for line in _ip("netns", "exec", self.name, "cat", "/proc/net/snmp").splitlines()
            if line.startswith("Tcp:")
        )
        return Traffic(sent["packets"], sent["bytes"], int(values[names.index("RetransSegs")]))

    def set_kernel(self, name: str, value: int) -> None:
        """A setting of this host's network, as `sysctl` names it."""
        _ip("netns", "exec", self.name, "sysctl", "-qw", f"{name}={value}")

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
    number = next(_numbers)
    network = f"10.{os.getpid() % 200 + 20}.{number % 256}"
    hosts = tuple(
        NamespaceHost(f"samovar-{os.getpid()}-{number}-{side}", f"{network}.{place}")
        for place, side in enumerate("ab", start=1)
    )
    with ExitStack() as cleaning:
        for host in hosts:
            _ip("netns", "add", host.name)
            cleaning.callback(_ip, "netns", "del", host.name)
            cleaning.callback(host.end)
            host.set_kernel("net.ipv6.conf.all.disable_ipv6", 1)
        ends = [("name", INTERFACE, "netns", host.name, "mtu", str(mtu)) for host in hosts]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for host, other in (hosts, hosts[::-1]):
            _configure(host, other, rate)
        yield hosts[0], hosts[1]


def _configure(host: NamespaceHost, other: NamespaceHost, rate: str | None) -> None:
    _ip("-n", host.name, "link", "set", "lo", "up")
    _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
    _ip("-n", host.name, "link", "set", INTERFACE, "up")
    hardware = json.loads(_ip("-n", other.name, "-j", "link", "show", "dev", INTERFACE))[0]["address"]
    neighbour = ("neighbour", "replace", other.address, "lladdr", hardware, "dev", INTERFACE, "nud", "permanent")
    _ip("-n", host.name, *neighbour)
    if rate is not None:
        shaping = ("tbf", "rate", rate, "burst", str(_BURST_BYTES), "latency", _LATENCY)
        _run("tc", "-n", host.name, "qdisc", "add", "dev", INTERFACE, "root", *shaping)


def left_over() -> list[str]:
    """Namespaces of this process that are still there."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"samovar-{os.getpid()}-*"))


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*words: str) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(words)}: {ended.stderr}"
    return ended.stdout
