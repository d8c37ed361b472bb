"""A machine in figures: the measurements that every `auto` uses, and the model of simulations.

In the model a message of n bytes from s to d occupies the sending port of s and then the receiving port of d for

    occupied = overhead_s + n / bandwidth_bytes_per_s

each, one message at a time, in the order in which messages come to the port. Its first byte reaches d
`latency_s` after it left s, and it has arrived when the receiving port has finished with it. So a message alone takes

    T = latency_s + overhead_s + n / bandwidth_bytes_per_s

This is the alpha-beta model with alpha = latency_s + overhead_s. Only overhead_s keeps a port from sending the next
message (LogGP's L and o = g, with 1/G the bandwidth). If hosts are in racks, a message to another rack also occupies
the uplinks of both racks, for overhead_s + n / bandwidth_bytes_per_s of the uplink each. Its bytes then come at the
pace of the slowest port. Not modelled: back-pressure of a busy receiver, routes between racks, and packets of several
messages that alternate on a port.

A core sends and receives messages between hosts: each takes n / processing_bytes_per_s of its sender's core, and as
much of its receiver's. It has left, and has arrived, no earlier than these cores are done with all that came before.
A core that also computes does the messages first, and so computes for longer.

References: Hockney, The communication challenge for MPP, 1994; Alexandrov et al., LogGP, 1995.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from samovar.core.errors import InputError
from samovar.core.plain import from_plain


@dataclass(frozen=True, slots=True)
class Link:
    """The link between two ranks; the default costs nothing."""

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.latency_s >= 0.0, self
        assert self.overhead_s >= 0.0, self
        assert self.bandwidth_bytes_per_s > 0.0, self

    def occupied_s(self, num_bytes: int) -> float:
        """How long a message keeps a port."""
        return self.overhead_s + num_bytes / self.bandwidth_bytes_per_s

    def message_s(self, num_bytes: int) -> float:
        """The seconds of a message that meets no other."""
        return self.latency_s + self.occupied_s(num_bytes)

    @property
    def is_instant(self) -> bool:
        """No message ever keeps a port."""
        return self.overhead_s == 0.0 and self.bandwidth_bytes_per_s == math.inf


class Ports(StrEnum):
    """Messages that a port carries at a time: one out and one in, one of either, or any number."""

    DUPLEX = "duplex"
    SHARED = "shared"
    UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Racks:
    """Hosts in order in racks of `num_hosts`, each with one port of the speed of `uplink` to all other racks."""

    num_hosts: int
    uplink: Link

    def __post_init__(self) -> None:
        assert self.num_hosts > 0, self


@dataclass(frozen=True, slots=True)
class MachineModel:
    """Ranks in order on hosts of `ranks_per_host`.

    Messages between hosts go over `link` and share their host's port; messages inside a host go over
    `host_link` and use a port of their rank's own. Messages between `racks` share these racks' uplinks, too.
    With `spare_cores` a rank does not compute on the core that does its messages.
    """

    link: Link = field(default_factory=Link)
    host_link: Link = field(default_factory=Link)
    ranks_per_host: int = 1
    ports: Ports = Ports.DUPLEX
    reduce_bytes_per_s: float = math.inf
    compute_factors: tuple[float, ...] = ()
    racks: Racks | None = None
    processing_bytes_per_s: float = math.inf
    spare_cores: bool = True

    def __post_init__(self) -> None:
        assert self.ranks_per_host > 0, self
        assert self.processing_bytes_per_s > 0.0, self
        assert self.reduce_bytes_per_s > 0.0, self
        assert all(factor > 0.0 for factor in self.compute_factors), self

    def host(self, rank: int) -> int:
        """The number of the rank's host."""
        return rank // self.ranks_per_host

    def rack(self, host: int) -> int:
        """The number of the host's rack; 0 if there are none."""
        return host // self.racks.num_hosts if self.racks is not None else 0

    def compute_s(self, rank: int, nominal_s: float) -> float:
        """Seconds on this rank: `nominal_s` times compute_factors[rank mod their number]."""
        factors = self.compute_factors
        return nominal_s * factors[rank % len(factors)] if factors else nominal_s

    def reduce_s(self, rank: int, num_bytes: int) -> float:
        """How long the rank takes to add, `num_bytes` read and written in all."""
        return self.compute_s(rank, num_bytes / self.reduce_bytes_per_s)


