"""The board: rows of the living and the dead, posts that are never torn, words that all share."""

import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from samovar.box.board import Board, Member, MemberProgress, create_board
from samovar.core.errors import InputError, RankFailed
from samovar.core.host import create_empty

JOIN_AND_WAIT = """
import sys
from samovar.box.board import Board
board = Board(int(sys.argv[1]))
member = board.join(int(sys.argv[2]))
print(member.incarnation, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = create_board(3)
    yield descriptor
    os.close(descriptor)


def start_member(descriptor: int, index: int) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", JOIN_AND_WAIT, str(descriptor), str(index)],
        pass_fds=[descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 0
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()


def test_members_get_rows_and_incarnations_of_their_own(descriptor: int) -> None:
    board = Board(descriptor)
    assert board.max_members == 3
    assert [board.join() for _ in range(3)] == [Member(0, 1), Member(1, 2), Member(2, 3)]
    with pytest.raises(InputError, match="3 members, all alive, and no room for one more"):
        board.join()
    with pytest.raises(RankFailed, match=f"member 1 of the box is process {os.getpid()}, which is alive"):
        board.join(1)
    board.leave(Member(1, 2))
    assert [row.is_alive for row in board.rows()] == [True, False, True]
    assert board.join(1) == Member(1, 4)
    board.leave(Member(1, 2))  # is not there any more: nothing happens
    assert board.row(1).is_alive
    with pytest.raises(InputError, match="member 3: the box has members 0 to 2"):
        board.join(3)


def test_the_dead_are_told_from_the_living(descriptor: int) -> None:
    board = Board(descriptor)
    process = start_member(descriptor, 1)
    try:
        row = board.row(1)
        assert (row.process_id, row.is_alive) == (process.pid, True)
        process.send_signal(signal.SIGSTOP)  # stopped is not dead
        assert board.row(1).is_alive
        with pytest.raises(RankFailed, match=f"belongs to incarnation {row.member.incarnation}, process {process.pid}"):
            board.adopt(row.member)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has taken note
        assert not board.row(1).is_alive
        board.adopt(row.member)
        assert (board.row(1).process_id, board.row(1).is_alive) == (os.getpid(), True)
    finally:
        end(process)


def test_a_process_without_a_free_descriptor_tells_the_dead_from_the_living(descriptor: int) -> None:
    board, process = Board(descriptor), start_member(descriptor, 1)
    board.join(0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert [row.is_alive for row in board.rows()] == [True, True]
        assert board.join() == Member(2, 3)
        process.kill()
        process.wait()
        assert not board.row(1).is_alive
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        end(process)
    assert [row.is_alive for row in board.rows()] == [True, False, True]


def test_only_the_last_member_of_a_row_can_be_adopted(descriptor: int) -> None:
    board = Board(descriptor)
    old = board.join(0)
    board.leave(old)
    new = board.join(0)
    board.leave(new)
    with pytest.raises(RankFailed, match=f"incarnation {old.incarnation}, is over"):
        board.adopt(old)
    board.adopt(new)
    with pytest.raises(RankFailed, match="over"):
        board.adopt(Member(2, 0))  # nobody ever


def test_a_process_id_that_another_process_has_now_is_dead(descriptor: int) -> None:
    """The row knows when its process started: the same number started at another time is somebody else."""
    board = Board(descriptor)
    member = board.join(0)
    started_at = 256 + 8  # behind the header: the second word of row 0
    started = int.from_bytes(os.pread(descriptor, 8, started_at), "little")
    os.pwrite(descriptor, (started + 1).to_bytes(8, "little"), started_at)
    assert not board.row(0).is_alive
    assert board.join(0).incarnation > member.incarnation


def test_posts(descriptor: int) -> None:
    board, other = Board(descriptor), Board(descriptor)
    member = board.join(2)
    fresh = other.row(2).progress
    assert math.isnan(fresh.loss)
    assert (fresh.steps, fresh.finished, fresh.stopped) == (0, False, False)
    progress = MemberProgress(7, 2**50, 1234.5, 0.25, 1.5, 9, 6, 0.125, finished=True)
    board.post(member, progress)
    assert other.row(2).progress == progress
    board.post(member, MemberProgress(loss=1.0, stopped=True))
    assert other.row(2).progress == MemberProgress(loss=1.0, stopped=True)
    board.leave(member)
    assert other.row(2).progress.stopped
    with pytest.raises(RankFailed, match="member 2 of the box is another process"):
        board.post(member, progress)
    other.join(2)
    assert not board.row(2).progress.stopped  # what an earlier member posted is not the new one's


def test_a_post_is_read_whole(descriptor: int) -> None:
    board, other = Board(descriptor), Board(descriptor)
    member = board.join()
    board.post(member, MemberProgress(loss=0.0))
    done = threading.Event()

    def write() -> None:
        for number in range(1, 20_000):
            board.post(member, MemberProgress(number, number, number, number, number, number, number, number))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    last = 0
    while not done.is_set():
        seen = other.row(member.index).progress
        assert seen.steps >= last
        assert {seen.samples, seen.samples_per_s, seen.loss, seen.updates, seen.lock_wait_s} == {seen.steps}
        last = seen.steps
    thread.join()


def test_words_that_all_share(descriptor: int) -> None:
    board, other = Board(descriptor), Board(descriptor)
    assert board.word(14) == 0
    board.set_word(14, 2**64 - 1)
    assert other.word(14) == 2**64 - 1
    assert other.claim_word(3, 8) == 8
    assert board.claim_word(3, 9) == 8
    with pytest.raises(AssertionError, match="no such word: 15"):
        board.word(15)


def test_files_that_are_no_board(descriptor: int) -> None:
    empty = create_empty()
    with pytest.raises(InputError, match="not a board; was it handed out by another version"):
        Board(empty)
    os.close(empty)
    os.pwrite(descriptor, (2**60).to_bytes(8, "little"), 16)
    with pytest.raises(InputError, match="1 to 1024 members"):
        Board(descriptor)
    os.pwrite(descriptor, (4).to_bytes(8, "little"), 16)
    with pytest.raises(InputError, match="not whole"):
        Board(descriptor)
    with pytest.raises(InputError, match="a board for 0 members"):
        create_board(0)
