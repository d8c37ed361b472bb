"""The files of a box's buffers: those of dropped buffers go, and nothing unfinished is in the way."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from samovar.box.buffers import BufferShape, NamedBuffers
from samovar.box.joining import mapped_seat
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.launcher import box_files
from samovar.launcher.box_files import Content, Snapshots

SELDOM_S = 1e6


class Memory:
    """A memory holder, which outlives servers."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    def get(self) -> dict[str, int]:
        return {name: os.dup(descriptor) for name, descriptor in self.kept.items()}

    def put(self, name: str, descriptor: int) -> None:
        self.kept[name] = os.dup(descriptor)

    def discard(self, name: str) -> None:
        os.close(self.kept.pop(name))


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    for descriptor in made.kept.values():
        os.close(descriptor)


def test_a_buffer_that_outlived_its_server_takes_its_file_with_it(memory: Memory, tmp_path: Path) -> None:
    """The next server finds both; the buffer is dropped before it was written again."""
    told: list[str] = []
    first = NamedBuffers(memory)
    with Snapshots(first, tmp_path, SELDOM_S, told.append) as snapshots:
        first.create("copy", BufferShape(100))
        snapshots.write()
    first.close()
    second = NamedBuffers(memory)
    with Snapshots(second, tmp_path, SELDOM_S, told.append) as snapshots:
        assert list(tmp_path.glob("*.safetensors"))
        second.drop("copy")
        snapshots.write()
        assert not list(tmp_path.glob("*.safetensors"))
    second.close()
    assert told == []


def test_what_a_killed_server_left_unfinished_is_not_in_the_way(memory: Memory, tmp_path: Path) -> None:
    """In a container the next server may have the same process number, and so the same name for its file."""
    left = tmp_path / f".copy.safetensors.{os.getpid()}.partial"
    left.write_bytes(b"half")
    buffers = NamedBuffers(memory)
    with Snapshots(buffers, tmp_path, SELDOM_S, print) as snapshots:
        buffers.create("copy", BufferShape(100))
        snapshots.write()
    buffers.close()
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["copy.safetensors"]
    assert not left.exists()


