"""`samovar run`: a user's own script on several ranks."""

import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli import flags
from samovar.cli.command import OPTIONS, HelpAll
from samovar.cli.elastic_run import ElasticFlags, ElasticRun
from samovar.config import DEFAULT_TIMEOUT_S
from samovar.core.device import GPU
from samovar.core.errors import InputError, require_choice
from samovar.core.host import num_available_cpus
from samovar.core.machine import NOMINAL
from samovar.core.plain import to_plain
from samovar.core.trace import TraceWindow
from samovar.core.units import is_count
from samovar.launch.identity import AUTO, EMULATION, TRANSPORTS, own_identity
from samovar.launch.limits import require_room
from samovar.launch.script import ENDING, Hosts, Keeper, ScriptEnd, ScriptLaunch, describe_route
from samovar.launch.wishes import METRICS, TRACE, state_folder
from samovar.launcher.placing import count_gpus
from samovar.launcher.restart_policy import STOPPED_SHARE
from samovar.membership.kept_memory import KeptMemory
from samovar.predict.cluster import load_cluster
from samovar.predict.emulated import emulated
from samovar.predict.kept import Kept
from samovar.report.profile import load_profile
from samovar.report.run_folder import create_figures_folder
from samovar.report.script_output import ScriptOutput, end_sentence
from samovar.report.sinks import metrics_choice
from samovar.report.wording import ranges
from samovar.transports.gaspi_library import gaspi_library

SETTINGS = {"allow_interspersed_args": False}
_COMES_BACK = 3  # times, unless the user says how often
_STOPPED_S = STOPPED_SHARE * DEFAULT_TIMEOUT_S  # scripts do not say how long theirs wait
_SCRIPT = "The script that each rank runs, and its arguments."
_WORKERS = "Ranks on this host. gpu: one on each."
_TRANSPORTS = tuple(name for name in TRANSPORTS if name != "mpi")  # which needs MPI's launcher
_TRANSPORT = "auto, shm, gloo, nccl, tcp (encrypted), gaspi."
_RESTARTS = "If a rank fails, start all again up to N times; if elastic, it alone."
_KEEP_GOING = "If a rank fails, start it alone again (N: 3). For strategies at a center."
_METRICS = "Where figures of `samovar.replicate` go: a folder, tensorboard:FOLDER, wandb, mlflow."
_TRACE = "Record these steps as a timeline, into the folder of --metrics."
_ALL_LINES = "Show equal lines of several ranks, too."
_ELASTIC = "A job that ranks may join and leave."
_JOIN = "Join the elastic job NAME."
_EMULATE = "Behave like a described cluster."
_PROFILE = "The times of the net's layers, for --emulate."
_MIN = "Least number of ranks that train together."
_MAX = "Most ranks that train together; others wait."


def run_script(
    command: Annotated[list[str], typer.Argument(metavar="SCRIPT", help=_SCRIPT)],
    workers: Annotated[str, OPTIONS("N|auto|gpu", _WORKERS, "-n", "--workers")] = AUTO,
    module: Annotated[bool, OPTIONS("", "SCRIPT is a module, as in python -m.", "-m")] = False,
    transport: Annotated[str, OPTIONS("NAME", _TRANSPORT)] = AUTO,
    grace: Annotated[float, OPTIONS("SECONDS", "Time for ranks to end after a signal.")] = 30.0,
    max_restarts: Annotated[int | None, OPTIONS("N", _RESTARTS)] = None,
    keep_going: Annotated[bool, OPTIONS("", _KEEP_GOING, "--keep-going")] = False,
    metrics: Annotated[str | None, OPTIONS("PLACE", _METRICS)] = None,
    trace: Annotated[str | None, OPTIONS("steps=A-B", _TRACE)] = None,
    all_lines: Annotated[bool, OPTIONS("", _ALL_LINES, "--all-lines")] = False,
    emulate: Annotated[str | None, OPTIONS("CLUSTER", _EMULATE)] = None,
    profile: Annotated[Path | None, OPTIONS("FILE", _PROFILE, hidden=True)] = None,
    nodes: flags.Nodes = 1,
    node_rank: flags.NodeRank = None,
    master_addr: flags.MasterAddress = None,
    master_port: flags.MasterPort = None,
    key_file: flags.KeyFile = None,
    elastic: Annotated[str | None, OPTIONS("NAME", _ELASTIC)] = None,
    join: Annotated[str | None, OPTIONS("NAME", _JOIN)] = None,
    min_workers: Annotated[int | None, OPTIONS("N", _MIN, hidden=True)] = None,
    max_workers: Annotated[int | None, OPTIONS("N", _MAX, hidden=True)] = None,
    oversubscribe: flags.Oversubscribe = False,
    _help_all: HelpAll = False,
) -> None:
    """Run a script on several ranks of this host, or of several hosts.

    A rank finds the others by torchrun's variables. Each line of output has its rank in front.
    """
    num_ranks = _num_ranks(workers, oversubscribe)
    chosen = ElasticFlags(elastic, join, min_workers, max_workers, num_ranks, master_addr, master_port, key_file)
    is_elastic = chosen.require_fitting(nodes=nodes, node_rank=node_rank, keep_going=keep_going, transport=transport)
    hosts = None if is_elastic else Hosts.of(nodes, node_rank, master_addr, master_port)
    output, commands = ScriptOutput(with_doubles=all_lines), _rank_command(command, module)
    settings = _settings(transport, key_file) | _figure_settings(metrics, trace, hosts)
    settings |= _emulation(emulate, profile, num_ranks, (transport, hosts, chosen.name, keep_going), output.say)
    with ElasticRun(chosen, output.say) if is_elastic else _center(num_ranks, keep_going) as kept:
        launch = _launch(commands, num_ranks, hosts, output, grace, settings, max_restarts, kept)
        code = _ended(output, launch, kept)
    raise typer.Exit(code)


