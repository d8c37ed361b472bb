"""One rank that trains by `sync` on TCP.

`python -m tests.unit.transports.tcp_sync_rank RANK KEY_FILE LISTENING_DESCRIPTOR PORT...`

Prints the SHA-256 of its weights after every step.
"""

import hashlib
import socket
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar import _native
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.strategies.config import StrategyConfig
from samovar.transports.keys import read_key
from samovar.transports.tcp import TcpConfig, TcpTransport
from samovar.transports.tcp_listen import LOOPBACK
from tests.unit.strategies.harness import NUM_ELEMENTS, TIMEOUT_S, Job, Left, train


def gradient(rank: int, step: int, weights: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Towards a point of the rank's own, with noise."""
    generator = np.random.default_rng((rank, step))
    return (weights + rank - generator.standard_normal(NUM_ELEMENTS)).astype(weights.dtype)


JOB = Job(StrategyConfig("sync", "ring", 64), gradient, num_steps=7, start=np.ones(NUM_ELEMENTS, np.float32))


def digests(left: Left) -> list[str]:
    return [hashlib.sha256(weights.tobytes()).hexdigest() for weights in left.trace]


def main() -> None:
    rank, key_file, descriptor, *ports = sys.argv[1:]
    _native.die_with_parent()
    listening, addresses = socket.socket(fileno=int(descriptor)), [(LOOPBACK, int(port)) for port in ports]
    config, key = TcpConfig("sync", TIMEOUT_S), read_key(Path(key_file))
    transport = TcpTransport(Group(int(rank), len(ports)), config, key, listening, addresses)
    left = train(JOB, transport)
    transport.close(Deadline.after(TIMEOUT_S))
    print("\n".join(digests(left)))


if __name__ == "__main__":
    main()
