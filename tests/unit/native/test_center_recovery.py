"""Members that died inside a swap: what they leave in their row (native/center_file.hpp), and who comes next."""

import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from samovar import _native
from samovar.box.mapped import create_center

CHUNK, CHUNKS, MEMBERS = 32, 3, 2
HEADER_BYTES, ROW_BYTES = 128, 64
ROW = struct.Struct("<QQQIIIxxxxQ")  # name, started, stamp, spare, swapping, old slot, chunk
DEAD = 2**22 + 1  # no process has this number
TIMEOUT_S = 30.0


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = create_center(CHUNK * CHUNKS, MEMBERS, chunk_elements=CHUNK)
    yield descriptor
    os.close(descriptor)


def row(descriptor: int, member: int) -> list[int]:
    return list(ROW.unpack(os.pread(descriptor, ROW.size, HEADER_BYTES + member * ROW_BYTES)))


def put_row(descriptor: int, member: int, fields: list[int]) -> None:
    os.pwrite(descriptor, ROW.pack(*fields), HEADER_BYTES + member * ROW_BYTES)


def words(descriptor: int) -> list[int]:
    """The slots that chunks are in."""
    data = os.pread(descriptor, 8 * CHUNKS, HEADER_BYTES + MEMBERS * ROW_BYTES)
    return [word & 0xFFFFF for word in struct.unpack(f"<{CHUNKS}Q", data)]


def attached(descriptor: int, member: int, incarnation: int) -> _native.Center:
    center = _native.Center(descriptor)
    center.attach(member, incarnation)
    return center


def add(center: _native.Center, sequence: int) -> None:
    ones, versions = np.ones(CHUNK * CHUNKS, np.float32), np.zeros(CHUNKS, np.int64)
    assert center.accumulate(0, sequence, ones, 0.0, versions, TIMEOUT_S)


def die(descriptor: int, member: int, incarnation: int) -> None:
    """Nothing in the file changes, but that the process is no more."""
    fields = row(descriptor, member)
    put_row(descriptor, member, [incarnation << 24 | DEAD, *fields[1:]])


def all_slots(descriptor: int) -> list[int]:
    """Every slot has one place: a chunk's or a member's."""
    return sorted([*words(descriptor), *(row(descriptor, member)[3] for member in range(MEMBERS))])


@pytest.mark.parametrize("others_go_on", [False, True])
def test_killed_after_the_swap_before_the_spare_was_noted(descriptor: int, others_go_on: bool) -> None:
    center, other = attached(descriptor, 0, 1), attached(descriptor, 1, 2)
    add(center, 1)
    name, started, stamp, spare, swapping, old_slot, chunk = row(descriptor, 0)
    assert swapping == 0
    assert spare == old_slot
    taken = words(descriptor)[chunk]  # what was the spare until the swap
    put_row(descriptor, 0, [name, started, stamp, taken, 1, old_slot, chunk])
    die(descriptor, 0, 1)
    if others_go_on:  # and that slot wanders on
        add(other, 1)
        add(other, 2)
    later = attached(descriptor, 0, 3)
    assert row(descriptor, 0)[3:5] == [old_slot, 0]
    assert all_slots(descriptor) == list(range(CHUNKS + MEMBERS))
    add(later, 1)
    add(other, 3)
    found, versions = np.empty(CHUNK * CHUNKS, np.float32), np.zeros(CHUNKS, np.int64)
    assert later.read(0, found, False, versions, TIMEOUT_S)
    assert (found == (5 if others_go_on else 3)).all()
    assert (versions == found[::CHUNK]).all()


def test_killed_before_the_swap(descriptor: int) -> None:
    center = attached(descriptor, 0, 1)
    add(center, 1)
    name, started, stamp, spare, _, _, _ = row(descriptor, 0)
    # The note of the next swap stands, of chunk 1, but the chunk's word is what it was.
    put_row(descriptor, 0, [name, started, stamp + 1, spare, 1, words(descriptor)[1], 1])
    die(descriptor, 0, 1)
    later = attached(descriptor, 0, 2)
    assert row(descriptor, 0)[3:5] == [spare, 0]
    assert all_slots(descriptor) == list(range(CHUNKS + MEMBERS))
    add(later, 1)
    found = np.empty(CHUNK * CHUNKS, np.float32)
    assert later.read(0, found, False, np.zeros(CHUNKS, np.int64), TIMEOUT_S)
    assert (found == 2).all()


def test_a_note_that_names_nothing_is_refused(descriptor: int) -> None:
    fields = row(descriptor, 0)
    for old_slot, chunk in ((CHUNKS + MEMBERS, 0), (0, CHUNKS), (2**32 - 1, 2**64 - 1)):
        put_row(descriptor, 0, [*fields[:4], 1, old_slot, chunk])
        with pytest.raises(ValueError, match="the center is damaged"):
            attached(descriptor, 0, 1)
        put_row(descriptor, 0, fields)


def test_a_member_whose_row_was_taken_changes_nothing_more(descriptor: int) -> None:
    center = attached(descriptor, 0, 1)
    add(center, 1)
    die(descriptor, 0, 1)  # as others see it that have lost sight of its process
    later = attached(descriptor, 0, 2)
    with pytest.raises(_native.Fenced, match="member 0 is another process by now"):
        add(center, 2)
    add(later, 1)
    center.close()  # gives back nothing: the row is another's
    with pytest.raises(OSError, match="member 0 is process"):
        attached(descriptor, 0, 3)
