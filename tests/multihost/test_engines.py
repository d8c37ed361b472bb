"""examples/engines on hosts with networks of their own: nodes of Ray, and the pods of a TrainJob."""

import os
import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.multihost.conftest import Pair
from tests.multihost.namespaces import named
from tests.multiproc.engines import (
    BIN,
    EPOCHS,
    PYTHON,
    assert_same_bits,
    descendants,
    ended_well,
    kill_after_saves,
    launched,
    ray_cluster,
    ray_environment,
)

RAY_PORT = 6379
# A script that opens a process group before its loop.
WITH_A_GROUP = """
import runpy, sys
from torch import distributed
distributed.init_process_group("gloo")
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
distributed.destroy_process_group()
"""
pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_ray_on_two_hosts(hosts: Pair, repository_root: Path, tmp_path: Path) -> None:
    """The process group that Ray makes leads the workers to each other; one that is lost comes back."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'samovar[engines]'")
    loop = repository_root / "examples" / "engines" / "ray_loop.py"
    with ExitStack() as stack:
        prefixes = stack.enter_context(named(hosts, ("node0", "node1")))
        places = [(host.address, prefix) for host, prefix in zip(hosts, prefixes, strict=True)]
        cluster = stack.enter_context(ray_cluster(tmp_path, places, RAY_PORT))
        for saved in (tmp_path / "undisturbed", tmp_path / "killed"):
            words = (PYTHON, loop, "--saved", saved, "--epochs", EPOCHS)
            with launched(words, tmp_path, prefixes[0], **ray_environment(cluster)) as command:
                if saved.name == "killed":
                    kill_after_saves(command, saved, random.randint(1, 9), cluster.workers)
                said = ended_well(command)
            assert "2 ranks on 2 hosts" in said
            assert ("continues after step" in said) == (saved.name == "killed")
    assert_same_bits(tmp_path / "killed", tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_process_group_leads_ranks_to_each_other(hosts: Pair, repository_root: Path, tmp_path: Path) -> None:
    """A script's own group, between hosts: nothing names an interface."""
    loop = repository_root / "examples" / "engines" / "loop.py"
    words = (PYTHON, "-c", WITH_A_GROUP, loop, "--saved", tmp_path / "saved", "--epochs", 1)
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"}
    with ExitStack() as stack:
        prefixes = stack.enter_context(named(hosts, ("node0", "node1")))
        commands = [
            stack.enter_context(launched(words, tmp_path, prefix, RANK=str(rank), **variables))
            for rank, prefix in enumerate(prefixes)
        ]
        said = [ended_well(command) for command in commands]
    assert f"between hosts gloo, from {hosts[0].address} (eth0)" in said[0]


def manifest(root: Path) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((root / "examples" / "engines" / "trainjob.yaml").read_text())


@pytest.mark.slow
def test_the_pods_of_a_train_job(hosts: Pair, repository_root: Path, tmp_path: Path) -> None:
    """The job's command with the variables of Kubeflow Trainer, in pods with its names; a worker is killed."""
    job = manifest(repository_root)
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    pods = [f"{name}-node-0-{number}" for number in range(trainer["numNodes"])]
    mounts = {"/examples": str(repository_root / "examples"), "/saved": str(tmp_path)}
    variables = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_MASTER_ADDR": f"{pods[0]}.{name}",
        "PET_MASTER_PORT": "29400",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    words = [*trainer["command"], *trainer["args"]]
    for place, folder in mounts.items():
        words = [word.replace(f"{place}/", f"{folder}/") for word in words]
    saved = tmp_path / "loop.safetensors"
    with named(hosts, [f"{pod} {pod}.{name}" for pod in pods]) as prefixes:
        for is_killed in (False, True):
            with ExitStack() as stack:
                commands = [
                    stack.enter_context(launched(words, tmp_path, prefix, PET_NODE_RANK=str(number), **variables))
                    for number, prefix in enumerate(prefixes)
                ]
                if is_killed:
                    victim = random.choice(commands)
                    kill_after_saves(victim, saved, random.randint(1, 9), partial(descendants, victim, "loop.py"))
                said = [ended_well(command) for command in commands]
            assert ("continues after step" in said[0]) == is_killed
            if not is_killed:
                saved.rename(tmp_path / "undisturbed")
    assert_same_bits(saved, tmp_path / "undisturbed")


def test_the_train_job_is_one_of_the_published_schema(repository_root: Path) -> None:
    """Nothing in it is unknown: what the schema reads is all that is there."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="needs pip install 'samovar[engines]'")
    job = manifest(repository_root)
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
