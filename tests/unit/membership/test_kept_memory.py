"""The memory that host 0's launcher serves to ranks of other hosts: it outlives them."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from samovar.box.job_server import BUFFER
from samovar.box.joining import Endpoint, take_seat
from samovar.box.mapped import fill_center
from samovar.core.clock import Deadline, polled
from samovar.core.group import Group, Host, JobHosts
from samovar.membership.kept_memory import ServedMemory
from samovar.transports.base import Array, Window
from samovar.transports.hosts import HostsTransport, LastingTransport, open_hosts
from samovar.transports.keys import make_key, read_key
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.tcp_listen import LOOPBACK, address_of, listen

TIMEOUT_S, JOB = 30.0, "a job"
HOSTS = (Host("node0", (0,)), Host("node1", (1,)))
NUM_ELEMENTS = 1_000


class Place:
    """Two hosts of one rank each; `rank(number)` starts a life of it, which `closing` ends."""

    def __init__(self, folder: Path, closing: ExitStack) -> None:
        self.key_file = folder / "key.pem"
        make_key(self.key_file)
        self.key = read_key(self.key_file)
        self.kept = closing.enter_context(ServedMemory(len(HOSTS), JOB, LOOPBACK, self.key, TIMEOUT_S))
        self._segments = [create_segment(1) for _ in HOSTS]
        for segment in self._segments:
            closing.callback(os.close, segment)

    def rank(self, number: int, closing: ExitStack) -> LastingTransport:
        local = ShmTransport(self._segments[number], Group(0, 1), oversubscribed=True)
        listening = listen()
        job = JobHosts(JOB, HOSTS, (address_of(listening),) * len(HOSTS), home=self.kept.places)
        transport = open_hosts(number, job, local, listening, self.key, TIMEOUT_S)
        assert isinstance(transport, HostsTransport)
        closing.callback(transport.close)
        return transport.lasting()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as closing:
        yield Place(tmp_path, closing)


def in_time() -> Deadline:
    return Deadline.after(TIMEOUT_S)


def comes(window: Window, row: Array) -> bool:
    """Whether rank 1's part becomes this row: nobody waits until a put has come."""
    seen = np.empty_like(row)

    def is_there() -> bool:
        window.get(1, 0, seen)
        return bool((seen == row).all())

    return polled(is_there, in_time(), 0.001)


def test_a_row_outlives_its_rank_on_its_own_host_and_on_others(place: Place) -> None:
    row, later = np.arange(32, dtype=np.float64), np.arange(32, 64, dtype=np.float64)
    with ExitStack() as closing:
        windows = [place.rank(0, closing).open_window("row", row.nbytes, 0)]
        with ExitStack() as first_life:
            rank = place.rank(1, first_life)
            windows.append(rank.open_window("row", row.nbytes, 0))
            other = rank.open_window("other", 8, 0)
            windows[1].put(1, 0, row)
            windows[1].put(1, 8, row[1:2])  # a note: it shows all
        assert comes(windows[0], row)

        rank = place.rank(1, closing)
        window, other = rank.open_window("row", row.nbytes, 0), rank.open_window("other", 8, 0)
        assert (window.local.view(np.float64) == row).all()
        window.put(1, 0, later)
        other.put(1, 0, row[:1])
        assert comes(windows[0], later)


def test_a_rank_that_is_back_takes_its_place_at_the_center_again(place: Place) -> None:
    """Its last life had no time to leave; the center has its update once, and its row."""
    center = place.kept.files[1]
    fill_center(center, NUM_ELEMENTS, len(HOSTS))
    endpoint, difference = Endpoint(None, place.kept.places[0], place.key_file), np.ones(NUM_ELEMENTS, np.float32)
    lives = []
    for _ in range(2):
        seat = take_seat(endpoint, BUFFER, "rank 1", in_time(), 1, TIMEOUT_S)
        lives.append(seat.member)
        seat.center.accumulate(1, difference, in_time())
        seat.center._line.disconnect()  # type: ignore[attr-defined]
        seat.board._line.disconnect()  # type: ignore[attr-defined]
    assert [member.index for member in lives] == [1, 1]
    assert lives[1].incarnation > lives[0].incarnation
    with take_seat(endpoint, BUFFER, "rank 0", in_time(), 0, TIMEOUT_S) as seat:
        found = np.empty_like(difference)
        assert (seat.center.read(found, in_time()) == 2).all()
    assert (found == 2).all()
