"""How fast a cluster is, as far as its numbers are known: links, ports, and the compute of its ranks.

A message of n bytes from s to d occupies the sending port of s and then the receiving port of d for

    occupied = overhead_s + n / bandwidth_bytes_per_s

each, one message at a time, in the order in which messages come to the port. Its first byte reaches d
`latency_s` after it left s, and it has arrived when the receiving port is through with it. So a message that meets
nobody takes T = latency_s + overhead_s + n / bandwidth_bytes_per_s: the alpha-beta model with
alpha = latency_s + overhead_s, of which only overhead_s keeps a port from sending the next message (LogGP's L
and o = g, with 1/G the bandwidth). Not modelled: back-pressure of a busy receiver on the sender, routes and
switches (the network between the ports is never the limit), packets of several messages taking turns on a port.

References: Hockney, The communication challenge for MPP, 1994; Alexandrov et al., LogGP, 1995.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between two ranks; the default costs nothing."""

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
        """How long a message takes that meets nobody."""
        return self.latency_s + self.occupied_s(num_bytes)

    @property
    def is_instant(self) -> bool:
        """No message ever keeps a port."""
        return self.overhead_s == 0.0 and self.bandwidth_bytes_per_s == math.inf


class Ports(StrEnum):
    """What a port carries at a time: one message out and one in, one of either, or any number."""

    DUPLEX = "duplex"
    SHARED = "shared"
    UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class MachineModel:
    """Ranks in order on hosts of `ranks_per_host`.

    Messages between hosts go over `link` and share their host's port; messages inside a host go over
    `host_link` and use a port of their rank's own.
    """

    link: Link = field(default_factory=Link)
    host_link: Link = field(default_factory=Link)
    ranks_per_host: int = 1
    ports: Ports = Ports.DUPLEX
    reduce_bytes_per_s: float = math.inf
    compute_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert self.ranks_per_host > 0, self
        assert self.reduce_bytes_per_s > 0.0, self
        assert all(factor > 0.0 for factor in self.compute_factors), self

    def host(self, rank: int) -> int:
        """The number of the rank's host."""
        return rank // self.ranks_per_host

    def link_between(self, source: int, destination: int) -> Link:
        """The link that a message from `source` to `destination` takes."""
        return self.host_link if self.host(source) == self.host(destination) else self.link

    def compute_s(self, rank: int, nominal_s: float) -> float:
        """What takes `nominal_s` takes compute_factors[rank mod their number] times as long on this rank."""
        factors = self.compute_factors
        return nominal_s * factors[rank % len(factors)] if factors else nominal_s

    def reduce_s(self, rank: int, num_bytes: int) -> float:
        """How long the rank takes to add, `num_bytes` read and written in all."""
        return self.compute_s(rank, num_bytes / self.reduce_bytes_per_s)
