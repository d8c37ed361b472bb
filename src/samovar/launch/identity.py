"""The rank of this process, from the variables that launchers set."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from samovar.core.errors import InputError, require_choice
from samovar.core.units import is_count

_MIN_PORT, _NUM_PORTS = 15_000, 15_000  # below the ports that Linux gives to whoever asks for any
AUTO = "auto"
EMULATION = "SAMOVAR_EMULATION"
LIBRARIES = ("mpi", "gaspi")
TRANSPORTS = (AUTO, "shm", "gloo", "nccl", "tcp", *LIBRARIES)


@dataclass(frozen=True, slots=True)
class Identity:
    """This process among `world_size` ranks, and where they meet.

    They meet at `address`:`port`. Rank 0 serves it, or with `agent_store` a launcher's agent; `listen_descriptor` is a
    listening socket that rank 0 inherited. Without an address all ranks run on this node and rank 0 chooses a port.
    Then `job` is what they have in common; None is only the launcher as ancestor. `local_*` are None if the launcher
    does not say. `transport` is one of TRANSPORTS, `key_file` its job's key. `kept_files` are descriptors of the board
    and the center that the launcher keeps, and `life` counts how often it started this rank again, alone. `emulation`
    describes the cluster that this host emulates, as JSON.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int | None = 1
    launcher: str = "single"
    address: str | None = None
    port: int | None = None
    listen_descriptor: int | None = None
    agent_store: bool = False
    attempt: int = 0
    job: str | None = None
    interfaces: tuple[str, ...] = ()
    transport: str = AUTO
    key_file: Path | None = None
    kept_files: tuple[int, int] | None = None
    life: int = 0
    emulation: str | None = None


def own_identity() -> Identity:
    """The identity of this process, from its environment."""
    return identity(os.environ)


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """This process in the elastic job `name`: its number at its launcher, which began the job, or `joins` it.

    `door` names that launcher's socket. In a job on several hosts `address` is this host's, and `key_file` has the key.
    """

    name: str
    place: int
    joins: bool
    door: str = ""
    address: str | None = None
    key_file: Path | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The variables that `elastic_job` reads. The launcher sets the number and the key elsewhere."""
        joins = {"SAMOVAR_ELASTIC_JOINS": "1"} if self.joins else {}
        address = {} if self.address is None else {"SAMOVAR_ELASTIC_ADDRESS": self.address}
        return {"SAMOVAR_ELASTIC": self.name, "SAMOVAR_ELASTIC_DOOR": self.door, **joins, **address}


def elastic_job() -> ElasticJob | None:
    """The elastic job that this process belongs to; None outside of one."""
    name = os.environ.get("SAMOVAR_ELASTIC")
    if not name:
        return None
    door, address = os.environ.get("SAMOVAR_ELASTIC_DOOR", ""), os.environ.get("SAMOVAR_ELASTIC_ADDRESS")
    joins = "SAMOVAR_ELASTIC_JOINS" in os.environ
    return ElasticJob(name, _number(os.environ, "RANK", 0), joins, door, address, own_key_file())


def own_key_file(variables: Mapping[str, str] = os.environ) -> Path | None:
    """The job's key that the environment names."""
    return Path(variables["SAMOVAR_KEY_FILE"]) if variables.get("SAMOVAR_KEY_FILE") else None


def identity_in_group(rank: int, world_size: int, address: str | None) -> Identity:
    """Rank `rank` of a process group that the program opened. Its ranks meet in that group's store, at `address`."""
    found = Identity(rank, world_size, None, None, launcher="torch.distributed", address=address, agent_store=True)
    return _with_choices(found, os.environ)


def identity(variables: Mapping[str, str]) -> Identity:
    """The first that applies of the variables of torchrun, gaspi_run, SLURM and MPI; else a single process.

    A pure function. WORLD_SIZE alone only confirms what another launcher says. Raises InputError if variables are
    incomplete, not numbers, or contradict each other.
    """
    given = {name: value for name, value in variables.items() if value != ""}
    if "RANK" in given:
        return _checked(_torchrun(given), given)
    found = _gaspi(given) or _innermost(_slurm(given), _mpi(given))
    if found is None:
        if given.get("WORLD_SIZE", "1") != "1":
            raise InputError(f"WORLD_SIZE is {given['WORLD_SIZE']} but RANK is not set; set both, or neither")
        return Identity()
    if _number(given, "WORLD_SIZE", found.world_size) != found.world_size:
        raise InputError(
            f"WORLD_SIZE is {given['WORLD_SIZE']} but {found.launcher} started {found.world_size} ranks; unset it"
        )
    return _checked(found, given)


def launcher_process() -> str:
    """The nearest ancestor that is not part of a rank itself: its process number and start time.

    All ranks of a node share it. Ancestors with this rank's variables are wrappers, such as a shell or a profiler.
    """
    own = os.getpid()
    while (parent := int(_status_fields(own)[1])) > 1 and _wraps_this_rank(parent):
        own = parent
    if not parent:
        raise InputError(
            "this rank is the first process of a container, and cannot see what started it; start all ranks inside the "
            "container, or set MASTER_ADDR and MASTER_PORT"
        )
    return f"{parent}-{_status_fields(parent)[19]}"


