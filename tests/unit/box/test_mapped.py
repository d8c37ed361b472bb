"""The mapped center: background updates, retries after a deadline, many members at once, and what is refused."""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest

from samovar.box.base import PendingPush
from samovar.box.board import Member
from samovar.box.mapped import MappedCenter, create_center, fill_center, is_filled
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed
from samovar.core.host import create_empty

SIZE, CHUNK = 1000, 64
Attach = Callable[..., MappedCenter]


@pytest.fixture
def attach() -> Iterator[Attach]:
    """attach(index) is a member of one center with room for 4; attach() is nobody."""
    descriptor = create_center(SIZE, 4, with_velocity=True, chunk_elements=CHUNK)
    attached = []

    def attach(index: int | None = None, incarnation: int = 1) -> MappedCenter:
        attached.append(MappedCenter(descriptor, None if index is None else Member(index, incarnation)))
        return attached[-1]

    yield attach
    for center in attached:
        center.close()
    os.close(descriptor)


def soon() -> Deadline:
    return Deadline.after(30.0)


def ones(value: float = 1.0) -> npt.NDArray[np.float32]:
    return np.full(SIZE, value, np.float32)


def read(center: MappedCenter) -> npt.NDArray[np.float32]:
    values = ones(np.nan)
    center.read(values, soon())
    return values


def test_what_it_tells_of_itself(attach: Attach) -> None:
    center = attach(0)
    assert (center.num_elements, center.chunk_elements, center.num_chunks) == (SIZE, CHUNK, 16)
    assert (center.with_velocity, center.with_locks, center.lock_wait_s) == (True, True, 0.0)


def test_velocity_is_written_and_read(attach: Attach) -> None:
    center, found = attach(0), ones()
    center.write_velocity(ones(4.0), soon())
    center.accumulate(1, ones(), soon(), momentum=0.5)
    center.read_velocity(found, soon())
    assert (found == 3).all()
    assert (read(center) == 3).all()


def test_nobody_reads_and_writes_but_changes_nothing(attach: Attach) -> None:
    nobody = attach()
    nobody.write(ones(2.0), soon())
    assert (read(nobody) == 2).all()
    with pytest.raises(RuntimeError, match="not attached"):
        nobody.accumulate(1, ones(), soon())


def test_pushes_run_in_order_before_what_comes_after_them(attach: Attach) -> None:
    center = attach(0)
    differences = [ones(), ones(2.0), ones(4.0)]
    pushes = [center.accumulate_in_background(k + 1, difference) for k, difference in enumerate(differences)]
    versions = center.exchange(4, ones(7.0), 0.5, soon())  # x = c by then: nothing moves
    assert (versions == 4).all()
    assert (read(center) == 7).all()
    for sequence, push in enumerate(pushes, 1):
        push.wait(soon())
        push.wait(soon())  # a second wait is over at once
        assert (push.versions == sequence).all()


def test_an_array_that_is_pushed_lives_until_it_is_taken(attach: Attach) -> None:
    center = attach(0)
    pushes = [center.accumulate_in_background(sequence, ones()) for sequence in range(1, 50)]
    assert (center.accumulate(50, ones(), soon()) == 50).all()
    del pushes
    assert (read(center) == 50).all()


def test_what_is_under_way_when_a_center_is_closed(attach: Attach) -> None:
    """It ends after its present chunk and says so to those that wait; each chunk is complete."""
    deadline = soon()
    for incarnation in count(1):
        center = attach(0, incarnation)
        pushes = [center.accumulate_in_background(sequence, ones()) for sequence in range(1, 200)]
        center.close()
        if not is_complete(pushes[-1]):
            break
        assert not deadline.passed(), "the thread was done before every close"
    with pytest.raises(RuntimeError, match="the center is closed"):
        center.accumulate_in_background(200, ones())
    again = attach(0, incarnation + 1)
    values = read(again)
    for chunk in range(16):
        assert len(set(values[chunk * CHUNK : (chunk + 1) * CHUNK])) == 1
    again.accumulate(1, ones(), soon())
    assert (read(again) == values + 1).all()  # what is held is not this incarnation's


def is_complete(push: PendingPush) -> bool:
    """Whether it was when its center was closed."""
    try:
        push.wait(soon())
    except RuntimeError as error:
        if "closed before the update was complete" not in str(error):
            raise
        return False
    return True


def test_an_operation_goes_on_after_its_deadline(attach: Attach) -> None:
    center = attach(0)
    x = ones()
    for operation in (
        lambda: center.read(x, Deadline.after(0)),
        lambda: center.accumulate(1, x, Deadline.after(0)),
        lambda: center.exchange(1, x, 0.5, Deadline.after(0)),
    ):
        with pytest.raises(DeadlineExceeded, match=r"member 0 of the box could not .* before its deadline"):
            operation()
    # As a deadline in the middle leaves it: two chunks are exchanged, the others are not.
    center.exchange_chunks(3, 1, x[3 * CHUNK : 5 * CHUNK], 0.5, soon())
    assert center.read(ones(), soon())[2:6].tolist() == [0, 1, 1, 0]
    center.exchange(1, x, 0.5, soon())
    assert (x == 0.5).all()
    assert (read(center) == 0.5).all()


