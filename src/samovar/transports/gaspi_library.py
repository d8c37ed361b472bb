"""GPI-2, a library of GASPI's interface, which the user has installed. It is found when it is asked for.

Nothing of it is part of this package: here are only the names and types of the calls (gaspi.de, and GPI-2 1.6). Every
call that waits has a limit in milliseconds; TEST is none at all.
"""

import ctypes
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_ubyte, c_uint, c_ulong, c_ushort, c_void_p
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.core.group import Host
from samovar.transports.rendezvous import within

SUCCESS, ERROR, TIMEOUT, QUEUE_FULL = 0, -1, 1, 23
TEST: Final = 0
# A job's ports: for its start and for segments, from `port` on, and for data. One for each rank of a host.
MOST_RANKS_A_HOST: Final = 256
NUM_PORTS: Final = 3 * MOST_RANKS_A_HOST
# GPI-2 listens above a port of these, which are below those that Linux gives to whoever asks for any.
_FIRST_PORT, _NUM_FIRST_PORTS, _NUM_DRAWN = 10_000, 20_000, 8
# show(what, row): the rows that the first ranks of all hosts show.
Show = Callable[[str, Sequence[int]], Sequence[Sequence[int]]]
# variables(rank, addresses): while this is open, the environment has what gaspi_run would tell.
Variables = Callable[[int, Sequence[str]], AbstractContextManager[None]]
_LIBRARIES = ("libGPI2.so.0", "libGPI2.so")
_LEAST_VERSION = 1.6
_UNINITIALIZED = 0
_segment, _rank, _queue, _size, _offset, _timeout = c_ubyte, c_ushort, c_ubyte, c_ulong, c_ulong, c_ulong
_CALLS: dict[str, tuple[Any, ...]] = {
    "version": (POINTER(c_float),),
    "proc_init": (_timeout,),
    "connect": (_rank, _timeout),
    "state_vec_get": (POINTER(c_int),),
    "segment_alloc": (_segment, _size, c_int),
    "segment_register": (_segment, _rank, _timeout),
    "segment_size": (_segment, _rank, POINTER(_size)),
    "segment_ptr": (_segment, POINTER(c_void_p)),
    "write": (_segment, _offset, _rank, _segment, _offset, _size, _queue, _timeout),
    "write_notify": (_segment, _offset, _rank, _segment, _offset, _size, c_uint, c_uint, _queue, _timeout),
    "read": (_segment, _offset, _rank, _segment, _offset, _size, _queue, _timeout),
    "wait": (_queue, _timeout),
    "notify": (_segment, _rank, c_uint, c_uint, _queue, _timeout),
    "notify_waitsome": (_segment, c_uint, c_uint, POINTER(c_uint), _timeout),
    "notify_reset": (_segment, c_uint, POINTER(c_uint)),
    "atomic_fetch_add": (_segment, _offset, _rank, c_ulong, POINTER(c_ulong), _timeout),
    "atomic_compare_swap": (_segment, _offset, _rank, c_ulong, c_ulong, POINTER(c_ulong), _timeout),
}


class _Infiniband(Structure):
    _fields_ = (("netdev_id", c_int), ("mtu", c_uint), ("port_check", c_uint))


class _Device(Structure):
    _fields_ = (("network_type", c_int), ("ib", _Infiniband), ("tcp_port", c_uint), ("ofi", 3 * c_int))


class _Config(Structure):
    """`gaspi_config_t`."""

    _fields_ = (
        *((name, c_uint) for name in ("logger", "sn_port", "net_info", "user_net")),
        ("sn_persistent", c_int),
        ("sn_timeout", c_ulong),
        ("device", _Device),
        ("network", c_int),
        *((name, c_uint) for name in ("queue_size_max", "queue_num", "group_max", "segment_max")),
        ("transfer_size_max", c_ulong),
        *((name, c_uint) for name in ("notification_num", "passive_queue_size_max", "passive_transfer_size_max")),
        ("allreduce_buf_size", c_ulong),
        *((name, c_uint) for name in ("allreduce_elem_max", "rw_list_elem_max")),
        ("build_infrastructure", c_int),
        ("user_defined", c_void_p),
    )


