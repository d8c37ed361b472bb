"""`samovar train` started by torchrun, mpiexec or srun, once for each worker: one process a host launches them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from samovar.core.errors import InputError, SamovarError
from samovar.core.modules import require_optional
from samovar.launch.identity import AUTO, Identity, own_identity
from samovar.launch.local_group import await_first, is_one_per_host, leads_host, local_group, num_local, tell
from samovar.launch.meeting import HostPlace
from samovar.report.result import RunResult, heard, told
from samovar.transports.gaspi_library import gaspi_library

_LAUNCHERS_OF_MPI = ("MPI", "SLURM")
Run = Callable[[int | str, HostPlace | None], RunResult | None]


def as_started(
    workers: int | str,
    place: HostPlace | None,
    key_file: Path | None,
    timeout_s: float,
    run: Run,
    transport: str = AUTO,
) -> RunResult | None:
    """`run(workers, place)`, or what follows from the launcher that started this process, if one did.

    Of the processes on a host, the first calls `run` for all of them, and the others return its result or raise its
    error. If there is one process a host, `workers` may be given. Raises InputError if there are several and they are,
    or if `transport` is a library that is not here, or that did not start this process.
    """
    identity = own_identity() if place is None else Identity()
    _require_library(transport, identity, workers, is_placed=place is not None)
    for_mpi = transport == "mpi"
    if identity.world_size == 1 and not for_mpi:
        if place is None and key_file is not None:
            raise InputError("--key-file: needs a box or several hosts; give --box or --nodes too, or leave it out")
        return run(workers, place)
    if is_one_per_host(identity, workers):
        place = _place(identity, key_file)
        assert place is not None, "several processes, one a host"
        return run(workers, replace(place, num_hosts=identity.world_size, num_ranks=None))
    if not leads_host(identity):
        outcome = heard(await_first(identity, timeout_s, for_mpi=for_mpi))
        if isinstance(outcome, SamovarError):
            outcome.is_shown = True
            raise outcome
        return outcome
    with local_group(identity, timeout_s, for_mpi=for_mpi) as others:
        try:
            result = run(num_local(identity), _place(identity, key_file))
        except BaseException as error:
            tell(others, told(error))
            raise
        tell(others, told(result))
        return result


def _require_library(transport: str, identity: Identity, workers: int | str, *, is_placed: bool) -> None:
    if transport == "gaspi":
        gaspi_library()
    if transport != "mpi":
        return
    require_optional("mpi4py")
    if is_placed:
        raise InputError("--transport mpi: mpiexec starts the workers of all hosts; leave --nodes and --hosts out")
    if identity.launcher not in _LAUNCHERS_OF_MPI:
        raise InputError(
            "--transport mpi: needs workers that MPI started; start this command by mpiexec, without --workers: "
            "mpiexec -n 4 samovar train ..."
        )
    if workers not in (1, "1"):
        raise InputError(f"--workers {workers}: with --transport mpi each process of mpiexec is a worker; leave it out")


def _place(identity: Identity, key_file: Path | None) -> HostPlace | None:
    """None if all ranks are on this host."""
    if num_local(identity) == identity.world_size:
        return None
    if identity.address is None or identity.port is None:
        raise InputError(
            f"{identity.launcher} does not tell its {identity.world_size} processes which share a host; set "
            "MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there"
        )
    return HostPlace(
        identity.rank,
        identity.address,
        identity.port,
        num_ranks=identity.world_size,
        key_file=key_file or identity.key_file,
        store=f"{identity.launcher} {identity.attempt}" if identity.agent_store else None,
    )
