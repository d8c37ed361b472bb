"""The order in which a center took updates: written, read back, damaged, and followed again."""

import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from samovar.box.board import Member
from samovar.box.mapped import MappedCenter, create_center
from samovar.core.clock import FOR_EVER, Deadline
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, SamovarError
from samovar.core.group import Group
from samovar.strategies.box_terms import run_steps
from samovar.training.order_log import LogHead, OrderLog, OrderWriter, read_order
from samovar.training.ordered_centers import ReplayedCenter, Turns, reads_up_to
from samovar.transports.shm import ShmTransport, create_segment

NUM_CHUNKS, NUM_WORKERS = 3, 3
HEAD = LogHead(0, 2, 40, 16)


def a_run(seed: int, num_entries: int = 30) -> list[OrderLog]:
    """The logs of workers that read and update chunk by chunk, in a random order; each begins updates at its own."""
    rng = random.Random(seed)
    logs = [OrderLog(LogHead(rank, NUM_WORKERS, NUM_CHUNKS * 4, 4)) for rank in range(NUM_WORKERS)]
    versions = np.zeros(NUM_CHUNKS, np.int64)
    under_way: dict[int, dict[int, int]] = {}  # what each worker's entry has of the chunks so far
    while under_way or sum(len(log.versions) for log in logs) < num_entries:
        rank = rng.randrange(NUM_WORKERS)
        if rank not in under_way:
            if sum(len(log.versions) for log in logs) + len(under_way) >= num_entries:
                continue
            under_way[rank] = {}
            logs[rank].is_update.append(rng.random() < 0.5)
        entry = under_way[rank]
        is_update = logs[rank].is_update[-1]
        chunk = (is_update * rank + len(entry)) % NUM_CHUNKS
        versions[chunk] += is_update
        entry[chunk] = int(versions[chunk])
        if len(entry) == NUM_CHUNKS:
            logs[rank].versions.append(np.array([entry[chunk] for chunk in range(NUM_CHUNKS)], np.int64))
            del under_way[rank]
    return logs


def write(path: Path, log: OrderLog, rate_steps: list[int]) -> None:
    with OrderWriter(path, log.head) as writer:
        for rate_step in rate_steps:
            writer.step(rate_step)
        for versions, is_update in zip(log.versions, log.is_update, strict=True):
            (writer.update if is_update else writer.read)(versions)
        writer.end()


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = a_run(1)[2]
    log.versions[-1] = log.versions[-1] + np.array([0, 1 << 40, 70_000])  # numbers of every width
    log.versions[-2] = log.versions[-2] + 200 * np.arange(NUM_CHUNKS)
    write(tmp_path / "log", log, [5, 5, 7])
    found = read_order(tmp_path / "log")
    assert (found.head, found.rate_steps, found.is_update) == (log.head, [5, 5, 7], log.is_update)
    np.testing.assert_array_equal(found.versions, log.versions)


def test_a_log_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, a_run(2)[0], [0, 1])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"record|not complete"):
            read_order(path)
    path.write_bytes(whole + b"S")
    with pytest.raises(InputError, match="not complete"):
        read_order(path)


