"""The server of a box killed and started again while members work: nobody of this host notices, nobody loses an update.

Every member adds its own number to all elements, so what the center holds at the end says which updates it has: all
that were made, each of them once. Exact, as they are whole numbers.
"""

import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from samovar.box.board import MemberProgress
from samovar.box.buffers import BufferShape
from samovar.box.joining import BoxSeat, create_buffer, parse_endpoint, read_buffer, take_seat
from samovar.core.clock import Deadline
from tests.multiproc.ports import reserved_port

SAMOVAR = Path(sys.executable).with_name("samovar")
BUFFER = "numbers"
KILLS, SOME_KILLS = 10, 3
SIZE, CHUNK = 5_000, 1_000
WAIT_S, KEEP_S = 100.0, 300.0
# Each the number that it adds; sums stay whole numbers below 2^24.
LOCAL, REMOTE = 1, (2, 3)


class Server:
    """`samovar box serve` for members of this host and others, always at the same port."""

    def __init__(self, box: str, key: Path, port: int) -> None:
        self.box, self.key, self.port = box, key, port
        self._process = self._start()

    def restart(self) -> None:
        self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._process.poll() is None:
            self.kill()

    def end(self) -> None:
        """As the user ends it, with its memory holder."""
        self._process.terminate()
        output, _ = self._process.communicate(timeout=WAIT_S)
        assert output.splitlines()[-1].endswith("has ended"), output

    def _start(self) -> "subprocess.Popen[str]":
        flags = ("--box", self.box, "--listen", f"127.0.0.1:{self.port}", "--key-file", self.key, "--keep", KEEP_S)
        command = [str(word) for word in (SAMOVAR, "box", "serve", *flags)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        greeting = process.stdout.readline() + process.stdout.readline()
        is_there = greeting.strip().endswith(f"come in at 127.0.0.1:{self.port}")
        assert is_there, greeting + process.communicate(timeout=WAIT_S)[0]
        return process


class Worker(threading.Thread):
    """Adds `number` to the center of its seat, and posts how often, until it is told to end."""

    def __init__(self, seat: BoxSeat, number: int) -> None:
        super().__init__(daemon=True)
        self.num_updates, self.number, self.seat = 0, number, seat
        self.error: Exception | None = None
        self.is_over = threading.Event()

    def run(self) -> None:
        difference = np.full(SIZE, self.number, np.float32)
        try:
            for sequence in count(1):
                self.seat.center.accumulate(sequence, difference, Deadline.after(WAIT_S))
                self.num_updates = sequence
                self.seat.board.post(self.seat.member, MemberProgress(steps=sequence))
                if self.is_over.is_set():
                    return
        except Exception as error:
            self.error = error


def wait_for_updates(workers: Sequence[Worker], least: int) -> None:
    """Until each of them has made `least` more."""
    aims = [worker.num_updates + least for worker in workers]
    deadline = Deadline.after(WAIT_S)
    while any(worker.num_updates < aim for worker, aim in zip(workers, aims, strict=True)):
        assert not deadline.passed(), f"members do not go on: {[worker.error for worker in workers]}"
        time.sleep(0.001)


@contextmanager
def working(seats: Sequence[BoxSeat]) -> Iterator[list[Worker]]:
    """A member at work on each seat; at the end all have ended, and left."""
    workers = [Worker(seat, number) for seat, number in zip(seats, (LOCAL, *REMOTE), strict=True)]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.is_over.set()
        for worker in workers:
            worker.join(2 * WAIT_S)
            worker.seat.close()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("seed", "kills"),
    [(0, SOME_KILLS), *(pytest.param(seed, KILLS, marks=pytest.mark.slow) for seed in range(5))],
)
def test_a_server_killed_while_members_work(tmp_path: Path, seed: int, kills: int) -> None:
    """Several times. The local member goes on while nobody serves, the others as soon as somebody does again."""
    with reserved_port() as port, Server(f"test-{uuid.uuid4().hex}", tmp_path / "key", port) as server:
        workers = work_through_kills(server, random.Random(seed), kills)
        assert [worker.error for worker in workers] == [None] * len(workers)
        _, arrays = read_buffer(parse_endpoint(server.box, None), BUFFER, "test", Deadline.after(WAIT_S))
        server.end()
    assert (arrays["center"] == sum(worker.number * worker.num_updates for worker in workers)).all()
    assert (arrays["versions"] == sum(worker.num_updates for worker in workers)).all()


def work_through_kills(server: Server, rng: random.Random, kills: int) -> list[Worker]:
    """The members' results after this number of kills of the server."""
    here, there = parse_endpoint(server.box, None), parse_endpoint(f"127.0.0.1:{server.port}", server.key)
    shape = BufferShape(SIZE, max_members=4, chunk_elements=CHUNK)
    assert create_buffer(here, BUFFER, shape, "test", Deadline.after(WAIT_S))
    places = (here, *(there for _ in REMOTE))
    seats = [take_seat(place, BUFFER, "test", Deadline.after(WAIT_S)) for place in places]
    with working(seats) as workers:
        local, *remote = workers
        for _ in range(kills):
            wait_for_updates(remote, rng.randrange(1, 20))
            time.sleep(rng.uniform(0, 0.01))  # not a wait for anything: any time will do
            server.kill()
            wait_for_updates([local], 200)
            server.restart()
            wait_for_updates(workers, 5)
    return workers
