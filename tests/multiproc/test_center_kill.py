"""Members of a center stopped and killed at random moments: chunks hold whole updates, and those that they say.

Every member adds its own number to all elements, so a chunk's elements are equal, and equal to the sum of what the
table of sequences says: exact, as they are whole numbers.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from samovar import _native
from samovar.box.board import Board, create_board
from samovar.box.mapped import MappedCenter, create_center
from samovar.core.clock import Deadline

PROGRAM = Path(__file__).with_name("center_program.py")
MEMBERS, KILLS, WAIT_S = 3, 3, 100.0
NUM_TRIALS, NUM_SLOW_TRIALS = 3, 50
# Small chunks: most of the time goes by in the swaps. Large ones: in the sums.
CHUNKS = ((16, 40), (4096, 9), (16_384, 3))
# Sums stay whole numbers below 2^24.
WEIGHTS = (1, 2, 3)


class Crowd:
    """The members' processes, and what dead ones had added to each chunk."""

    def __init__(self, chunk_elements: int, num_chunks: int) -> None:
        self.board_descriptor = create_board(MEMBERS)
        size = chunk_elements * num_chunks - 3
        self.descriptor = create_center(size, MEMBERS, with_velocity=True, chunk_elements=chunk_elements)
        self.board = Board(self.board_descriptor)
        self.native = _native.Center(self.descriptor)
        self.added: npt.NDArray[np.int64] = np.zeros(num_chunks, np.int64)
        self.updates: npt.NDArray[np.int64] = np.zeros(num_chunks, np.int64)
        self.processes = [self.start(index) for index in range(MEMBERS)]

    def start(self, index: int) -> "subprocess.Popen[str]":
        descriptors = (self.board_descriptor, self.descriptor)
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, (*descriptors, index, WEIGHTS[index]))],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=descriptors,
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(self.board.row(index).member.incarnation)
        return process

    def sequences(self, index: int) -> npt.NDArray[np.int64]:
        """The updates in each chunk by the row's present incarnation."""
        now = self.board.row(index).member.incarnation
        entries = [self.native.entry(chunk, index) for chunk in range(self.native.num_chunks)]
        return np.array([sequence if incarnation == now else 0 for incarnation, sequence, _ in entries])

    def wait_for_progress(self, indices: list[int]) -> None:
        """Until each of them has made ten more updates of every chunk."""
        before = {index: self.sequences(index) for index in indices}
        deadline = Deadline.after(WAIT_S)
        while not all((self.sequences(index) >= before[index] + 10).all() for index in indices):
            assert not deadline.passed(), "the others do not go on"
            time.sleep(0.001)

    def bury(self, index: int) -> None:
        """Kill a member, and note what it had added."""
        process = self.processes[index]
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        held = self.sequences(index)
        assert held.max() - held.min() <= 1  # it was in one update, and each chunk has it or not
        self.added += held * WEIGHTS[index]
        self.updates += held

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        os.close(self.descriptor)
        os.close(self.board_descriptor)


@contextmanager
def crowd(chunk_elements: int, num_chunks: int) -> Iterator[Crowd]:
    made = Crowd(chunk_elements, num_chunks)
    try:
        yield made
    finally:
        made.close()


def assert_whole(made: Crowd) -> None:
    center = MappedCenter(made.descriptor)
    values = np.empty(center.num_elements, np.float32)
    versions = center.read(values, Deadline.after(WAIT_S))
    for chunk, version in enumerate(versions):
        part = values[chunk * center.chunk_elements : (chunk + 1) * center.chunk_elements]
        assert (part == made.added[chunk]).all(), f"chunk {chunk}: {np.unique(part)}, not {made.added[chunk]}"
        assert version == made.updates[chunk]


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed < NUM_TRIALS else [pytest.mark.slow]) for seed in range(NUM_SLOW_TRIALS)],
)
def test_members_killed_at_random_moments(seed: int) -> None:
    rng = random.Random(seed)
    with crowd(*CHUNKS[seed % len(CHUNKS)]) as made:
        for _ in range(KILLS):
            index = rng.randrange(MEMBERS)
            others = [other for other in range(MEMBERS) if other != index]
            made.wait_for_progress([index])
            time.sleep(rng.uniform(0, 0.002))  # not a wait for anything: any time will do
            made.processes[index].send_signal(rng.choice((signal.SIGKILL, signal.SIGSTOP)))
            made.wait_for_progress(others)
            made.bury(index)
            made.processes[index] = made.start(index)  # the next one takes the row, and whatever slot is its spare
            made.wait_for_progress([index])
        for index in range(MEMBERS):
            made.bury(index)
        assert_whole(made)
