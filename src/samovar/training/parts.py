"""Snapshot parts of ranks on other hosts: their files travel to rank 0, which writes the snapshot.

Cost: each byte once over the network, in chunks of a MiB, each of them awaited; one rank at a time.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from samovar.checkpoint.store import SnapshotStore, StagedPart
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.training.resume import RANK_PART
from samovar.transports.base import Notification, Region, Transport

_CHUNK_BYTES = 1 << 20
_GO = 0  # a rank's slot for rank 0's word that it may put the next chunk


class PartsOfOthers:
    """The way of staged parts from the ranks `others` to rank 0. All ranks make it, and call `collect` together.

    `deadline` limits the wait for one chunk.
    """

    def __init__(
        self, store: SnapshotStore, transport: Transport, others: tuple[int, ...], deadline: Callable[[], Deadline]
    ) -> None:
        self._store, self._others, self._deadline = store, others, deadline
        self._rank = transport.group.rank
        self._window = transport.open_window("parts of snapshots", 8 + _CHUNK_BYTES, transport.group.world_size)
        self._size = Region.of(self._window, 0, 1, np.uint64).array
        self._count = dict.fromkeys(others, 0)

    def collect(self, own: StagedPart) -> dict[int, StagedPart]:
        """On rank 0, the parts of the other hosts' ranks, staged there; raises InputError if its disk refuses."""
        if self._rank == 0:
            return {rank: self._take(rank, own.step) for rank in self._others}
        if self._rank in self._others:
            self._give(own)
        return {}

    def _give(self, own: StagedPart) -> None:
        folder = self._store.folder / own.folder_name
        paths = sorted(folder.iterdir())
        self._put(json.dumps({path.name: path.stat().st_size for path in paths}).encode())
        for path in paths:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    self._put(chunk)
            path.unlink()
        folder.rmdir()

    def _put(self, chunk: bytes) -> None:
        self._count[self._rank] = count = self._count[self._rank] + 1
        self._window.wait(_GO, count, 0, self._deadline())
        self._window.put(0, 8, np.frombuffer(chunk, np.uint8))
        self._window.put(0, 0, np.array([len(chunk)], np.uint64), Notification(self._rank, count))

    def _take(self, rank: int, step: int) -> StagedPart:
        staged = StagedPart(step, RANK_PART.format(rank), os.getpid())
        folder = self._store.folder / staged.folder_name
        sizes = json.loads(next(self._chunks(rank)))
        try:
            folder.mkdir(parents=True)
            for name, size in sizes.items():
                _write(folder / Path(name).name, size, self._chunks(rank))
        except OSError as error:
            raise InputError(
                f"snapshot of step {step}: the part of rank {rank} cannot be written in {folder}: {error.strerror}; "
                "make room there, or give another folder with --out"
            ) from error
        return staged

    def _chunks(self, rank: int) -> Iterator[bytes]:
        while True:
            self._count[rank] = count = self._count[rank] + 1
            self._window.notify(rank, Notification(_GO, count))
            self._window.wait(rank, count, rank, self._deadline())
            yield self._window.local[8 : 8 + int(self._size[0])].tobytes()


def _write(path: Path, size: int, chunks: Iterator[bytes]) -> None:
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(next(chunks))
        file.flush()
        os.fsync(file.fileno())
