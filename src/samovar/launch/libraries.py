"""The libraries of one-sided windows that a rank starts: MPI, and GPI-2."""

import secrets
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from samovar.core.clock import Deadline
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.core.group import Host
from samovar.launch.identity import variables_of_gaspi
from samovar.transports.gaspi_library import NUM_PORTS, GaspiLibrary, gaspi_library, is_free
from samovar.transports.rendezvous import within

# GPI-2 listens above a port of these, which are below those that Linux gives to whoever asks for any.
_FIRST_PORT, _NUM_FIRST_PORTS, _NUM_DRAWN = 10_000, 20_000, 8
# show(what, row): the rows that the first ranks of all hosts show.
Show = Callable[[str, Sequence[int]], Sequence[Sequence[int]]]


def mpi_windows() -> Any:
    """The module `samovar.transports.mpi`; this starts MPI. Raises InputError if mpi4py finds no library of it."""
    try:
        return import_module("samovar.transports.mpi")
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"transport 'mpi': mpi4py cannot load MPI: {error}; install one, such as by `pip install 'samovar[mpi]'`"
        ) from error


def started_gaspi(
    rank: int, hosts: Sequence[Host], addresses: Sequence[str], show: Show, deadline: Deadline
) -> GaspiLibrary:
    """GPI-2 among all ranks of `hosts`, at ports that are free on each; `addresses` are the ranks'.

    Raises InputError without the library or without ports, RankFailed if ranks do not reach each other.
    """
    library = gaspi_library()
    if library.started is not None:
        return library
    port = _common_port(rank, hosts, show)

    def start() -> None:
        with variables_of_gaspi(rank, addresses):
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