def test_logs_of_different_runs_are_refused() -> None:
    logs = a_run(3)
    logs[0] = a_run(4)[0]
    with pytest.raises(InputError, match="not of one run"):
        reads_up_to(logs)


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_take_turns_meet_each_chunk_as_recorded(seed: int) -> None:
    """Threads of their own speeds: whoever updates a chunk finds the version before, whoever reads it its version."""
    logs = a_run(seed)
    descriptor = create_segment(NUM_WORKERS)
    transports = [
        ShmTransport(descriptor, Group(rank, NUM_WORKERS), oversubscribed=True) for rank in range(NUM_WORKERS)
    ]
    windows = [transport.open_window("turns", 8 * (NUM_CHUNKS + 1), 0) for transport in transports]
    center, wrong = np.zeros(NUM_CHUNKS, np.int64), []

    def work(rank: int) -> None:
        turns, deadline = Turns(logs, rank, windows[rank]), Deadline.after(60)
        for is_update in logs[rank].is_update:
            tickets, versions = turns.take(is_update)
            for chunk in turns.each(tickets, deadline):
                center[chunk] += is_update
                if center[chunk] != versions[chunk]:
                    wrong.append((rank, chunk))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(NUM_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    assert wrong == []
    assert center.tolist() == [sum(sum(log.is_update) for log in logs)] * NUM_CHUNKS
    turns = Turns(logs, 0, windows[0])
    # An update may begin before reads that were recorded before it.
    kinds = sorted(enumerate(logs[0].is_update), key=lambda entry: not entry[1])
    for place, is_update in kinds:
        assert (turns.take(is_update)[1] == logs[0].versions[place]).all()
    with pytest.raises(SamovarError, match="in another order than in the recorded run"):
        turns.take(logs[0].is_update[0])


def test_a_worker_that_stops_early_lets_the_others_go_on() -> None:
    descriptor = create_segment(1)
    window = ShmTransport(descriptor, Group(0, 1), oversubscribed=True).open_window("turns", 8 * (NUM_CHUNKS + 1), 0)
    os.close(descriptor)
    turns, late = Turns(a_run(0), 0, window), np.full(NUM_CHUNKS, 100)
    with pytest.raises(DeadlineExceeded, match="did not come to its turn"):
        list(turns.each(late, Deadline.after(0)))
    turns.stop()
    assert sorted(turns.each(late, Deadline.after(0))) == list(range(NUM_CHUNKS))


def test_a_worker_whose_update_is_refused_lets_the_others_go_on() -> None:
    logs = [OrderLog(LogHead(rank, 2, 4 * NUM_CHUNKS, 4)) for rank in range(2)]
    for log, is_update in zip(logs, (True, False), strict=True):
        log.is_update.append(is_update)
        log.versions.append(np.ones(NUM_CHUNKS, np.int64))
    segment, descriptor = create_segment(1), create_center(4 * NUM_CHUNKS, chunk_elements=4)
    window = ShmTransport(segment, Group(0, 1), oversubscribed=True).open_window("turns", 8 * (NUM_CHUNKS + 1), 0)
    with MappedCenter(descriptor, Member(0, 1)) as center:
        os.close(segment), os.close(descriptor)
        first, second = (ReplayedCenter(center, Turns(logs, rank, window), lambda: FOR_EVER) for rank in range(2))
        with pytest.raises(NotFinite):
            first.accumulate(1, np.full(4 * NUM_CHUNKS, np.nan, np.float32), Deadline.after(60))
        second.read(np.empty(4 * NUM_CHUNKS, np.float32), Deadline.after(60))


def test_a_worker_that_leaves_an_update_out_ends_and_lets_the_others_go_on() -> None:
    """It kept weights from the center that are not finite: an order without this update is never complete."""
    log = OrderLog(LogHead(0, 1, 4 * NUM_CHUNKS, 4))
    log.is_update += [True, False]
    log.versions += 2 * [np.ones(NUM_CHUNKS, np.int64)]
    descriptor = create_segment(1)
    window = ShmTransport(descriptor, Group(0, 1), oversubscribed=True).open_window("turns", 8 * (NUM_CHUNKS + 1), 0)
    os.close(descriptor)
    turns = Turns([log], 0, window)
    with pytest.raises(SamovarError, match="in another order than in the recorded run"):
        turns.take(is_update=False)
    assert turns.are_over


def test_the_steps_of_a_run_by_each_rule() -> None:
    steps = [90, 120, 61]
    assert [run_steps(rule, steps, master=2) for rule in ("mean", "master", "first")] == [90, 61, 120]


def test_a_full_disk_ends_a_record_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    message = r"full cannot be written: No space left on device; make room there, or train without --record"
    with pytest.raises(InputError, match=message), OrderWriter(tmp_path / "full", HEAD) as writer:
        _fill(writer)


def _fill(writer: OrderWriter) -> None:
    for step in range(10_000):  # more than a buffer holds
        writer.step(step)