def _warn_of_several(say: Callable[[str], None]) -> None:
    """A launcher may have started this command several times. A sweep is meant so, one job is not."""
    with suppress(InputError):  # who starts no rank of its own by this command need not say all of a rank
        own = own_identity()
        if own.world_size > 1 and own.rank == 0:
            times = f"{own.launcher} started this command {own.world_size} times, and each is a job of its own"
            say(f"samovar: warning: {times}; for one job give --nodes, or let {own.launcher} start the script itself")


def _ended(output: ScriptOutput, launch: ScriptLaunch, kept: object) -> int:
    """Run the ranks and show what they said, before others are waited for. The exit code."""
    code = _finish(output, launch, launch.run(), is_elastic=isinstance(kept, ElasticRun))
    if isinstance(kept, ElasticRun) and not launch.is_asked_to_end:
        kept.linger()
    return code


def _center(num_ranks: int, keep_going: bool) -> AbstractContextManager[KeptMemory | None]:
    return KeptMemory(num_ranks) if keep_going else nullcontext()


def _launch(
    command: Callable[[int, tuple[int, ...]], list[str]],
    num_ranks: int,
    hosts: Hosts | None,
    output: ScriptOutput,
    grace_s: float,
    settings: dict[str, str],
    restarts: int | None,
    kept: Keeper | None,
) -> ScriptLaunch:
    max_restarts = _most_restarts(restarts, isinstance(kept, KeptMemory), hosts)
    if not 0 <= grace_s < math.inf:
        raise InputError(f"--grace {grace_s:g}: give a number of seconds from 0")

    def await_others_s(end: ScriptEnd) -> float:
        return output.await_others_s(end.rank, end.ended_s)

    def on_restart(ends: Sequence[ScriptEnd], number: int) -> None:
        output.flush_lines()
        first = _first_failed(output, ends)
        output.show_error(first.rank)
        sentence = end_sentence(first, ends, socket.gethostname(), ())
        which = "all are" if kept is None else "it is"
        output.say(f"samovar: warning: {sentence}; {which} started again (restart {number} of {max_restarts})")
        output.forget_errors()

    launch = ScriptLaunch(
        *(command, num_ranks, hosts, output.take, output, await_others_s, grace_s, settings, max_restarts, on_restart),
        kept=kept,
        stopped_s=math.inf if kept is None else _STOPPED_S,
    )
    if hosts is None and not isinstance(kept, ElasticRun):
        _warn_of_several(output.say)
    _introduce(output, launch, num_ranks, hosts)
    return launch


def _first_failed(output: ScriptOutput, ends: Sequence[ScriptEnd]) -> ScriptEnd:
    """The failed rank whose error came first."""
    failed = (end for end in ends if end.return_code)
    return min(failed, key=lambda end: output.error_began_s(end.rank, end.ended_s))


def _most_restarts(max_restarts: int | None, keep_going: bool, hosts: Hosts | None) -> int:
    most = (_COMES_BACK if keep_going else 0) if max_restarts is None else max_restarts
    if most < 0:
        raise InputError(f"--max-restarts {max_restarts}: give a number from 0")
    if hosts is not None and (most or keep_going):
        raise InputError(
            f"{'--keep-going' if keep_going else '--max-restarts'} is for one host: the launchers of several hosts do "
            "not know of each other's ranks; leave it out, or start the ranks by torchrun"
        )
    return most


def _num_ranks(workers: str, oversubscribe: bool) -> int:
    num_ranks = num_available_cpus()
    if workers == GPU:
        num_ranks = count_gpus()
    elif workers != AUTO:
        if not is_count(workers) or int(workers) < 1:
            raise InputError(
                f"--workers {workers}: give a number from 1, or {AUTO} or {GPU} for a rank on each core or GPU"
            )
        num_ranks = int(workers)
    require_room(f"--workers {workers}", num_ranks, None, oversubscribe)
    return num_ranks


