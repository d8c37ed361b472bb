"""Strangers at the store where a script's ranks meet: the same weights, a line at most, and no memory kept."""

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.multiproc.command import SAMOVAR, Command
from tests.multiproc.script_run import await_told, write_script

# Half of the steps are made while strangers are there, half after.
SCRIPT = """
import hashlib
import torch
import samovar

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
replica = samovar.replicate(model, optimizer)
tell("port", os.environ.get("SAMOVAR_PORT", os.environ["MASTER_PORT"]))
tell("process", os.getpid())
random = torch.Generator().manual_seed(rank)

def step():
    x, y = torch.randn(32, 64, generator=random), torch.randint(10, (32,), generator=random)
    optimizer.zero_grad()
    replica.backward(torch.nn.functional.cross_entropy(model(x), y))
    replica.step()

began_s = time.monotonic()
for _ in range(20):
    step()
while not Path("gone").exists():
    assert time.monotonic() - began_s < 240
    time.sleep(0.02)
for _ in range(20):
    step()
weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
tell("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())
"""
MAX_MEMORY_GROWTH_BYTES = 20 << 20
# What a client of the store says first (VALIDATE and its magic number); a SET comes after it.
HELLO = b"\x00" + (0x3C85F7CE).to_bytes(4, "little")
WARNING = "do strangers connect to it?"


@dataclass(frozen=True)
class Launcher:
    """The start of the ranks: words of its command, and settings of `Command`."""

    words: tuple[object, ...]
    settings: dict[str, Any]


def plain(port: int, _random: Random) -> None:
    socket.create_connection(("127.0.0.1", port), 10).close()


def random_bytes(port: int, random: Random) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        _send(stranger, random.randbytes(random.randint(1, 4000)))


def oversized(port: int, random: Random) -> None:
    """A known command with a key of a length that nobody has memory for."""
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        _send(stranger, HELLO + b"\1" + random.choice((1 << 63, 1 << 40, 1 << 31)).to_bytes(8, "little"))
        _send(stranger, random.randbytes(65_536))


def _send(stranger: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the store may hang up
        stranger.sendall(data)


def attack(port: int) -> None:
    """Returns when all have come; the half-open ones stay that long."""
    random = Random(0)
    half_open = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(200)]
    for one in half_open[::2]:
        _send(one, bytes([9]))
    strangers: list[Callable[[int, Random], None]] = [
        *[random_bytes] * 300,
        *[oversized] * 100,
        *[plain] * 2000,
    ]
    random.shuffle(strangers)
    for stranger in strangers:
        stranger(port, random)
    for one in half_open:
        one.close()


@dataclass(frozen=True)
class Trained:
    """The end of a run."""

    weights: str
    errors: list[str]
    memory_bytes: int


def trained(folder: Path, launcher: Launcher, *, is_attacked: bool) -> Trained:
    """Two ranks, with strangers at their store between the first step and the last."""
    folder.mkdir()
    with Command(*launcher.words, write_script(folder, SCRIPT), folder=folder, **launcher.settings) as command:
        ranks = await_told(command, folder, "process", 2)
        if is_attacked:
            attack(int((folder / "port-0").read_text()))
        memory_bytes = max(rank.memory_info().rss for rank in ranks)
        (folder / "gone").touch()
        ended = command.wait()
    assert ended.return_code == 0, ended.errors
    hashes = {(folder / f"weights-{rank}").read_text() for rank in range(2)}
    assert len(hashes) == 1
    return Trained(hashes.pop(), ended.errors.splitlines(), memory_bytes)


def under_samovar(transport: str) -> Launcher:
    return Launcher(("run", "-n", 2, "--transport", transport), {})


LAUNCHERS = {
    **{transport: under_samovar(transport) for transport in ("shm", "tcp", "gloo")},
    # There the agent, not a rank, serves the store: its own output is not ours to sift.
    "torchrun": Launcher(
        ("--standalone", "--nproc-per-node", 2),
        {"prefix": ("env", "TORCH_CPP_LOG_LEVEL=ERROR", "OMP_NUM_THREADS=1"), "program": SAMOVAR.with_name("torchrun")},
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_strangers_at_the_store_change_nothing(tmp_path: Path, name: str) -> None:
    alone = trained(tmp_path / "alone", LAUNCHERS[name], is_attacked=False)
    attacked = trained(tmp_path / "attacked", LAUNCHERS[name], is_attacked=True)
    assert attacked.weights == alone.weights
    assert attacked.memory_bytes < alone.memory_bytes + MAX_MEMORY_GROWTH_BYTES
    more = [line for line in attacked.errors if line not in alone.errors]
    assert len(more) <= 1, more
    assert all(WARNING in line for line in more), more