@dataclass(frozen=True, slots=True)
class TransportFigures:
    """One transport between two ranks.

    A latency is from the call that puts 64 bytes and notifies until the other rank continues. The other rank spins on
    its own core, sleeps there, or shares a core with the first. `bandwidth` has pairs (bytes of a message, bytes per
    second) of puts into another rank's memory, sizes rising. A core sends or receives `processing_bytes_per_s`.
    """

    spinning_latency_s: float
    sleeping_latency_s: float
    shared_core_latency_s: float
    bandwidth: tuple[tuple[int, float], ...]
    processing_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        _require_positive(self, ("spinning_latency_s", "sleeping_latency_s", "shared_core_latency_s"))
        sizes = [size for size, _ in self.bandwidth]
        if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"bandwidth has the sizes {sizes}; they must rise from at least 1")
        if not all(math.isfinite(rate) and rate > 0 for _, rate in self.bandwidth):
            raise ValueError("bandwidth has a rate that is not a positive number")
        if not self.processing_bytes_per_s > 0:
            raise ValueError(f"processing_bytes_per_s is {self.processing_bytes_per_s}; it must be positive")

    def bandwidth_at(self, num_bytes: int) -> float:
        """Bytes per second of messages of that size: linear in the logarithm between sizes, flat beyond."""
        sizes = [size for size, _ in self.bandwidth]
        above = bisect_left(sizes, num_bytes)
        if above == 0 or above == len(sizes):
            return self.bandwidth[min(above, len(sizes) - 1)][1]
        (low_size, low), (high_size, high) = self.bandwidth[above - 1 : above + 1]
        share = math.log(num_bytes / low_size) / math.log(high_size / low_size)
        return low + share * (high - low)


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """A machine in figures. `copy_bandwidth_*` count bytes read and written, by one process and by one on every core.

    `wake_up_s` is the additional time of a sleeping rank to continue, compared with a spinning one.
    """

    machine: str
    cores: int
    numa_nodes: int
    wake_up_s: float
    copy_bandwidth_one_bytes_per_s: float
    copy_bandwidth_all_bytes_per_s: float
    transports: Mapping[str, TransportFigures]

    def __post_init__(self) -> None:
        names = ("cores", "numa_nodes", "wake_up_s", "copy_bandwidth_one_bytes_per_s", "copy_bandwidth_all_bytes_per_s")
        _require_positive(self, names)
        if "shm" not in self.transports:
            raise ValueError("transports lacks 'shm'")

    @classmethod
    def load(cls, path: Path) -> "CalibrationRecord":
        """Read a file of `samovar doctor --save`. Raises InputError if it is something else."""
        try:
            return from_plain(cls, json.loads(path.read_bytes()))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; make it with samovar doctor --save") from error
        except (ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"{path} is not a calibration: {error}; make one with samovar doctor --save") from error


def _require_positive(record: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(record, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be positive")


# Measured by `samovar doctor` on two cores of a virtual machine (AMD EPYC, Linux 6), rounded: the machine that
# `auto` uses if none is given, so that the same command chooses the same everywhere.
NOMINAL = CalibrationRecord(
    machine="nominal",
    cores=2,
    numa_nodes=1,
    wake_up_s=60e-6,
    copy_bandwidth_one_bytes_per_s=24e9,
    copy_bandwidth_all_bytes_per_s=38e9,
    transports={
        "shm": TransportFigures(
            spinning_latency_s=0.5e-6,
            sleeping_latency_s=60e-6,
            shared_core_latency_s=5e-6,
            bandwidth=(
                (1 << 12, 10e9),
                (1 << 14, 35e9),
                (1 << 16, 60e9),
                (1 << 18, 80e9),
                (1 << 20, 48e9),
                (1 << 22, 45e9),
                (1 << 24, 15e9),
                (1 << 26, 13e9),
            ),
        ),
        # Over loopback, where both ends encrypt on the same cores.
        "tcp": TransportFigures(
            spinning_latency_s=150e-6,
            sleeping_latency_s=150e-6,
            shared_core_latency_s=150e-6,
            bandwidth=((1 << 12, 0.1e9), (1 << 16, 0.5e9), (1 << 20, 0.9e9)),
        ),
    },
)


@dataclass(frozen=True, slots=True)
class DescribedStep:
    """Seconds of a worker's computation in a step, on a worker whose factor is 1.

    `sizes` are the parameters of layers in the order in which backward finishes them, and `backward_s` the seconds of
    each. `after_s` follows the last gradient. Each step takes up to `jitter` longer, drawn evenly.
    """

    forward_s: float
    sizes: tuple[int, ...]
    backward_s: tuple[float, ...]
    after_s: float
    update_s: float
    jitter: float = 0.0

    @property
    def num_parameters(self) -> int:
        return sum(self.sizes)

    @property
    def seconds(self) -> float:
        return self.forward_s + sum(self.backward_s) + self.after_s + self.update_s


@dataclass(frozen=True, slots=True)
class Emulation:
    """The machine, the hosts of a center's servers with their memory's rate, and a step; None: as fast as it comes.

    A sleep here ends `wake_up_s` late, so it is begun with as much less.
    """

    machine: MachineModel
    server_hosts: tuple[int, ...]
    server_bytes_per_s: float
    wake_up_s: float
    step: DescribedStep | None = None
