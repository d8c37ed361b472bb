"""A cluster as a TOML file describes it: workers, nodes, network, racks, and the server of a center."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from samovar.core import units
from samovar.core.errors import InputError, nearest
from samovar.core.machine import NOMINAL, CalibrationRecord, Link, MachineModel, Ports, Racks, TransportFigures

HERE = "here"
_Part = TypeVar("_Part")
_PORTS = {"duplex": Ports.DUPLEX, "half-duplex": Ports.SHARED, "unlimited": Ports.UNLIMITED}
FIRST_NODE, OWN_NODES = "first node", "own nodes"
_MOST_BYTES = 1 << 16  # of a file that describes a machine
_MOST, _MOST_WHOLE, _MOST_WORKERS = 1e15, 1 << 20, 1 << 12
_MOST_OF: Mapping[str, str] = {units.SECONDS: "1 h", units.SHARE: "10000 %"}  # a clock of 64 bits still has its ns
_NEEDED: Mapping[str, Mapping[str, str]] = {
    "rack": dict.fromkeys(("oversubscription", "latency"), "nodes"),
    "node": dict.fromkeys(("bandwidth", "latency", "overhead"), "workers"),
    "worker": {"slow_factor": "slow_every", "slow_every": "slow_factor"},
}


def _of(kind: str, default: Any, least: float = 0.0) -> Any:
    """A field that is written with a unit of this kind."""
    return field(default=default, metadata={"kind": kind, "least": least})


def _number(default: Any, least: float, most: int = _MOST_WHOLE) -> Any:
    return field(default=default, metadata={"least": least, "most": most})


def _choice(default: str, *choices: str) -> Any:
    return field(default=default, metadata={"choices": choices})


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker. Without a `speed` (sustained flop/s), layers take the times of the profile.

    `memory` is read and written in bytes a second, by additions and updates. Each step takes up to `jitter` longer,
    drawn evenly. Every `slow_every`-th worker computes `slow_factor` times as long. A worker alone in its node has
    `crowded_factor` times the memory bandwidth of one of many. Without a `spare_core` an exchange
    behind the computation would slow it, and `--bucket auto` keeps the model whole.
    """

    speed: float | None = _of(units.SPEED, None, 1.0)
    memory: float = _of(units.BANDWIDTH, math.inf, 1.0)
    jitter: float = _of(units.SHARE, 0.0)
    slow_every: int = _number(0, 1, _MOST_WORKERS)
    slow_factor: float = _number(1.0, 1e-3)
    crowded_factor: float = _number(1.0, 1.0)
    spare_core: bool = True

    @property
    def memory_alone(self) -> float:
        """Bytes a second of a worker that is alone in its node."""
        return self.memory * self.crowded_factor


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node: its workers, the link between two of them, and its price in `currency`."""

    workers: int = _number(1, 1)
    bandwidth: float = _of(units.BANDWIDTH, math.inf, 1.0)
    latency: float = _of(units.SECONDS, 0.0)
    overhead: float = _of(units.SECONDS, 0.0)
    price_per_hour: float | None = _number(None, 0)
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The port of each node. `overhead` keeps it from the next message, `latency` does not.

    A core sends or receives `processing` bytes a second, both directions together. A worker without a spare core
    computes for longer meanwhile.
    """

    bandwidth: float = _of(units.BANDWIDTH, math.inf, 1.0)
    latency: float = _of(units.SECONDS, 0.0)
    overhead: float = _of(units.SECONDS, 0.0)
    ports: str = _choice("duplex", *_PORTS)
    processing: float = _of(units.BANDWIDTH, math.inf, 1.0)


