"""Ranks on hosts of their own: network namespaces of this machine, whose links are held to a rate. Needs root."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ranks import Ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "multihost"))
from namespaces import INTERFACE, NamespaceHost, reason_against

from samovar.transports.keys import make_key

SAMOVAR = Path(sys.executable).with_name("samovar")
ETHERNET_MTU = 1500
TIMEOUT_S = 1200.0
_PORT, _BOX_PORT = 29_500, 29_600
_KEY = "key.pem"

Hosts = Sequence[NamespaceHost]


def require_namespaces() -> None:
    if reason := reason_against():
        raise SystemExit(f"this benchmark cannot run: {reason}")


@contextmanager
def ranks_on(
    hosts: Hosts, job: Mapping[str, object], with_box: bool = False, *, with_key: bool = False
) -> Iterator[Ranks]:
    """A process of `hosts_rank.py` on each host, on one core, when all are ready; with a box on the first host.

    If there are more hosts than cores, they share the cores in turn. `with_key` makes the key of transport tcp.
    """
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        place = {"key": f"{folder}/{_KEY}", "interface": INTERFACE}
        jobs = [
            {**job, **place, "address": host.address, "box": f"{hosts[0].address}:{_BOX_PORT}" if rank else _box_name()}
            for rank, host in enumerate(hosts)
        ]
        if with_key:
            make_key(Path(folder) / _KEY)
        box = _box(hosts[0], Path(folder)) if with_box else nullcontext()
        with box, Ranks("hosts_rank.py", jobs, prefixes=_prefixes(hosts), timeout_s=TIMEOUT_S) as ranks:
            ranks.answers()
            yield ranks


def _prefixes(hosts: Hosts) -> list[list[str]]:
    """The words that run a rank on its host and core, with torchrun's variables."""
    cpus = sorted(os.sched_getaffinity(0))
    common = {
        "WORLD_SIZE": len(hosts),
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": _PORT,
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": 1,
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # the store warns that hosts have no names
    }
    return [
        [
            *host.prefix,
            *("env", *(f"{name}={value}" for name, value in {**common, "RANK": rank}.items())),
            *("taskset", "-c", str(cpus[rank % len(cpus)])),
        ]
        for rank, host in enumerate(hosts)
    ]


@contextmanager
def _box(host: NamespaceHost, folder: Path) -> Iterator[None]:
    """Start `samovar box serve`, and wait until it serves."""
    listening = ("--listen", f"{host.address}:{_BOX_PORT}", "--key-file", folder / _KEY)
    box = host.start([SAMOVAR, "box", "serve", "--box", _box_name(), "--keep", "1", *listening], stderr=None)
    assert box.stdout is not None
    try:
        if not box.stdout.readline():
            raise SystemExit("the box did not start; see its error above")
        yield
    finally:
        box.send_signal(signal.SIGTERM)
        box.communicate(timeout=TIMEOUT_S)
    if box.returncode != 0:
        raise SystemExit(f"the box ended with {box.returncode}; see its error above")


def _box_name() -> str:
    return f"benchmark-{os.getpid()}"
