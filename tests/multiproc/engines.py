"""Clusters and runs of the examples in examples/engines: a Ray of real nodes, and workers to kill."""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from safetensors.numpy import load_file

from tests.multiproc.command import Command, wait_until

BIN = Path(sys.executable).parent
PYTHON = Path(sys.executable)
EPOCHS = 30
_NODE_FLAGS = ("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block")


def launched(words: Sequence[object], folder: Path, prefix: Sequence[object] = (), **variables: str) -> Command:
    """A command with these variables; `prefix` are the words that run it on another host."""
    settings = (f"{name}={value}" for name, value in ({"OMP_NUM_THREADS": "1"} | variables).items())
    return Command(*settings, *words, folder=folder, prefix=tuple(prefix), program=Path("env"))


def ended_well(command: Command) -> str:
    """All that a command said, which must end well."""
    ended = command.wait()
    assert ended.return_code == 0, ended.output + ended.errors
    return ended.output + ended.errors


def descendants(command: Command, text: str) -> list[psutil.Process]:
    """The processes under a command whose words contain `text`, oldest first."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(command.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if text in " ".join(process.cmdline()):
                    found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def kill_after_saves(command: Command, saved: Path, count: int, workers: Callable[[], list[psutil.Process]]) -> None:
    """Kill one of the workers when their run has saved `count` times; which one, chance says."""
    seen: set[int] = set()

    def has_saved() -> bool:
        with suppress(FileNotFoundError):
            seen.add(saved.stat().st_mtime_ns)
        return len(seen) >= count

    command.until(has_saved, f"{count} saves")
    victim = random.choice(workers())
    print(f"after {count} saves: kill process {victim.pid}")
    victim.kill()


def assert_same_bits(saved: Path, expected: Path) -> None:
    """Two files of `replica.save` have the same state of all ranks."""
    own, theirs = load_file(saved), load_file(expected)
    assert own.keys() == theirs.keys()
    assert len(own) > 4
    for name, array in theirs.items():
        assert own[name].dtype == array.dtype
        np.testing.assert_array_equal(own[name], array, err_msg=name)


@dataclass
class RayCluster:
    """A Ray of some nodes, each with one core, whose head is at `address`."""

    address: str
    nodes: list[Command] = field(default_factory=list)

    def workers(self) -> list[psutil.Process]:
        """The workers of a trainer that runs now, in the order of their nodes."""
        return [worker for node in self.nodes for worker in descendants(node, "ray::RayTrainWorker")]


@contextmanager
def ray_cluster(folder: Path, hosts: Sequence[tuple[str, Sequence[object]]], port: int) -> Iterator[RayCluster]:
    """A node of Ray at each address; with it the words that run a command there."""
    cluster = RayCluster(f"{hosts[0][0]}:{port}")
    with ExitStack() as stack:
        for number, (address, prefix) in enumerate(hosts):
            short = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets have at most 107 characters
            stack.callback(shutil.rmtree, short, ignore_errors=True)
            head = ("--head", f"--port={port}", "--include-dashboard=false")
            place = head if number == 0 else (f"--address={cluster.address}",)
            words = (BIN / "ray", "start", *place, f"--node-ip-address={address}", f"--temp-dir={short}", *_NODE_FLAGS)
            node = stack.enter_context(launched(words, folder, prefix))
            stack.callback(_end, node)
            node.until(partial(_has_started, node), "a node of Ray starts")
            cluster.nodes.append(node)
        yield cluster


def _has_started(node: Command) -> bool:
    return "Ray runtime started" in node.output


def _end(node: Command) -> None:
    """A node's processes do not end with the command that started them."""
    processes = psutil.Process(node.process.pid).children(recursive=True) if node.process.poll() is None else []
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    node.process.kill()
    wait_until(lambda: not any(process.is_running() for process in processes), "a node of Ray ends")


def ray_environment(cluster: RayCluster) -> dict[str, str]:
    return {"RAY_ADDRESS": cluster.address, "RAY_USAGE_STATS_ENABLED": "0", "PATH": f"{BIN}:{os.environ['PATH']}"}
