"""The local box: clients that read its center or add to it, half each, against as many that copy memory.

Every client is a process with its own arrays. All do one thing at the same time, and the two sides take turns, in a
random order for each pair. A measurement lasts from the first client's begin to the last one's end. One rate counts
bytes read and written: of N bytes, reading the center and NumPy's copying move 2 N, adding moves 3 N, since it reads
two arrays. A second rate counts the center's bytes alone, N for each. In it an adder cannot reach a copy, even with
its own core.
"""

import os
from functools import partial

from figures import Figure, compare
from ranks import WARM_UP_BLOCKS, Ranks, Spent, Turn, take_turns

from samovar.box.board import create_board
from samovar.box.mapped import create_center

NUM_ELEMENTS = 244_000_000 // 4
CLIENTS = (2, 4, 8)
BOX, COPY = "box", "copy"
MOVED = {BOX: (2 + 3) / 2, COPY: 2.0}  # for each byte of the center, or of the array: the mean over clients
NUM_PAIRS = 9


def run(short: bool) -> list[Figure]:
    num_elements = NUM_ELEMENTS // 100 if short else NUM_ELEMENTS
    return [
        figure for clients in CLIENTS for figure in measure(clients, num_elements, 3 if short else NUM_PAIRS, short)
    ]


def measure(num_clients: int, num_elements: int, num_pairs: int, short: bool) -> list[Figure]:
    """Rates in GB/s. Clients share the cores as the system likes: there may be more of them."""
    descriptors = (create_board(num_clients), create_center(num_elements, num_clients))
    jobs = [{"board": descriptors[0], "center": descriptors[1], "adds": index % 2 == 1} for index in range(num_clients)]
    with Ranks("box_client.py", jobs, descriptors) as clients:
        for descriptor in descriptors:
            os.close(descriptor)
        clients.answers()
        num_bytes = num_clients * num_elements * 4
        turns = {side: Turn(partial(spent, clients, side), num_bytes) for side in (BOX, COPY)}
        rates = take_turns(turns, num_pairs)
        verify(clients.last_answers(), (WARM_UP_BLOCKS + num_pairs) * (num_clients // 2))
    ours, theirs = ([rate / 1e9 for rate in rates[side].wall] for side in (BOX, COPY))
    name = f"{num_clients} clients, half read, half add {num_elements * 4 / 1e6:.0f} MB / copies"
    our_moved, their_moved = ([MOVED[side] * rate for rate in own] for side, own in ((BOX, ours), (COPY, theirs)))
    return [
        compare(f"{name}, bytes read and written", our_moved, their_moved, "GB/s", None if short else 0.85),
        compare(f"{name}, the center's bytes", ours, theirs, "GB/s", None),
    ]


def spent(clients: Ranks, side: str) -> Spent:
    """Seconds from the first one's begin to the last one's end, on a common clock, and the CPU seconds of all."""
    times = clients.ask(side)
    wall_s = max(ended_s for _, ended_s, _ in times) - min(began_s for began_s, _, _ in times)
    return wall_s, sum(computed_s for _, _, computed_s in times)


def verify(found: list[dict[str, list[int]]], num_updates: int) -> None:
    """Check that every element is the number of all updates, and that no client has read an incomplete chunk."""
    if any(client != {"values": [num_updates], "torn": 0} for client in found):
        raise SystemExit(f"after {num_updates} updates the center holds {found}")