class GaspiLibrary:
    """The loaded library; a process has one, and starts it at most once.

    `segments` counts those that all ranks have, from number 0 on. Those of this rank alone are numbered down from the
    highest.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._calls: dict[str, Callable[..., int]] = {}
        for name, types in _CALLS.items():
            call = self._calls[name] = library[f"gaspi_{name}"]
            call.argtypes = types
        self._error_text = library["gaspi_error_str"]
        self._error_text.argtypes, self._error_text.restype = (c_int,), c_char_p
        library["gaspi_config_get"].argtypes = (POINTER(_Config),)
        library["gaspi_config_set"].argtypes = (_Config,)
        self._library = library
        self.started: tuple[int, int] | None = None
        self.segments = 0
        self._num_own_segments = 0

    def start(self, rank: int, world_size: int, port: int, deadline: Deadline) -> None:
        """Meet the other ranks, each at ports of its host from `port` on. The rank and the hosts are in the
        environment, as gaspi_run puts them there. Raises SamovarError.
        """
        self._config = _Config()
        self.require("config_get", self._library["gaspi_config_get"](byref(self._config)))
        self._config.sn_port = port
        self._config.device.tcp_port = port + 2 * MOST_RANKS_A_HOST
        self.require("config_set", self._library["gaspi_config_set"](self._config))
        with suppress(ValueError):  # GPI-2 1.6 sets all but the port for data, and has its settings here
            _Config.in_dll(self._library, "glb_gaspi_cfg").device.tcp_port = self._config.device.tcp_port
        self.require("proc_init", self.call("proc_init", milliseconds(deadline)))
        self._states = world_size * c_int
        self.started = (rank, world_size)
        for peer in range(world_size):
            self.require("connect", self.call("connect", peer, milliseconds(deadline)))

    @property
    def network(self) -> str:
        return {0: "InfiniBand", 1: "RoCE", 2: "Ethernet", 5: "libfabric"}.get(self._config.network, "its network")

    @property
    def num_notifications(self) -> int:
        """Of each segment."""
        return int(self._config.notification_num)

    @property
    def most_bytes(self) -> int:
        """Of one transfer."""
        return int(self._config.transfer_size_max)

    def queue_of(self, peer: int) -> int:
        """Operations on one rank go through one queue, so that a notification comes after the data."""
        return peer % int(self._config.queue_num)

    def call(self, name: str, *given: Any) -> int:
        """The code that the call `gaspi_NAME` returns. Python's other threads continue meanwhile."""
        return self._calls[name](*given)

    def require(self, name: str, code: int) -> None:
        if code != SUCCESS:
            raise SamovarError(f"GPI-2: gaspi_{name}: {self._error_text(code).decode()} (code {code})")

    def word(self, name: str, *given: Any) -> int:
        """The old word of an atomic."""
        old = c_ulong()
        *place, timeout_ms = given
        self.require(name, self.call(name, *place, byref(old), timeout_ms))
        return old.value

    def allocate(self, num_bytes: int, *, is_own: bool = False) -> "GaspiSegment":
        """A segment of this rank, not zeroed. Raises InputError if there is no room for it."""
        number = self._config.segment_max - 1 - self._num_own_segments if is_own else self.segments
        code = self.call("segment_alloc", number, num_bytes, _UNINITIALIZED)
        if code != SUCCESS:
            raise InputError(
                f"GPI-2 has no room for a segment of {num_bytes:,} bytes: {self._error_text(code).decode()}; use fewer "
                "ranks on this host, or raise the limit of memory"
            )
        if is_own:
            self._num_own_segments += 1
        else:
            self.segments += 1
        place = c_void_p()
        self.require("segment_ptr", self.call("segment_ptr", number, byref(place)))
        assert place.value is not None
        memory = np.ctypeslib.as_array((num_bytes * c_ubyte).from_address(place.value))
        return GaspiSegment(number, place.value, memory)

    def size_on(self, segment: int, rank: int) -> int | None:
        """The size of the segment that the rank has told; None until then."""
        size = c_ulong()
        return size.value or None if self.call("segment_size", segment, rank, byref(size)) == SUCCESS else None

    def is_corrupt(self, rank: int) -> bool:
        """Whether an operation on this rank has failed."""
        states = self._states()
        self.require("state_vec_get", self.call("state_vec_get", states))
        return bool(states[rank])

    def reset(self, segment: int, number: int) -> int:
        """The value of a notification that has come, which this takes away; 0 if none has."""
        told = c_uint()
        self.call("notify_reset", segment, number, byref(told))
        return told.value

    def first_of(self, segment: int, start: int, count: int) -> int | None:
        """The first notification of these that has come."""
        first = c_uint()
        code = self.call("notify_waitsome", segment, start, count, byref(first), TEST)
        return first.value if code == SUCCESS else None


