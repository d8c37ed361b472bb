"""What a rank knows of the others by the board."""

import os
import signal
from collections.abc import Iterator

import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded
from samovar.core.group import Group
from samovar.launch.rank_arguments import SNAPSHOT_SIGNAL, STOP_SIGNALS
from samovar.training.context import SignalRequests
from samovar.transports.shm import BoardWord, RunBoard, create_segment


@pytest.fixture
def board() -> Iterator[RunBoard]:
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, SNAPSHOT_SIGNAL)}
    descriptor = create_segment(4)
    yield RunBoard(descriptor, 4)
    os.close(descriptor)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_ranks_of_a_group_that_is_started_again_wait_until_all_have_their_windows(board: RunBoard) -> None:
    """A rank that is back empties its windows, and what came into them before is lost."""
    requests = SignalRequests(board, Group(2, 4))
    requests.meet(0, range(2, 4), Deadline.after(0.0))
    for life in (1, 2):
        with pytest.raises(DeadlineExceeded, match="rank 2: the ranks of its group that were started again"):
            requests.meet(life, range(2, 4), Deadline.after(0.02))
        assert board.read(2, BoardWord.LIFE) == life
        board.post(3, BoardWord.LIFE, life)
        requests.meet(life, range(2, 4), Deadline.after(5.0))