def test_a_buffer_that_was_not_filled_does_not_replace_its_file(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server would take the zeros for what members had written since the last save: also after a kill."""
    first = NamedBuffers(memory)
    with Snapshots(first, tmp_path, SELDOM_S, print):
        first.create("copy", BufferShape(100))
        with first.held("copy") as buffer, mapped_seat(buffer) as session:
            session.center.write(np.ones(100, np.float32), Deadline.after(30.0))
    first.close()
    for name in list(memory.kept):
        memory.discard(name)  # the machine was started again: the file is all that is left

    def fill(*_arguments: object) -> None:
        assert not memory.kept
        raise SamovarError("no seat is free")

    second = NamedBuffers(memory)
    with monkeypatch.context() as patched:
        patched.setattr(Content, "fill", fill)
        with Snapshots(second, tmp_path, SELDOM_S, print):
            assert second.names() == []
    second.close()
    third = NamedBuffers(memory)
    with Snapshots(third, tmp_path, SELDOM_S, print):
        pass
    third.close()
    assert Content.read(tmp_path / "copy.safetensors").arrays["center"].tolist() == [1.0] * 100


def test_the_last_snapshot_does_not_say_that_its_box_has_ended(memory: Memory, tmp_path: Path) -> None:
    """Whoever loads it has a box that goes on."""
    buffers = NamedBuffers(memory)
    with Snapshots(buffers, tmp_path, SELDOM_S, print):
        buffers.create("copy", BufferShape(100))
        buffers.say_ended(is_ended=True)
    buffers.close()
    assert not Content.read(tmp_path / "copy.safetensors").arrays["words"].any()


def test_a_file_that_was_not_loaded_is_kept_when_a_new_buffer_takes_its_name(memory: Memory, tmp_path: Path) -> None:
    path, told = tmp_path / "copy.safetensors", list[str]()
    for number in (1, 2):
        path.write_bytes(spoiled := b"the only one" * number)
        buffers = NamedBuffers(memory)
        with Snapshots(buffers, tmp_path, SELDOM_S, told.append) as snapshots:
            snapshots.write()
            assert path.read_bytes() == spoiled, "nobody needs its name yet"
            buffers.create("copy", BufferShape(100))
            for value in (1.0, 2.0):
                with buffers.held("copy") as buffer, mapped_seat(buffer) as session:
                    session.center.write(np.full(100, value, np.float32), Deadline.after(30.0))
                snapshots.write()
            assert (kept := tmp_path / f"copy.safetensors.refused-{number}").read_bytes() == spoiled
            assert Content.read(path).arrays["center"].tolist() == [2.0] * 100
            refused, renamed = told[2 * number - 2 :]
            assert refused.startswith(f"not loaded: {path}: not a safetensors file")
            assert renamed == f"{path} was not loaded, and a new buffer takes its name: the old file is {kept} now"
            buffers.drop("copy")
        buffers.close()
    assert {path.name[-9:] for path in tmp_path.glob("copy*")} == {"refused-1", "refused-2"}


def test_a_good_file_that_finds_no_memory_is_kept(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(*_arguments: object, **_more: object) -> None:
        raise MemoryError

    Content.of(BufferShape(3), {"center": np.arange(3, dtype=np.float32)}).write(tmp_path / "copy.safetensors")
    buffers, told = NamedBuffers(memory), list[str]()
    monkeypatch.setattr(NamedBuffers, "create", create)
    with Snapshots(buffers, tmp_path, SELDOM_S, told.append):
        monkeypatch.undo()
        buffers.create("copy", BufferShape(100))
    buffers.close()
    assert told[0] == f"not loaded: {tmp_path / 'copy.safetensors'}: memory is short"
    kept = Content.read(tmp_path / "copy.safetensors.refused-1")
    assert kept.arrays["center"].tolist() == [0.0, 1.0, 2.0]


def test_a_save_that_finds_no_memory_is_told_and_made_again(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed, told = threading.Event(), []

    def read(*_arguments: object) -> None:
        raise MemoryError

    def tell(text: str) -> None:
        told.append(text)
        has_failed.set()

    buffers = NamedBuffers(memory)
    buffers.create("copy", BufferShape(100))
    with Snapshots(buffers, tmp_path, 0.001, tell), monkeypatch.context() as patched:
        patched.setattr(box_files, "read_mapped", read)
        assert has_failed.wait(30.0)
    buffers.close()
    assert told[0].endswith(": memory is short")
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["copy.safetensors"]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Content, "write", write)


@pytest.mark.usefixtures("full_disk")
def test_a_box_whose_last_save_fails_does_not_end_well(memory: Memory, tmp_path: Path) -> None:
    """Its memory would be gone with the word that it ended."""
    buffers = NamedBuffers(memory)
    error = r"nothing can be written \(No space left on device\); make room. The memory is kept for --keep seconds"
    with pytest.raises(SamovarError, match=error), Snapshots(buffers, tmp_path, SELDOM_S, print):
        buffers.create("copy", BufferShape(100))
    buffers.close()


@pytest.mark.usefixtures("full_disk")
def test_saving_goes_on_where_nobody_reads_that_it_failed(memory: Memory, tmp_path: Path) -> None:
    """The terminal was closed, or the reader of a pipe has ended."""
    tries, has_tried_again = [], threading.Event()

    def tell(text: str) -> None:
        tries.append(text)
        if len(tries) > 1:
            has_tried_again.set()
        raise BrokenPipeError

    buffers = NamedBuffers(memory)
    buffers.create("copy", BufferShape(100))
    with pytest.raises(SamovarError), Snapshots(buffers, tmp_path, 0.001, tell):
        assert has_tried_again.wait(30.0)
    buffers.close()
