"""Two ranks that hand blocks of data to each other; run by threads, and as a process of its own.

`python hand_over.py RANK DESCRIPTOR` exits 0 if every block was whole when its notification came.
"""

import sys

import numpy as np

from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.transports.base import Notification, Region
from samovar.transports.shm import ShmTransport

TIMEOUT_S = 100.0  # the other one may start much later
NUM_ROUNDS = 60
NUM_WORDS = 200_000  # copying them takes longer than waking up
BLOCK_BYTES = NUM_WORDS * 8
NUM_COUNTS = 500


def play(rank: int, descriptor: int) -> ShmTransport:
    """Send blocks 1, 2, ... to the peer and check the peer's, each before sending the next."""
    transport = ShmTransport(descriptor, Group(rank, 2), oversubscribed=True)
    peer = 1 - rank
    window = transport.open_window("blocks", BLOCK_BYTES, 2)
    counts = transport.open_window("counts", 8, 0)
    received = Region.of(window, 0, NUM_WORDS, np.uint64).array
    for number in range(1, NUM_ROUNDS + 1):
        block = np.arange(NUM_WORDS, dtype=np.uint64) * np.uint64(number) + np.uint64(rank)
        expected = np.arange(NUM_WORDS, dtype=np.uint64) * np.uint64(number) + np.uint64(peer)
        window.put(peer, 0, block, Notification(0, number))
        value = window.wait(0, number, peer, Deadline.after(TIMEOUT_S))
        last = received[-1]  # at once: what comes after its notification comes soon
        assert last == expected[-1], f"block {number} of rank {peer} came after its notification"
        assert (received == expected).all(), f"block {number} of rank {peer} is not whole"
        assert value == number, (value, number)
        window.notify(peer, Notification(1, number))  # the peer may overwrite it
        window.wait(1, number, peer, Deadline.after(TIMEOUT_S))
    for _ in range(NUM_COUNTS):
        counts.fetch_add(0, 0, 1)
    window.notify(peer, Notification(0, NUM_ROUNDS + 1))
    window.wait(0, NUM_ROUNDS + 1, peer, Deadline.after(TIMEOUT_S))
    assert counts.fetch_add(0, 0, 0) == 2 * NUM_COUNTS
    return transport


if __name__ == "__main__":
    play(int(sys.argv[1]), int(sys.argv[2]))
