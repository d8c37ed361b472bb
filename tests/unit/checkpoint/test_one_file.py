"""One file of several processes: what goes in comes out, whole or not at all, and damage is found."""

import errno
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from samovar.checkpoint.one_file import Block, CheckpointFile, Part, Save
from samovar.core.clock import Deadline, polled
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.transports.processes import own_mark

TIMEOUT_S = 60.0
Arrays = Mapping[str, np.ndarray]
SHARED = np.arange(6, dtype=np.float32).reshape(2, 3)
RANKS: list[Arrays] = [
    {"model/weight": SHARED, "step": np.array(3, np.int64), "empty": np.zeros((0, 4), np.float32)},
    {"model/weight": SHARED, "step": np.array(4, np.int64), "model/bias": np.ones(3, np.float64)},
    {"model/weight": SHARED + 1, "step": np.array(3, np.int64), "mask": np.array([True, False])},
]
CODES = {"float32": "F32", "float64": "F64", "int64": "I64", "bool": "BOOL", "uint8": "U8"}


def part_of(note: object, arrays: Arrays) -> Part:
    blocks = {
        name: Block(CODES[a.dtype.name], a.shape, a.reshape(-1).view(np.uint8).data) for name, a in arrays.items()
    }
    return Part(note, blocks)


def save(
    path: Path, ranks: Sequence[Arrays], token: str = "1", obstacle: Path | None = None
) -> list[SamovarError | None]:
    """Save on a thread for each process; the errors. The `obstacle` is a folder in the way."""
    saves = [Save(path, token, rank, len(ranks), TIMEOUT_S) for rank in range(len(ranks))]
    errors: list[SamovarError | None] = [None] * len(ranks)
    saves[0].begin()
    if obstacle is not None:
        obstacle.mkdir()

    def write(rank: int) -> None:
        try:
            saves[rank].require_shared()
            saves[rank].write(part_of({"rank": rank}, ranks[rank]), lambda: None)
        except SamovarError as error:
            errors[rank] = error

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_every_process_finds_its_tensors_and_equal_ones_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "all.safetensors"
    assert save(path, RANKS) == [None, None, None]
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    stored, content = safetensors.numpy.load_file(path), CheckpointFile.read(path)
    assert content.notes == [{"rank": rank} for rank in range(3)]
    for rank, arrays in enumerate(RANKS):
        assert content.tensors[rank].keys() == arrays.keys()
        for name, array in arrays.items():
            key, digest = content.tensors[rank][name]
            np.testing.assert_array_equal(stored[key], array)
            content.require_intact(key, part_of(None, {name: stored[key]}).blocks[name].digest(), digest)
    assert stored.keys() == {
        *("rank_0/model/weight", "rank_0/step", "rank_0/empty", "rank_1/step", "rank_1/model/bias"),
        *("rank_2/model/weight", "rank_2/mask"),
    }


def test_a_file_is_replaced_and_what_dead_saves_left_goes(tmp_path: Path) -> None:
    path, other = tmp_path / "a.safetensors", tmp_path / ".b.safetensors.9.begun"
    left = [f".{path.name}.{rest}" for rest in ("77.begun", "77.1.part", "9.partial")]
    left.append(f"..{path.name}.77.1.part.12.partial")
    for place in (other, *(tmp_path / name for name in left)):
        place.touch()
    for number in range(3):
        assert save(path, [{"x": np.array(float(number))}], str(number)) == [None]
    assert {each.name for each in tmp_path.iterdir()} == {path.name, other.name}
    assert float(safetensors.numpy.load_file(path)["rank_0/x"]) == 2.0


def test_a_save_leaves_those_of_longer_names_alone(tmp_path: Path) -> None:
    longer = Save(tmp_path / "a.best", "7" * 16, 0, 1, TIMEOUT_S)
    longer.begin()
    assert save(tmp_path / "a", RANKS[:1]) == [None]
    longer.write(part_of({}, RANKS[0]), lambda: None)


