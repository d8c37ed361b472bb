"""The shared-memory transport: what a notification promises, what is counted, what errors say."""

import contextlib
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.core.group import Group
from samovar.transports.base import Notification, Region
from samovar.transports.processes import PeerProcess
from samovar.transports.shm import RunBoard, ShmTransport, create_segment

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import hand_over  # noqa: E402

MakeSegment = Callable[[int], int]
MakeTransports = Callable[[int], list[ShmTransport]]
TIMEOUT_S = 50.0
PROCESS_TIMEOUT_S = 200.0


def test_data_is_there_when_its_notification_is_between_threads(make_segment: MakeSegment) -> None:
    descriptor = make_segment(2)
    with ThreadPoolExecutor(2) as pool:
        transports = list(pool.map(lambda rank: hand_over.play(rank, descriptor), range(2)))
    assert [t.bytes_sent for t in transports] == [hand_over.NUM_ROUNDS * hand_over.BLOCK_BYTES] * 2


@pytest.mark.timeout(300)
def test_data_is_there_when_its_notification_is_between_processes(make_segment: MakeSegment) -> None:
    descriptor = make_segment(2)
    program = [sys.executable, str(FOLDER / "hand_over.py")]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(descriptor)], pass_fds=[descriptor], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=PROCESS_TIMEOUT_S)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_only_bytes_to_others_are_counted(make_transports: MakeTransports) -> None:
    transport, other = make_transports(2)
    window, _ = (t.open_window("data", 64, 1) for t in (transport, other))
    window.put(0, 0, np.ones(8, np.float64))
    assert transport.bytes_sent == 0
    window.put(1, 0, np.ones(6, np.float32), Notification(0, 1))
    window.put(1, 8, np.ones(3, np.float64))
    window.get(1, 0, np.ones(8, np.float64))
    window.notify(1, Notification(0, 2))
    window.fetch_add(1, 56, 1)
    assert (transport.bytes_sent, other.bytes_sent) == (48, 0)


def test_windows_lie_side_by_side_and_regions_at_the_same_place_everywhere(
    make_transports: MakeTransports,
) -> None:
    transports = make_transports(3)
    firsts = [t.open_window("first", 100, 2) for t in transports]
    seconds = [t.open_window("second", 4096, 0) for t in transports]
    for rank in range(3):
        seconds[rank].local[:] = 9
        region = Region.of(firsts[rank], 8, 20, np.float32).part(5, 10)
        firsts[rank].put((rank + 1) % 3, region.offset, np.full(5, rank, np.float32))
    for rank, window in enumerate(firsts):
        expected = np.zeros(25, np.float32)
        expected[7:12] = (rank - 1) % 3
        assert (window.local.view(np.float32) == expected).all()
        assert (seconds[rank].local == 9).all()


def test_a_wait_that_ends_by_its_deadline_names_rank_slot_window_and_seconds(
    make_transports: MakeTransports,
) -> None:
    window = [t.open_window("bucket 3", 0, 4) for t in make_transports(3)][1]
    with pytest.raises(DeadlineExceeded) as caught:
        window.wait(2, 1, 0, Deadline.after(0.11))
    for part in ("rank 1:", "rank 0 did not notify slot 2", "window 'bucket 3'", "within 0.", "--timeout", "timeout_s"):
        assert part in str(caught.value)
    with pytest.raises(DeadlineExceeded, match=r"rank 1: .* slots 1 to 3 of window 'bucket 3' within 0\.0 s"):
        window.wait_any(range(1, 4), Deadline.after(-1.0))
    window.notify(1, Notification(3, 8))
    assert window.wait_any(range(1, 4), Deadline.after(TIMEOUT_S)) == (3, 8)