class GaspiSegment:
    """Registered memory of this rank, and how much of it, and of its notifications, windows have taken."""

    def __init__(self, number: int, start: int, memory: npt.NDArray[np.uint8]) -> None:
        self.number = number
        self.memory = memory
        self.used_bytes = 0
        self.used_notifications = 0
        self._start = start

    def place_of(self, array: npt.NDArray[np.uint8]) -> int | None:
        """Where the array begins in here; None if it is elsewhere."""
        place = array.ctypes.data - self._start
        return place if 0 <= place <= len(self.memory) - array.nbytes else None


@cache
def gaspi_library() -> GaspiLibrary:
    """Load it. Raises InputError with what to install."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        found = GaspiLibrary(library)
        version = c_float()
        found.call("version", byref(version))
        if round(version.value, 2) < _LEAST_VERSION:
            raise InputError(f"transport 'gaspi' needs GPI-2 1.6 or newer, and {name} is {version.value:.2g}")
        return found
    raise InputError(
        "transport 'gaspi' needs GPI-2, and the loader finds no libGPI2.so: install it from "
        "https://github.com/cc-hpc-itwm/GPI-2, and name its folder lib64 in LD_LIBRARY_PATH"
    )


def is_free(port: int, num_ranks: int) -> bool:
    """Whether the ranks of this host can have ports from this one on."""
    for part in range(NUM_PORTS // MOST_RANKS_A_HOST):
        for place in range(num_ranks):
            with socket.socket() as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listening.bind(("", port + part * MOST_RANKS_A_HOST + place))
                except OSError:
                    return False
    return True


def milliseconds(deadline: Deadline) -> int:
    """The time left, for a call."""
    return max(1, int(1000 * deadline.timeout_s()))


def started_gaspi(
    rank: int, hosts: Sequence[Host], addresses: Sequence[str], show: Show, deadline: Deadline, variables: Variables
) -> GaspiLibrary:
    """GPI-2 among all ranks of `hosts`, at ports that are free on each; `addresses` are the ranks'.

    Raises InputError without the library or without ports, RankFailed if ranks do not reach each other.
    """
    library = gaspi_library()
    if library.started is not None:
        return library
    port = _common_port(rank, hosts, show)

    def start() -> None:
        with variables(rank, addresses):
            library.start(rank, len(addresses), port, deadline)

    try:
        within(start, deadline)
    except (TimeoutError, SamovarError) as error:
        raise RankFailed(
            f"rank {rank}: GPI-2 does not connect the ranks at ports {port} to {port + NUM_PORTS - 1}: "
            f"{error or 'not in time'}; do hosts reach each other there, and does no "
            "other program have them?"
        ) from error
    return library


def _common_port(rank: int, hosts: Sequence[Host], show: Show) -> int:
    """The first of ports that are free on every host; rank 0 draws them."""
    own = next(host for host in hosts if rank in host.ranks)
    drawn = [_FIRST_PORT + secrets.randbelow(_NUM_FIRST_PORTS) for _ in range(_NUM_DRAWN)]
    ports = show("ports", drawn)[0]
    leads = rank == own.ranks[0]
    free = show("free", [int(leads and is_free(port, len(own.ranks))) for port in ports])
    for port, is_everywhere in zip(ports, map(all, zip(*free, strict=True)), strict=True):
        if is_everywhere:
            return port
    tried = ", ".join(map(str, ports))
    raise InputError(f"rank {rank}: GPI-2: none of the ports {tried} is free on every host; start again")