@pytest.mark.parametrize("rank", [0, 1])
def test_if_one_process_cannot_write_all_say_so_and_the_old_file_stays(tmp_path: Path, rank: int) -> None:
    path = tmp_path / "a.safetensors"
    assert save(path, RANKS, "1") == [None, None, None]
    before = path.read_bytes()
    in_the_way = tmp_path / f"..a.safetensors.2.{'known' if rank == 0 else '1.part'}.{os.getpid()}.partial"
    errors = save(path, RANKS, "2", in_the_way)
    assert all(isinstance(error, SamovarError) for error in errors), errors
    assert isinstance(errors[rank], InputError)
    assert path.read_bytes() == before


class Watched(Block):
    """A tensor whose next piece is written when another process has seen the last one grow."""

    seen = threading.Event()

    def pieces(self) -> Iterator[memoryview]:
        for piece in self.data[: 1 << 17], self.data[1 << 17 :]:
            self.seen.clear()
            yield piece
            if not self.seen.wait(TIMEOUT_S / 4):
                raise OSError(errno.EIO, "nobody saw this piece")


def test_a_process_that_has_written_waits_as_long_as_another_one_writes(tmp_path: Path) -> None:
    """Rank 2 has written its part before rank 1 begins to."""
    saves = [Save(tmp_path / "a", "7", rank, 3, TIMEOUT_S) for rank in range(3)]
    saves[0].begin()
    parts = [part_of({}, {"x": np.full(1 << 18, rank, np.uint8)}) for rank in range(3)]
    block = parts[1].blocks["x"]
    parts[1] = Part({}, {"x": Watched(block.code, block.shape, block.data)})
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(saves[0].write, parts[0], lambda: None)]
        others.append(pool.submit(saves[2].write, parts[2], Watched.seen.set))
        assert polled((tmp_path / ".a.7.2.part").exists, Deadline.after(TIMEOUT_S), 0.01)
        saves[1].write(parts[1], lambda: None)
        assert [other.result() for other in others] == [None, None]


def test_a_process_that_never_comes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    saving = Save(path, "1", 0, 2, 0.05)
    saving.begin()
    with pytest.raises(DeadlineExceeded, match=r"rank 0: save: nothing of .* came from rank 1 within 0\.05 s"):
        saving.write(part_of(None, RANKS[0]), lambda: None)
    assert not path.exists()


def test_a_process_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = own_mark().replace(str(os.getpid()), str(other.pid), 1)
    other.communicate()
    saving = Save(tmp_path / "a.safetensors", "1", 0, 2, TIMEOUT_S, (own_mark(), mark))
    saving.begin()
    with pytest.raises(RankFailed, match=r"rank 0: save: rank 1 ended before .*a\.safetensors was complete"):
        saving.write(part_of(None, RANKS[0]), lambda: None)


def test_a_folder_of_another_host_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the folder that rank 0 sees; give one that all hosts share"):
        Save(tmp_path / "a.safetensors", "1", 1, 2, 1.0).require_shared()


@pytest.mark.parametrize("seed", range(5))
def test_a_changed_bit_of_the_manifest_is_found(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "a.safetensors"
    save(path, RANKS[:1])
    rng, whole = random.Random(seed), path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    text = whole[8 : 8 + length]
    start = text.index(b'"manifest"')
    end = text.index(b'"},"rank_0/', start)
    for _ in range(40):
        place = 8 + rng.randrange(start, end)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(7)]) + whole[place + 1 :])
        with pytest.raises(
            InputError, match=r"a\.safetensors (is damaged|is not a safetensors file|is not a checkpoint)"
        ):
            CheckpointFile.read(path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, (1 << 60).to_bytes(8, "little"), b"\x02" + bytes(7) + b"[]"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.safetensors is not a safetensors file"):
        CheckpointFile.read(path)
    safetensors.numpy.save_file({"x": np.zeros(3)}, path, {"format": "pt", "manifest": json.dumps({})})
    with pytest.raises(InputError, match="is not a checkpoint of version 1"):
        CheckpointFile.read(path)
    with pytest.raises(InputError, match=r"none\.safetensors does not exist"):
        CheckpointFile.read(tmp_path / "none.safetensors")
