"""A job's own center as ranks of other hosts see it, and how long it is served."""

import os
import threading
from pathlib import Path

import numpy as np

from samovar.box.board import Board, MemberProgress, create_board
from samovar.box.buffers import Buffer, new_token
from samovar.box.job_server import BUFFER, serve
from samovar.box.joining import Endpoint, mapped_seat, take_seat
from samovar.box.mapped import create_center
from samovar.core.clock import Deadline, polled
from samovar.transports.keys import make_key
from samovar.transports.tcp_listen import address_of, listen

NUM_ELEMENTS, NUM_RANKS = 1000, 2
WAIT_S = 60.0


def test_it_serves_other_hosts_until_the_last_rank_of_the_job_is_gone(tmp_path: Path) -> None:
    """Rank 0 maps the memory and holds the pipe, rank 1 comes over the network and outlives it."""
    make_key(tmp_path / "key.pem")
    center, board = create_center(NUM_ELEMENTS, max_members=NUM_RANKS), create_board(NUM_RANKS)
    Board(board).claim_token(new_token())
    pipe, held = os.pipe()
    listening = listen()
    place = Endpoint(None, address_of(listening), tmp_path / "key.pem")
    with Buffer(os.dup(center), os.dup(board)) as buffer:
        near = mapped_seat(buffer, 0)
    server = threading.Thread(target=serve, args=(tmp_path / "key.pem", listening, center, board, pipe))
    server.start()
    deadline = Deadline.after(WAIT_S)
    far = take_seat(place, BUFFER, "rank 1", deadline, 1)
    assert (near.member.index, far.member.index, far.shape.max_members) == (0, 1, NUM_RANKS)
    far.center.accumulate(1, np.ones(NUM_ELEMENTS, np.float32), deadline)
    far.board.post(far.member, MemberProgress(steps=7))
    found = np.empty(NUM_ELEMENTS, np.float32)
    near.center.read(found, deadline)
    assert (found == 1).all()
    assert polled(lambda: near.board.row(1).progress.steps == 7, deadline, 0.01)  # it travels by itself
    near.close()
    os.close(held)
    far.center.accumulate(2, np.ones(NUM_ELEMENTS, np.float32), deadline)
    assert not far.board.row(0).is_alive
    assert server.is_alive()
    far.close()
    server.join(WAIT_S)
    assert not server.is_alive()
