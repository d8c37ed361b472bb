"""What was measured of a machine: the one record that every `auto` is a pure function of."""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from samovar.core.errors import InputError


@dataclass(frozen=True, slots=True)
class TransportFigures:
    """One transport between two ranks.

    Latencies are from the call that puts 64 bytes and notifies until the other rank goes on: while that spins on
    a core of its own, while it sleeps there, and where both share one core. `bandwidth` is what one rank puts
    into another's memory, as (bytes of a message, bytes per second), sizes rising.
    """

    spinning_latency_s: float
    sleeping_latency_s: float
    shared_core_latency_s: float
    bandwidth: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        _require_positive(self, ("spinning_latency_s", "sleeping_latency_s", "shared_core_latency_s"))
        sizes = [size for size, _ in self.bandwidth]
        if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"bandwidth has the sizes {sizes}; they must rise from at least 1")
        if not all(math.isfinite(rate) and rate > 0 for _, rate in self.bandwidth):
            raise ValueError("bandwidth has a rate that is no positive number")

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
    """A machine in figures. `copy_bandwidth_*` count bytes read and written, by one process and by one on every
    core; `wake_up_s` is how much longer a sleeping rank takes to go on than a spinning one.
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object) -> "CalibrationRecord":
        """The record that `to_json` gave; raises ValueError saying what does not fit."""
        given = _members(cls, values)
        transports = given["transports"]
        if not isinstance(transports, Mapping):
            raise ValueError("transports is no object")
        figures = {str(name): _transport(value) for name, value in transports.items()}
        return cls(
            machine=_checked(given, "machine", str),
            cores=_checked(given, "cores", int),
            numa_nodes=_checked(given, "numa_nodes", int),
            wake_up_s=_number(given, "wake_up_s"),
            copy_bandwidth_one_bytes_per_s=_number(given, "copy_bandwidth_one_bytes_per_s"),
            copy_bandwidth_all_bytes_per_s=_number(given, "copy_bandwidth_all_bytes_per_s"),
            transports=figures,
        )

    @classmethod
    def load(cls, path: Path) -> "CalibrationRecord":
        """Read back what `samovar doctor --save` wrote; InputError where it is something else."""
        try:
            return cls.from_json(json.loads(path.read_bytes()))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; make it with samovar doctor --save") from error
        except (ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"{path} is no calibration: {error}; make it anew with samovar doctor --save") from error


def _transport(values: object) -> TransportFigures:
    given = _members(TransportFigures, values)
    pairs = given["bandwidth"]
    if not isinstance(pairs, list | tuple) or not all(_is_pair(pair) for pair in pairs):
        raise ValueError("bandwidth is no list of pairs [bytes, bytes per second]")
    return TransportFigures(
        spinning_latency_s=_number(given, "spinning_latency_s"),
        sleeping_latency_s=_number(given, "sleeping_latency_s"),
        shared_core_latency_s=_number(given, "shared_core_latency_s"),
        bandwidth=tuple((size, float(rate)) for size, rate in pairs),
    )


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) is int and type(pair[1]) in (int, float)


def _members(kind: type[Any], values: object) -> dict[str, Any]:
    """The members of a JSON object, which must be the fields of `kind`."""
    if not isinstance(values, dict):
        raise ValueError(f"{kind.__name__} is no object")
    names = {field.name for field in fields(kind)}
    for name in sorted(names - values.keys()):
        raise ValueError(f"{kind.__name__} lacks {name!r}")
    for name in sorted(values.keys() - names):
        raise ValueError(f"{kind.__name__} has an unknown {name!r}")
    return values


def _checked(values: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    if type(values[name]) is not kind:
        raise ValueError(f"{name} is {values[name]!r}, not of type {kind.__name__}")
    return values[name]


def _number(values: Mapping[str, Any], name: str) -> float:
    return float(values[name] if type(values[name]) is int else _checked(values, name, float))


def _require_positive(record: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(record, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be positive")


# Measured by `samovar doctor` on two cores of a virtual machine (AMD EPYC, Linux 6), rounded: the machine that
# `auto` stands on where none is given, so that the same command chooses the same everywhere.
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
