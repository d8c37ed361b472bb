"""The local box: clients that read its center or add to it, half each, against as many that copy memory.

Every client is a process with arrays of its own; all do one thing at the same time, the two sides in turn, in an order
drawn anew for each pair. A rate is that of bytes of the center read or added to, or copied by NumPy, from the first
one's begin to the last one's end; that adding reads two arrays where a copy reads one does not count.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from figures import Figure, compare

from samovar.box.board import create_board
from samovar.box.mapped import create_center

CLIENT_PROGRAM = Path(__file__).with_name("box_client.py")
NUM_ELEMENTS = 244_000_000 // 4
CLIENTS = (2, 4, 8)
SIDES = ("copy", "box")
WARM_UP_PAIRS, NUM_PAIRS = 2, 9
TIMEOUT_S = 60.0

Client = subprocess.Popen[str]


def run(short: bool) -> list[Figure]:
    num_elements = NUM_ELEMENTS // 100 if short else NUM_ELEMENTS
    return [
        figure for clients in CLIENTS for figure in measure(clients, num_elements, 3 if short else NUM_PAIRS, short)
    ]


def measure(num_clients: int, num_elements: int, num_pairs: int, short: bool) -> list[Figure]:
    """Rates in GB/s of the arrays' bytes."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    with clients_of(num_clients, num_elements) as clients:
        for pair in range(WARM_UP_PAIRS + num_pairs):
            for side in random.Random(pair).sample(SIDES, len(SIDES)):
                rates[side].append(num_clients * num_elements * 4 / seconds(clients, side) / 1e9)
        for client in clients:
            verify(client, (WARM_UP_PAIRS + num_pairs) * (num_clients // 2))
    ours, theirs = (rates[side][WARM_UP_PAIRS:] for side in ("box", "copy"))
    name = f"{num_clients} clients, half read, half add {num_elements * 4 / 1e6:.0f} MB / copies"
    return [compare(name, ours, theirs, "GB/s", None if short else 0.85)]


def seconds(clients: list[Client], side: str) -> float:
    """From the first one's begin to the last one's end, on the clock that all have."""
    for client in clients:
        tell(client, side)
    times = [[float(word) for word in answer(client).split()] for client in clients]
    return max(ended_s for _, ended_s in times) - min(began_s for began_s, _ in times)


def verify(client: Client, num_updates: int) -> None:
    """Every element is the number of all updates, and nobody has read a chunk that was not whole."""
    tell(client, "verify")
    found = answer(client)
    if found != f"{num_updates} 0":
        raise SystemExit(f"the center holds updates and torn reads {found}, not {num_updates} 0")


@contextmanager
def clients_of(num_clients: int, num_elements: int) -> Iterator[list[Client]]:
    descriptors = (create_board(num_clients), create_center(num_elements, num_clients))
    with ExitStack() as stack:
        clients = [start(stack, descriptors, index) for index in range(num_clients)]
        for descriptor in descriptors:
            os.close(descriptor)
        for client in clients:
            answer(client)
        yield clients


def start(stack: ExitStack, descriptors: tuple[int, int], index: int) -> Client:
    """Clients share the cores as the system likes: there may be more of them than cores."""
    client = stack.enter_context(
        subprocess.Popen(
            [sys.executable, str(CLIENT_PROGRAM), *map(str, descriptors), ("read", "add")[index % 2]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=descriptors,
        )
    )
    stack.callback(client.kill)
    return client


def tell(client: Client, word: str) -> None:
    assert client.stdin is not None
    client.stdin.write(f"{word}\n")
    client.stdin.flush()


def answer(client: Client) -> str:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        raise SystemExit("a client of the benchmark failed; its error stands above")
    return line.strip()