def test_a_wait_for_anybody_ends_if_nobody_is_left(make_transports: MakeTransports) -> None:
    """What came before counts."""
    own, other = make_transports(2)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        peer = PeerProcess(process.pid, os.pidfd_open(process.pid))
        own.watch(["rank 0", "rank 1"], {1: peer})
        other.watch(["rank 0", "rank 1"], {})
        window, _ = (transport.open_window("data", 0, 4) for transport in (own, other))
        with pytest.raises(DeadlineExceeded, match="nobody notified"):
            window.wait_any(range(4), Deadline.after(0.0))
        window.notify(0, Notification(2, 5))
        process.kill()
        assert window.wait_any(range(4), Deadline.after(TIMEOUT_S)) == (2, 5)
        with pytest.raises(RankFailed, match=rf"rank 0: rank 1 \(process {process.pid}\) .* before its work was done"):
            window.wait_any(range(4), Deadline.after(TIMEOUT_S))
    peer.close()
    other.close()
    own.close()


def test_other_sizes_than_another_ranks_are_refused_with_the_window_and_the_rank(
    make_transports: MakeTransports,
) -> None:
    transport, other = make_transports(2)
    transport.open_window("bucket 0", 64, 2)
    with pytest.raises(SamovarError, match=r"rank 1: window 'bucket 0': .*64 bytes.*128 bytes.*one net\?"):
        other.open_window("bucket 0", 128, 2)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@contextlib.contextmanager
def files_at_most(num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond; stands for memory that is short."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_every_rank_allocates_its_own_part(make_segment: MakeSegment) -> None:
    """Pages lie in the NUMA node of whoever allocates them."""
    descriptor, num_bytes, some_pages = make_segment(3), 1 << 20, 8 * 4096
    transports = [ShmTransport(descriptor, Group(rank, 3), oversubscribed=True) for rank in range(3)]
    before = os.fstat(descriptor).st_blocks * 512
    for num_open, rank in enumerate((1, 0, 2), start=1):
        window = transports[rank].open_window("data", num_bytes, 4)
        allocated = os.fstat(descriptor).st_blocks * 512 - before
        assert num_open * num_bytes <= allocated <= num_open * num_bytes + some_pages
        assert os.fstat(descriptor).st_size >= before + 3 * num_bytes
    window.put(0, num_bytes - 1, np.ones(1, np.uint8))
    assert os.fstat(descriptor).st_blocks * 512 - before <= 3 * num_bytes + some_pages


def test_short_memory_is_an_input_error_that_says_how_much_is_needed(make_transports: MakeTransports) -> None:
    transport, _ = make_transports(2)
    with files_at_most(1 << 16), pytest.raises(InputError) as caught:
        transport.open_window("parameters", 1 << 20, 0)
    for part in ("rank 0: window 'parameters' needs 2,101,248 bytes", "fewer workers"):
        assert part in str(caught.value)
    assert transport.open_window("parameters", 1 << 20, 0).local.nbytes == 1 << 20, "room later"
    descriptors = open_descriptors()
    with files_at_most(0), pytest.raises(InputError, match="shared memory for 4 ranks cannot be had"):
        create_segment(4)
    assert open_descriptors() == descriptors


def test_a_segment_has_no_name_and_cannot_shrink(make_segment: MakeSegment) -> None:
    descriptor = make_segment(1)
    assert str(Path(f"/proc/self/fd/{descriptor}").readlink()) == "/memfd:samovar (deleted)"
    assert os.fstat(descriptor).st_nlink == 0
    size = os.fstat(descriptor).st_size
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, size - 1)
    assert os.fstat(descriptor).st_size == size
    assert not os.get_inheritable(descriptor)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK


def test_the_board_has_a_row_for_each_rank_and_one_for_the_launcher(make_segment: MakeSegment) -> None:
    descriptor = make_segment(3)
    boards = [RunBoard(descriptor, 3) for _ in range(2)]
    assert boards[0].launcher_row == 3
    boards[0].post(3, 7, 11)
    boards[1].post(0, 0, 22)
    assert [board.read(row, word) for board in boards for row, word in ((3, 7), (0, 0), (1, 0))] == [11, 22, 0] * 2
