"""A rank's identity, from the variables of every launcher; an incomplete set is refused by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.launch.identity import (
    Identity,
    first_node,
    identity,
    launcher_process,
    tasks_on_node,
    variables_of_gaspi,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "SLURM_STEP_NODELIST": "node[07-09]",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "prterun-node-7@1",
}


PROGRAM = "from samovar.launch.identity import launcher_process; print(launcher_process())"


def without(variables: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in names}


def test_a_process_alone() -> None:
    assert identity({}) == Identity(0, 1, 0, 1, "single")
    assert identity({"WORLD_SIZE": "1", "MASTER_ADDR": "elsewhere", "RANK": ""}) == Identity(0, 1, 0, 1, "single")


def test_torchrun() -> None:
    assert identity(TORCHRUN) == Identity(3, 4, 1, 2, "torchrun", "10.0.0.1", 29500)
    with_agent = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert identity(with_agent).agent_store
    assert identity(with_agent).attempt == 2
    assert identity(TORCHRUN | {"SAMOVAR_LISTEN_FD": "7"}).listen_descriptor == 7
    assert identity(TORCHRUN | {"GLOO_SOCKET_IFNAME": "eth0,eth1"}).interfaces == ("eth0", "eth1")
    by_hand = without(TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert identity(by_hand) == Identity(3, 4, None, None, "torchrun", "10.0.0.1", 29500)
    assert identity({"RANK": "0", "WORLD_SIZE": "1"}).world_size == 1


def test_a_service_of_kubernetes_called_samovar_names_no_port_of_ours() -> None:
    assert identity(TORCHRUN | {"SAMOVAR_PORT": "29700"}).port == 29700
    assert identity(TORCHRUN | {"SAMOVAR_PORT": "tcp://10.96.0.1:80"}) == identity(TORCHRUN)


def test_how_ranks_reach_each_other_is_said_by_variables_of_ours() -> None:
    chosen = identity(TORCHRUN | {"SAMOVAR_TRANSPORT": "tcp", "SAMOVAR_KEY_FILE": "/home/me/key.pem"})
    assert (chosen.transport, chosen.key_file) == ("tcp", Path("/home/me/key.pem"))
    assert (identity(SLURM).transport, identity(SLURM).key_file) == ("auto", None)
    with pytest.raises(InputError, match="SAMOVAR_TRANSPORT: got 'udp'; choose one of: auto, shm, gloo, "):
        identity(SLURM | {"SAMOVAR_TRANSPORT": "udp"})


def test_torchrun_comes_before_slurm_and_mpi() -> None:
    assert identity(SLURM | HYDRA | TORCHRUN) == identity(TORCHRUN)


def test_slurm_on_several_nodes_meets_at_the_first() -> None:
    found = identity(SLURM)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (5, 6, 1, 2)
    assert found.address == "node07"
    assert found.port is not None
    assert 15_000 <= found.port < 30_000
    assert found.port == identity(SLURM | {"SLURM_PROCID": "0"}).port
    assert found.port != identity(SLURM | {"SLURM_JOB_ID": "1235"}).port
    steps = [identity(SLURM | {"SLURM_STEP_ID": step}).port for step in ("12", "21", "3", "30", "x12", "x21")]
    assert len(set(steps)) == len(steps)
    chosen = identity(SLURM | {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "4000"})
    assert (chosen.address, chosen.port) == ("10.1.1.1", 4000)
    assert identity(SLURM | {"MASTER_ADDR": "10.1.1.1"}).port == found.port


def test_slurm_on_one_node_guesses_no_port() -> None:
    one_node = SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "6"}
    found = identity(one_node)
    assert (found.address, found.port, found.local_world_size) == (None, None, 6)
    assert found.job == "slurm-1234.0-0"


def test_a_batch_script_is_no_task_of_a_step() -> None:
    assert identity({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}) == Identity()


def test_mpi() -> None:
    assert identity(HYDRA) == Identity(1, 2, 1, 2, "MPI")
    assert identity(OPEN_MPI) == Identity(2, 4, 2, 4, "MPI", job="pmix-prterun-node-7@1")
    assert identity({"PMIX_RANK": "1", "WORLD_SIZE": "2"}).rank == 1
    meeting = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert (
        identity(OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"} | meeting).port == 1
    )


def test_srun_that_starts_mpis_daemons_is_not_asked() -> None:
    """One daemon a node; the ranks are mpiexec's."""
    daemons = SLURM | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"}
    four = {"PMI_RANK": "3", "PMI_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert identity(daemons | four).launcher == "MPI"
    assert identity(SLURM | {"PMI_RANK": "5", "PMI_SIZE": "6"}).launcher == "SLURM"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        (without(TORCHRUN, "WORLD_SIZE"), ["WORLD_SIZE", "RANK"]),
        (without(TORCHRUN, "RANK"), ["RANK", "WORLD_SIZE"]),
        (without(TORCHRUN, "MASTER_PORT"), ["MASTER_PORT"]),
        (without(TORCHRUN, "MASTER_ADDR"), ["MASTER_ADDR"]),
        (without(TORCHRUN, "LOCAL_RANK"), ["LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
        (TORCHRUN | {"RANK": "4"}, ["rank 4 of 4"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK", "'-1'"]),
        (TORCHRUN | {"RANK": "one"}, ["RANK", "'one'"]),
        (TORCHRUN | {"WORLD_SIZE": "9" * 30}, ["WORLD_SIZE"]),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["0 ranks"]),
        (TORCHRUN | {"LOCAL_RANK": "2"}, ["local rank 2 of 2"]),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, ["of 5"]),
        (TORCHRUN | {"MASTER_PORT": "70000"}, ["MASTER_PORT", "70000"]),
        (without(SLURM, "SLURM_JOB_ID"), ["SLURM_JOB_ID"]),
        (without(SLURM, "SLURM_STEP_NODELIST"), ["SLURM_STEP_NODELIST", "MASTER_ADDR"]),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2"}, ["SLURM_STEP_TASKS_PER_NODE", "node 2"]),
        (SLURM | {"WORLD_SIZE": "8"}, ["WORLD_SIZE", "8", "6"]),
        (without(HYDRA, "PMI_SIZE"), ["PMI_SIZE", "PMI_RANK"]),
        (HYDRA | {"PMI_SIZE": "4"}, ["MASTER_ADDR", "MASTER_PORT"]),
        (HYDRA | {"PMI_SIZE": "4", "MASTER_ADDR": "a"}, ["MASTER_PORT"]),
        ({"PMIX_RANK": "1"}, ["WORLD_SIZE", "PMIX_RANK"]),
    ],
)
def test_half_set_and_contradictory_variables_are_named(variables: dict[str, str], named: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        identity(variables)
    for word in named:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("x", "x"),
        ("node[01-03,07],x", "node01"),
        ("x,node[1-2]", "x"),
        ("n[5,1-3]", "n5"),
        ("rack[1-2]node[08-12]-ib,x", "rack1node08-ib"),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize("nodes", ["", ",a", "node[01", "node[]", "a b", "[", "a]b"])
def test_a_list_of_nodes_that_cannot_be_read(nodes: str) -> None:
    with pytest.raises(InputError, match="MASTER_ADDR"):
        first_node(nodes)


def test_tasks_of_a_node() -> None:
    assert [tasks_on_node("2(x3),1,4(x2)", node) for node in range(6)] == [2, 2, 2, 1, 4, 4]
    for counts, node in (("2(x3)", 3), ("", 0), ("two", 0), ("2x3", 0)):
        with pytest.raises(InputError, match="SLURM_STEP_TASKS_PER_NODE"):
            tasks_on_node(counts, node)


def test_ranks_under_wrappers_have_their_launcher_in_common(tmp_path: Path) -> None:
    """A shell that a launcher starts for a rank carries that rank's variables and is passed over."""
    command = f'{sys.executable} -c "{PROGRAM}"; true'
    wrapped = [["sh", "-c", command], ["sh", "-c", f"sh -c '{command}'; true"], [sys.executable, "-c", PROGRAM]]
    said = {
        subprocess.run(
            words, env=os.environ | HYDRA, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()
        for words in wrapped
    }
    assert len(said) == 1
    assert said.pop().startswith(f"{os.getpid()}-")
    assert launcher_process().startswith(f"{os.getppid()}-")


def test_launchers_started_in_one_place_do_not_mix_their_ranks(tmp_path: Path) -> None:
    """In a batch script and in a pod they inherit a rank's variables, which are not those of the ranks they start."""
    batch = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}
    pod = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "29500"}
    by_hydra = {"PMI_RANK": "{}", "PMI_SIZE": "2", "MPI_LOCALRANKID": "{}", "MPI_LOCALNRANKS": "2"}
    by_torchrun = pod | {"RANK": "{}", "LOCAL_RANK": "{}", "LOCAL_WORLD_SIZE": "2"}
    launcher = (
        "import os, subprocess, sys\n"
        "for rank in '01':\n"
        "    place = {name: value.format(rank) for name, value in %r.items()}\n"
        "    for wrapper in ([], ['sh', '-c', 'export LOCAL_RANK=$MPI_LOCALRANKID$LOCAL_RANK; \"$@\"; true', 'sh']):\n"
        "        subprocess.run([*wrapper, sys.executable, '-c', %r], env=os.environ | place, check=True)\n"
    )
    for outer, place in ((batch, by_hydra), (batch, by_torchrun), (pod, by_torchrun)):
        words = [sys.executable, "-c", launcher % (place, PROGRAM)]
        with subprocess.Popen(words, env=os.environ | outer, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            found = job.stdout.read().split()
        assert [each.partition("-")[0] for each in found] == [str(job.pid)] * 4


def test_gpi2_finds_what_gaspi_run_would_tell_it_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GASPI_RANK", "7")
    monkeypatch.delenv("GASPI_MFILE", raising=False)
    hosts = ["10.0.0.1", "10.0.0.1", "10.0.0.10", "10.0.0.10"]
    with variables_of_gaspi(3, hosts):
        assert [os.environ[name] for name in ("GASPI_RANK", "GASPI_NRANKS", "GASPI_SOCKET")] == ["3", "4", "1"]
        file = Path(os.environ["GASPI_MFILE"])
        assert file.read_text().split() == hosts
    assert os.environ["GASPI_RANK"] == "7"
    assert "GASPI_MFILE" not in os.environ
    assert not file.exists() or not file.resolve().name.startswith("memfd:gaspi")


def test_ranks_of_gaspi_run_meet_at_its_master_at_a_port_of_their_job() -> None:
    variables = {
        "GASPI_RANK": "3",
        "GASPI_NRANKS": "4",
        "GASPI_SOCKET": "1",
        "GASPI_MASTER": "node0",
        "GASPI_MFILE": "/tmp/.gpi2.a",
    }
    found, other = identity(variables), identity(variables | {"GASPI_MFILE": "/tmp/.gpi2.b"})
    assert (found.rank, found.world_size, found.local_rank, found.address) == (3, 4, 1, "node0")
    assert found.port is not None
    assert 15_000 <= found.port < 30_000
    assert found.port != other.port
    assert identity(variables | {"MASTER_ADDR": "node1", "MASTER_PORT": "99"}).port == 99
    with pytest.raises(InputError, match="gaspi_run's variables: GASPI_MASTER not set"):
        identity({name: value for name, value in variables.items() if name != "GASPI_MASTER"})


def test_a_rank_that_cannot_see_what_started_it_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a container has no parent there."""
    monkeypatch.setattr("samovar.launch.identity._status_fields", lambda _process: ["S", "0", *["0"] * 30])
    with pytest.raises(InputError, match="this rank is the first process of a container"):
        launcher_process()
