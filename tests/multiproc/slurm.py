"""A SLURM of one node, from its real daemons: in a folder of its own, on loopback, gone at the end."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.multiproc.command import wait_until

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo", "scancel", "setpriv")
START_S = 30.0
DIES_WITH_THE_TEST = ("setpriv", "--pdeathsig", "KILL")
# Messages are believed (auth/none): this cluster has one user, and listens on loopback only.
CONFIGURATION = """
ClusterName=samovar
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no cluster here; "" where there can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"needs SLURM: {', '.join(absent)} not found (Debian: slurmctld, slurmd, slurm-client)"
    return "" if os.geteuid() == 0 else "needs to be root, to start SLURM's daemons"


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which srun and its like talk to a cluster of 4 pretended cores."""
    host = socket.gethostname()
    configuration = folder / "slurm.conf"
    for name in ("state", "spool"):
        (folder / name).mkdir()
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, ports=_free_ports(2)))
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    daemons = []
    try:
        for command in (["slurmctld", "-D", "-f"], ["slurmd", "-D", "-f"]):
            with (folder / f"{command[0]}.log").open("wb") as log:
                daemons.append(
                    subprocess.Popen(
                        [*DIES_WITH_THE_TEST, *command, configuration], stdout=log, stderr=log, env=environment
                    )
                )
        wait_until(lambda: _is_idle(environment), "SLURM's node is idle", START_S)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(START_S)


def _is_idle(environment: dict[str, str]) -> bool:
    shown = subprocess.run(
        ["sinfo", "--noheader", "--format=%t"], env=environment, capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() == "idle"


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