def test_rows_have_one_owner_at_a_time(attach: Attach) -> None:
    first = attach(1, 3)
    with pytest.raises(RankFailed, match=r"member 1 of the box cannot take its place in the center: .*process"):
        attach(1, 4)
    with pytest.raises(RankFailed, match="incarnation 3 of member 1 is here, incarnation 2 is over; join again"):
        attach(1, 2)
    first.accumulate(7, ones(), soon())
    first.close()
    attach(1, 4).accumulate(1, ones(), soon())
    assert (read(attach()) == 2).all()


def test_what_is_refused(attach: Attach) -> None:
    descriptor = create_center(SIZE, 2)
    with MappedCenter(descriptor, Member(0, 1)) as center:
        for refused in (
            lambda: center.accumulate(1, ones(), soon(), momentum=0.5),
            lambda: center.accumulate_in_background(1, ones(), momentum=0.5),
        ):
            with pytest.raises(InputError, match=r"momentum 0\.5 needs a center with a velocity"):
                refused()
    os.close(descriptor)
    with pytest.raises(InputError, match="a center of 0 elements cannot be had"):
        create_center(0)
    empty = create_empty()
    with pytest.raises(InputError, match="the box: the descriptor is not a center"):
        MappedCenter(empty)
    os.close(empty)


@pytest.fixture
def limited_files() -> Iterator[None]:
    """No file may grow beyond 1 GiB: should a check be missing, the machine need not run out of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("limited_files")
def test_more_memory_than_there_is() -> None:
    with pytest.raises(InputError, match=r"center of 500,000,000,000 elements cannot be had: .*larger ones"):
        create_center(500_000_000_000)
    with pytest.raises(InputError, match="Cannot allocate memory; raise the memory limit"):
        create_center(500_000_000_000, chunk_elements=1 << 20)


def test_a_center_that_somebody_died_filling_is_filled_anew() -> None:
    descriptor = create_empty()
    os.ftruncate(descriptor, 12345)
    os.pwrite(descriptor, b"\xff" * 5000, 0)
    assert not is_filled(descriptor)
    fill_center(descriptor, SIZE, 2)
    assert is_filled(descriptor)
    center = MappedCenter(descriptor)
    assert (read(center) == 0).all()
    center.write(ones(), soon())
    fill_center(descriptor, SIZE, 2)  # one that is a center already stays as it is
    assert (read(center) == 1).all()
    os.close(descriptor)


@pytest.mark.parametrize("num_chunks", [1, 3])
def test_members_at_once_lose_nothing_and_see_whole_chunks(num_chunks: int) -> None:
    """Threads, which run here without the GIL: sums of integers are exact in any order.

    Chunks are so large that two members are often at the same one.
    """
    chunk, rounds, members = 1 << 18, 30, 4
    size = num_chunks * chunk
    descriptor = create_center(size, members, chunk_elements=chunk)
    torn = []

    def add(index: int) -> None:
        own = np.full(size, float(index + 1), np.float32)
        seen, last = np.empty_like(own), np.zeros(num_chunks, np.int64)
        with MappedCenter(descriptor, Member(index, index + 1)) as center:
            for sequence in range(1, rounds + 1):
                center.accumulate(sequence, own, soon())
                versions = center.read(seen, soon())
                rows = seen.reshape(num_chunks, -1)
                if (rows != rows[:, :1]).any() or (versions < last).any():
                    torn.append((index, sequence))
                last = versions

    threads = [threading.Thread(target=add, args=(index,)) for index in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torn == []
    center = MappedCenter(descriptor)
    values = np.empty(size, np.float32)
    versions = center.read(values, soon())
    assert (versions == members * rounds).all()
    assert (values == rounds * sum(range(1, members + 1))).all()
    os.close(descriptor)


def test_a_member_that_writes_while_others_add_leaves_chunks_whole() -> None:
    """What it writes is in the chunks that it is for, and nowhere else: the others add zeros."""
    chunk, num_chunks, writes = 1 << 16, 3, 400
    numbers = np.arange(1, num_chunks + 1, dtype=np.float32)
    descriptor = create_center(num_chunks * chunk, 4, with_velocity=True, chunk_elements=chunk)
    written = np.repeat(numbers, chunk)
    is_over, wrong = threading.Event(), []

    def write() -> None:
        try:
            with MappedCenter(descriptor, Member(0, 1)) as center:
                for _ in range(writes):
                    np.negative(written, out=written)
                    center.write(written, soon())
                    center.write_velocity(written, soon())
        finally:
            is_over.set()

    def add(index: int) -> None:
        seen = np.zeros_like(written)
        with MappedCenter(descriptor, Member(index, index + 1)) as center:
            for sequence in count(1):
                center.accumulate(sequence, np.zeros_like(written), soon())
                for read in (center.read, center.read_velocity):
                    read(seen, soon())
                    rows = seen.reshape(num_chunks, chunk)
                    if (rows != rows[:, :1]).any() or not np.isin(np.abs(rows[:, 0]) / numbers, (0, 1)).all():
                        wrong.append((index, sequence))
                if is_over.is_set():
                    return

    threads = [threading.Thread(target=write), *(threading.Thread(target=add, args=(index,)) for index in (1, 2, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    assert wrong == []


def test_a_write_leaves_versions_and_updates_as_they_are(attach: Attach) -> None:
    center = attach(0)
    center.accumulate(1, ones(), soon(), momentum=0.5)
    center.write(ones(5.0), soon())
    assert (center.accumulate(1, ones(), soon()) == 1).all(), "it is in the chunks already"
    assert (center.accumulate(2, ones(), soon(), momentum=0.5) == 2).all()
    assert (read(center) == 6.5).all()