@contextmanager
def variables_of_gaspi(rank: int, addresses: Sequence[str]) -> Iterator[None]:
    """While this is open, GPI-2 finds in the environment what gaspi_run would tell it; `addresses` are all ranks'."""
    descriptor = os.memfd_create("gaspi-hosts")  # a file that no name leads to, so that none is left
    os.write(descriptor, "".join(f"{address}\n" for address in addresses).encode())
    told = {
        "GASPI_RANK": str(rank),
        "GASPI_NRANKS": str(len(addresses)),
        "GASPI_SOCKET": str(addresses[:rank].count(addresses[rank])),
        "GASPI_MFILE": f"/proc/self/fd/{descriptor}",
        "GASPI_SET_NUMA_SOCKET": "0",  # `launch.numa` places ranks
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        os.close(descriptor)


def _torchrun(given: Mapping[str, str]) -> Identity:
    _require(given, "torchrun's variables", "RANK", "WORLD_SIZE")
    if ("LOCAL_RANK" in given) != ("LOCAL_WORLD_SIZE" in given):
        _require(given, "torchrun's variables", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    world_size = _number(given, "WORLD_SIZE")
    if world_size > 1:
        _require(given, f"{world_size} ranks", "MASTER_ADDR", "MASTER_PORT")
    return Identity(
        rank=_number(given, "RANK"),
        world_size=world_size,
        local_rank=_optional(given, "LOCAL_RANK"),
        local_world_size=_optional(given, "LOCAL_WORLD_SIZE"),
        launcher="torchrun",
        listen_descriptor=_optional(given, "SAMOVAR_LISTEN_FD"),
        agent_store=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(given, "TORCHELASTIC_RESTART_COUNT", 0),
    )


def _slurm(given: Mapping[str, str]) -> Identity | None:
    world_size = _number(given, "SLURM_STEP_NUM_TASKS", 1)
    if world_size <= 1 or "SLURM_PROCID" not in given:
        return None
    _require(given, "SLURM's variables", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_NODEID")
    job, step = _number(given, "SLURM_JOB_ID"), given["SLURM_STEP_ID"]
    counts = given.get("SLURM_STEP_TASKS_PER_NODE") or given.get("SLURM_TASKS_PER_NODE")
    local = tasks_on_node(counts, _number(given, "SLURM_NODEID")) if counts else None
    nodes = given.get("SLURM_STEP_NODELIST") or given.get("SLURM_JOB_NODELIST")
    is_one_node = _number(given, "SLURM_STEP_NUM_NODES", _number(given, "SLURM_NNODES", 1)) == 1
    if not is_one_node and nodes is None:
        raise InputError("SLURM_STEP_NODELIST is not set for a step on several nodes; set MASTER_ADDR and MASTER_PORT")
    port = _MIN_PORT + (16 * job + (int(step) if is_count(step) else crc32(step.encode()))) % _NUM_PORTS
    return Identity(
        rank=_number(given, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=_number(given, "SLURM_LOCALID"),
        local_world_size=local,
        launcher="SLURM",
        address=None if is_one_node or nodes is None else first_node(nodes),
        port=None if is_one_node else port,
        job=f"slurm-{job}.{step}-{given.get('SLURM_RESTART_COUNT', '0')}",
    )


def _gaspi(given: Mapping[str, str]) -> Identity | None:
    """gaspi_run names no port. Its file of hosts has a name of its own for each job, the same on all hosts."""
    if "GASPI_RANK" not in given:
        return None
    _require(given, "gaspi_run's variables", "GASPI_NRANKS", "GASPI_SOCKET", "GASPI_MASTER", "GASPI_MFILE")
    return Identity(
        rank=_number(given, "GASPI_RANK"),
        world_size=_number(given, "GASPI_NRANKS"),
        local_rank=_number(given, "GASPI_SOCKET"),
        local_world_size=None,
        launcher="gaspi_run",
        address=given["GASPI_MASTER"],
        port=_MIN_PORT + crc32(given["GASPI_MFILE"].encode()) % _NUM_PORTS,
    )


# Rank, size, rank on this node, ranks on this node.
_MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "WORLD_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"),
)


def _mpi(given: Mapping[str, str]) -> Identity | None:
    names = next((names for names in _MPI_VARIABLES if names[0] in given), None)
    if names is None:
        return None
    _require(given, "MPI's variables", *names[:2])
    namespace = given.get("PMIX_NAMESPACE")
    found = Identity(
        rank=_number(given, names[0]),
        world_size=_number(given, names[1]),
        local_rank=_optional(given, names[2]),
        local_world_size=_optional(given, names[3]),
        launcher="MPI",
        job=None if namespace is None else f"pmix-{namespace}",
    )
    several = found.local_world_size is not None and found.local_world_size < found.world_size
    if several and not {"MASTER_ADDR", "MASTER_PORT"} <= given.keys():
        raise InputError(
            f"MPI started {found.world_size} ranks, {found.local_world_size} of them here; "
            "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, for all ranks"
        )
    return found


def _innermost(slurm: Identity | None, mpi: Identity | None) -> Identity | None:
    """srun also starts the daemons of mpiexec, one a node; the ranks are then MPI's."""
    if slurm is not None and mpi is not None and mpi.world_size > slurm.world_size:
        return mpi
    return slurm or mpi


def _checked(found: Identity, given: Mapping[str, str]) -> Identity:
    """`found`, refused where a rank or a size is impossible."""
    who = f"{found.launcher}'s variables"
    if found.world_size < 1 or found.rank >= found.world_size:
        raise InputError(f"{who}: rank {found.rank} of {found.world_size} ranks; ranks count from 0 to one less")
    rank, size = found.local_rank, found.local_world_size
    if (size is not None and not 1 <= size <= found.world_size) or (
        rank is not None and rank >= (size or found.world_size)
    ):
        raise InputError(f"{who}: local rank {rank} of {size} on this node, in all {found.world_size} ranks")
    return replace(_with_choices(found, given), **_rendezvous(given))  # type: ignore[arg-type]


def _with_choices(found: Identity, given: Mapping[str, str]) -> Identity:
    transport = given.get("SAMOVAR_TRANSPORT") or AUTO
    board, center = "SAMOVAR_BOARD_FD", "SAMOVAR_CENTER_FD"
    require_choice("SAMOVAR_TRANSPORT", transport, TRANSPORTS)
    return replace(
        found,
        interfaces=tuple(given["GLOO_SOCKET_IFNAME"].split(",")) if given.get("GLOO_SOCKET_IFNAME") else (),
        transport=transport,
        key_file=own_key_file(given),
        kept_files=(_number(given, board), _number(given, center)) if board in given else None,
        life=_number(given, "SAMOVAR_LIFE", 0),
        emulation=given.get(EMULATION) or None,
    )


def _rendezvous(given: Mapping[str, str]) -> dict[str, str | int]:
    """MASTER_ADDR and MASTER_PORT win over what a launcher's own variables say."""
    if "MASTER_PORT" not in given:
        return {"address": given["MASTER_ADDR"]} if "MASTER_ADDR" in given and "SLURM_PROCID" in given else {}
    _require(given, "the meeting place", "MASTER_ADDR", "MASTER_PORT")
    # For a service called samovar Kubernetes sets SAMOVAR_PORT, too: tcp://10.0.0.1:80.
    port = _number(given, "SAMOVAR_PORT" if is_count(given.get("SAMOVAR_PORT", "")) else "MASTER_PORT")
    if not 1 <= port <= 65_535:
        raise InputError(f"MASTER_PORT is {port}; a port is a number from 1 to 65535")
    return {"address": given["MASTER_ADDR"], "port": port}


def _require(given: Mapping[str, str], what: str, *names: str) -> None:
    missing = [name for name in names if name not in given]
    if missing:
        present = ", ".join(name for name in names if name in given) or "none of the others"
        raise InputError(f"{what}: {', '.join(missing)} not set ({present} set); {' and '.join(names)} go together")


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    if name not in given and default is not None:
        return default
    if not is_count(given[name]):
        raise InputError(f"{name} is {given[name]!r}; it must be a whole number, 0 or more")
    return int(given[name])


def _optional(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name) if name in given else None


def _wraps_this_rank(process_id: int) -> bool:
    """Whether that process has this rank's place. A launcher may have one of its own, such as a task of SLURM."""
    own, meeting = own_identity(), {name: os.environ[name] for name in os.environ if name.startswith("MASTER_")}
    try:
        entries = os.fsdecode(Path(f"/proc/{process_id}/environ").read_bytes()).split("\0")
        found = identity(dict(entry.partition("=")[::2] for entry in entries) | meeting)  # which a wrapper may have set
    except (OSError, InputError):  # another user's, or incomplete: certainly no wrapper of ours
        return False
    places = [(each.rank, each.world_size, each.local_rank) for each in (own, found)]
    return own != Identity() and places[0] == places[1]


def _status_fields(process_id: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before may contain anything."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()


_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_NAME = re.compile(r"[^\[\],\s]*(?:\[[0-9,-]+\][^\[\],\s]*)*")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")


def first_node(nodes: str) -> str:
    """The first name of the list: each pair of brackets stands for its first number, leading zeros kept."""
    found = _NAME.match(nodes)
    if found is None or not found[0] or nodes[found.end() :][:1] not in ("", ","):
        raise InputError(f"the list of nodes {nodes!r} cannot be read; set MASTER_ADDR to the host of rank 0")
    return _BRACKETS.sub(lambda bracket: re.split("[,-]", bracket[1])[0], found[0])


def tasks_on_node(counts: str, node: int) -> int:
    """How many tasks run on node number `node` (from 0)."""
    position = node
    for part in counts.split(","):
        found = _COUNT.fullmatch(part)
        if found is None:
            break
        repeated = int(found[2] or 1)
        if position < repeated:
            return int(found[1])
        position -= repeated
    raise InputError(f"SLURM_STEP_TASKS_PER_NODE is {counts!r}, which does not say the tasks of node {node}")