@dataclass(frozen=True, slots=True)
class RackSpec:
    """Racks of `nodes`, whose uplink has the bandwidth of all its nodes, divided by `oversubscription`."""

    nodes: int = _number(0, 1)
    oversubscription: float = _number(1.0, 1e-3)
    latency: float = _of(units.SECONDS, 0.0)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The center of strategies that have one, divided over `count` servers with this `memory`."""

    place: str = _choice(FIRST_NODE, FIRST_NODE, OWN_NODES)
    count: int = _number(1, 1, _MOST_WORKERS)
    memory: float = _of(units.BANDWIDTH, 10e9, 1.0)


_SECTIONS: dict[str, type[Any]] = {
    "worker": WorkerSpec,
    "node": NodeSpec,
    "network": NetworkSpec,
    "rack": RackSpec,
    "server": ServerSpec,
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A described cluster of any number of equal nodes, which workers fill in order.

    `source` says where its figures come from. Clusters of one `family` are of one kind; else one of the same title.
    """

    title: str
    source: str = ""
    worker: WorkerSpec = field(default_factory=WorkerSpec)
    node: NodeSpec = field(default_factory=NodeSpec)
    network: NetworkSpec = field(default_factory=NetworkSpec)
    rack: RackSpec = field(default_factory=RackSpec)
    server: ServerSpec = field(default_factory=ServerSpec)
    family: str = ""

    @property
    def machine(self) -> MachineModel:
        """The model of the simulator."""
        node, network, worker = self.node, self.network, self.worker
        slow = (*[1.0] * (worker.slow_every - 1), worker.slow_factor) if worker.slow_every else ()
        return MachineModel(
            Link(network.latency, network.bandwidth, network.overhead),
            Link(node.latency, node.bandwidth, node.overhead),
            node.workers,
            _PORTS[network.ports],
            worker.memory,
            slow,
            self._racks(),
            network.processing,
            worker.spare_core,
        )

    def _racks(self) -> Racks | None:
        if not self.rack.nodes:
            return None
        bandwidth = self.rack.nodes * self.network.bandwidth / self.rack.oversubscription
        return Racks(self.rack.nodes, Link(self.rack.latency, bandwidth))

    @property
    def ideal(self) -> "Cluster":
        """The same workers, whose exchanges take no time."""
        worker = replace(self.worker, memory=math.inf)
        node = replace(self.node, bandwidth=math.inf, latency=0.0, overhead=0.0)
        server = replace(self.server, memory=math.inf)
        return replace(self, worker=worker, node=node, network=NetworkSpec(), rack=RackSpec(), server=server)

    def slower(self, num_workers: int) -> float:
        """The factor on the time in which one of `num_workers` moves its bytes, by the others of its node."""
        others = min(num_workers, self.node.workers) - 1
        return 1.0 + (self.worker.crowded_factor - 1.0) * others / max(1, self.node.workers - 1)

    def kind_of(self, num_workers: int, has_center: bool) -> str:
        """The runs to whose errors that of a prediction is likely to be near."""
        place = "one node" if num_workers <= self.node.workers else "several nodes"
        return f"{self.family or self.title}: {place}, {'at a center' if has_center else 'in step'}"

    def num_nodes(self, num_workers: int) -> int:
        """Nodes that this number of workers needs, without those of servers."""
        return -(-num_workers // self.node.workers)

    def server_hosts(self, num_workers: int) -> tuple[int, ...]:
        """The nodes of a center's servers. Those at the first node share the nodes of workers, in order."""
        count, num_nodes = self.server.count, self.num_nodes(num_workers)
        shared = self.server.place == FIRST_NODE
        return tuple(index % num_nodes if shared else num_nodes + index for index in range(count))

    def price_per_hour(self, num_workers: int, has_center: bool) -> float | None:
        """Of all nodes, and of servers on nodes of their own; None if no price is given."""
        if self.node.price_per_hour is None:
            return None
        servers = self.server.count if has_center and self.server.place == OWN_NODES else 0
        return self.node.price_per_hour * (self.num_nodes(num_workers) + servers)


def preset_names() -> tuple[str, ...]:
    """The clusters that come with the program; `here` is made from a calibration record."""
    found = (one.name.removesuffix(".toml") for one in _presets().iterdir() if one.name.endswith(".toml"))
    return (*sorted(found), HERE)


def load_cluster(named: str, record: CalibrationRecord, flag: str = "--cluster") -> Cluster:
    """The preset of that name, else the file; `here` has the figures of `record`. Raises InputError about `flag`."""
    if named == HERE:
        return cluster_here(record)
    if named in preset_names():
        return parse_cluster((_presets() / f"{named}.toml").read_text(encoding="utf-8"), named)
    path = Path(named)
    if not path.suffix and not path.exists():
        raise InputError(f"{flag} {named}: is not a .toml file, and no such preset; {nearest(named, preset_names())}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{flag} {named}: cannot be read: {error.strerror}; give a preset or a .toml file") from error
    if len(content) > _MOST_BYTES:
        raise InputError(f"{flag} {named}: has {len(content):,} bytes; a description has at most {_MOST_BYTES:,}")
    try:
        return parse_cluster(content.decode(), named)
    except UnicodeDecodeError as error:
        raise InputError(f"{flag} {named}: is not a text; give a preset or a .toml file") from error


def parse_cluster(text: str, name: str) -> Cluster:
    """The cluster in a TOML text. Raises InputError, which begins with `name` and names the field."""
    try:
        values = tomllib.loads(text)
        return _cluster(values)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{name}: is not TOML: {error}") from error
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error


def cluster_here(record: CalibrationRecord) -> Cluster:
    """Nodes like the measured machine with a worker on each core. Links are as measured, else of 1 Gbit/s."""
    shm = record.transports["shm"]
    memory = record.copy_bandwidth_all_bytes_per_s / record.cores
    crowded = max(1.0, record.copy_bandwidth_one_bytes_per_s / memory)
    links = None if record == NOMINAL else record.transports.get("tcp")
    between = "1 Gbit/s between them" if links is None else "links as measured"
    return Cluster(
        f"nodes like this one ({record.machine}, a worker on each of {record.cores} cores), {between}",
        f"inside a node: {'assumed' if record == NOMINAL else 'samovar doctor'}; "
        f"between nodes: {'assumed' if links is None else 'samovar doctor, too'}",
        WorkerSpec(memory=memory, crowded_factor=crowded, spare_core=False),
        NodeSpec(record.cores, shm.bandwidth_at(1 << 22), shm.spinning_latency_s),
        NetworkSpec(125e6, 50e-6, 10e-6) if links is None else _network(links),
        server=ServerSpec(memory=record.copy_bandwidth_one_bytes_per_s),
        family=f"nodes like this one ({record.machine})",
    )


def _network(figures: TransportFigures) -> NetworkSpec:
    """The bandwidth is that of large messages, and small ones take the overhead besides."""
    (size, rate), (_, bandwidth) = figures.bandwidth[0], figures.bandwidth[-1]
    overhead_s = max(0.0, size / rate - size / bandwidth)
    return NetworkSpec(bandwidth, figures.sleeping_latency_s, overhead_s, processing=figures.processing_bytes_per_s)


def _presets() -> Traversable:
    return resources.files("samovar.predict") / "presets"


def _cluster(values: Mapping[str, Any]) -> Cluster:
    allowed = ["title", "source", *_SECTIONS]
    for name in values:
        if name not in allowed:
            raise ValueError(f"has an unknown {name!r}; {nearest(name, allowed)}")
    title, source = (_text(name, values.get(name, "")) for name in ("title", "source"))
    parts: dict[str, Any] = {
        name: _part(name, kind, values[name]) for name, kind in _SECTIONS.items() if name in values
    }
    if not title:
        raise ValueError('has no title; begin with title = "16 nodes, 10 Gbit/s"')
    return Cluster(title, source, **parts)


def _part(section: str, kind: type[_Part], values: object) -> _Part:
    if not isinstance(values, Mapping):
        raise ValueError(f"{section} is {values!r}; it is a section, [{section}]")
    fields = {one.name: one for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise ValueError(f"[{section}] has an unknown {name!r}; {nearest(name, list(fields))}")
        if (other := _NEEDED.get(section, {}).get(name, name)) not in values:
            raise ValueError(f"[{section}] {name} has no effect without {other}; give both")
    found = {}
    for name, value in values.items():
        try:
            found[name] = _value(value, fields[name])
        except ValueError as error:
            raise ValueError(f"[{section}] {name} {error}") from error
    return kind(**found)


def _value(value: object, field: "dataclasses.Field[Any]") -> object:
    metadata = field.metadata
    if "kind" in metadata:
        number, most = units.quantity(value, metadata["kind"]), _MOST_OF.get(metadata["kind"])
        if most is not None and number > units.quantity(most, metadata["kind"]):
            raise ValueError(f"is {value!r}; give at most {most}")
        return _at_least(number, value, metadata["least"])
    if "choices" in metadata:
        if value not in metadata["choices"]:
            raise ValueError(f"is {value!r}; choose {' or '.join(map(repr, metadata['choices']))}")
        return value
    if "least" in metadata:
        most = metadata["most"] if type(field.default) is int else None
        return _at_least(_plain_number(value, most), value, metadata["least"])
    wanted = type(field.default)
    if type(value) is not wanted:
        raise ValueError(f"is {value!r}; give {'true or false' if wanted is bool else 'a text'}")
    return value


def _plain_number(value: object, most: int | None) -> float:
    """A whole one if there is a `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        raise ValueError(f"is {value!r}; give a number")
    if most is not None and not isinstance(value, int):
        raise ValueError(f"is {value!r}; give a whole number")
    if most is not None and value > most:
        raise ValueError(f"is {value!r}; give at most {most:,}")
    return value


def _at_least(number: float, written: object, least: float) -> float:
    if number < least:
        raise ValueError(f"is {written!r}; give at least {least:g}")
    return number


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; give a text")
    return value