def _settings(transport: str, key_file: Path | None) -> dict[str, str]:
    if transport == "mpi":
        raise InputError(
            "--transport mpi: MPI must start the ranks itself; set SAMOVAR_TRANSPORT=mpi, or transport='mpi' in the "
            "script, and run mpiexec -n N python SCRIPT"
        )
    require_choice("--transport", transport, _TRANSPORTS)
    if transport == "gaspi":
        gaspi_library()
    settings = {} if transport == AUTO else {"SAMOVAR_TRANSPORT": transport}
    return settings if key_file is None else settings | {"SAMOVAR_KEY_FILE": str(key_file.absolute())}


def _figure_settings(metrics: str | None, trace: str | None, hosts: Hosts | None) -> dict[str, str]:
    choice = metrics_choice(metrics, "--metrics")
    if trace is not None:
        if choice.folder is None:
            raise InputError(f"--trace {trace}: needs a folder for the trace; give --metrics FOLDER, too")
        TraceWindow.parse(trace)
    if choice.folder is not None and (hosts is None or hosts.number == 0):  # rank 0 writes
        create_figures_folder(choice.folder, "--metrics")
    return {name: value for name, value in {METRICS: metrics, TRACE: trace}.items() if value is not None}


def _require_alone(emulated: str, transport: str, hosts: Hosts | None, elastic: str | None, keeps_going: bool) -> None:
    """Raises InputError if other flags do not go with --emulate."""
    named = ("--nodes", "--elastic or --join", "--keep-going", "--transport")
    values = (hosts, elastic, keeps_going, transport != AUTO)
    if flag := next((flag for flag, value in zip(named, values, strict=True) if value), None):
        raise InputError(
            f"--emulate {emulated}: a fixed number of ranks exchange in this host's memory, as if by tcp; leave {flag} "
            "out"
        )


def _emulation(
    named: str | None,
    profile: Path | None,
    num_ranks: int,
    beside: tuple[str, Hosts | None, str | None, bool],
    say: Callable[[str], None],
) -> dict[str, str]:
    """The variable that describes the cluster to ranks. Says what is emulated. Raises InputError."""
    if named is None:
        if profile is not None:
            raise InputError(f"--profile {profile}: is for --emulate; give the cluster, too")
        return {}
    _require_alone(named, *beside)
    here = Kept(state_folder()).machine() or NOMINAL
    layers = None if profile is None else load_profile(profile)
    emulation, sentences = emulated(load_cluster(named, here, "--emulate"), num_ranks, layers, here)
    for sentence in sentences:
        say(f"samovar: {sentence}")
    return {EMULATION: json.dumps(to_plain(emulation))}


def _rank_command(command: Sequence[str], module: bool) -> Callable[[int, tuple[int, ...]], list[str]]:
    """The shim, and what it becomes. Raises InputError if there is no such script."""
    if not module and not Path(command[0]).is_file():
        raise InputError(f"{command[0]}: no such file; give a Python script, or -m and the name of a module")
    python = [sys.executable, *(["-m"] if module else []), *command]
    shim = [sys.executable, "-P", "-m", "samovar.launch.script_rank", str(os.getpid())]

    def of_rank(_rank: int, cpus: tuple[int, ...]) -> list[str]:
        return [*shim, ",".join(map(str, cpus)), *python]

    return of_rank


def _introduce(output: ScriptOutput, launch: ScriptLaunch, num_ranks: int, hosts: Hosts | None) -> None:
    """Warn of shared cores, and say which ranks of several hosts these are."""
    if launch.oversubscribed:
        output.say(f"samovar: warning: {num_ranks} ranks share {num_available_cpus()} cores")
    if hosts is not None:
        first, last = launch.first_rank, launch.first_rank + num_ranks - 1
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        output.say(
            f"samovar: {ranks} of {num_ranks * hosts.num_hosts} on host {hosts.number} of {hosts.num_hosts}; "
            f"{describe_route(hosts.address, hosts.port, hosts.number == 0)}"
        )


def _finish(output: ScriptOutput, launch: ScriptLaunch, ends: Sequence[ScriptEnd], *, is_elastic: bool) -> int:
    """Show the first failed rank's error last, and one sentence about it; the exit code.

    An elastic job has ended well if one rank has.
    """
    output.flush_lines()
    if is_elastic and any(end.return_code == 0 for end in ends):
        ends = [end for end in ends if end.return_code == 0]
    code = 0
    if launch.kill_signal:
        name = signal.Signals(launch.kill_signal).name
        output.say(f"samovar: error: the ranks were ended at once by a second signal ({name})")
        code = 128 + launch.kill_signal
    elif any(end.return_code for end in ends):
        first = _first_failed(output, ends)
        if not launch.signals:
            output.show_error(first.rank)
        output.say(f"samovar: error: {end_sentence(first, ends, socket.gethostname(), launch.signals)}")
        code = first.return_code or 0
        code = 128 - code if code < 0 else code
    elif deaf := [end.rank for end in ends if end.return_code is None and launch.signals]:
        number = next((number for number in launch.signals if number in ENDING), launch.signals[0])
        name, who = signal.Signals(number).name, f"rank{'s' if len(deaf) > 1 else ''} {ranges(deaf)}"
        output.say(f"samovar: error: {who} did not end within --grace after {name}; killed")
        code = 128 + number
    output.close()
    return code
