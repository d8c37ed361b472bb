"""Batches of one rank, read ahead of need.

Step s of a run uses the global samples [s * B, (s + 1) * B) of a global batch of B; rank r takes its slice of them
(see `order.shares`). A batch therefore depends on (seed, step, rank, world size) alone: a stream that starts at step s
gives the same batches as one that comes there from step 0.
"""

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from samovar.core.clock import Deadline
from samovar.core.closing import Closing
from samovar.core.errors import DeadlineExceeded
from samovar.core.group import Group
from samovar.data.order import Portions
from samovar.data.reader import BatchReader, Tensors

PREFETCHED_BATCHES = 3
_CLOSE_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's part of one global batch, number `number` of the run."""

    number: int
    tensors: Tensors
    """By top: images float32 (num_samples, C, H, W), labels int64 (num_samples,), rows of HDF5 float32.

    SAMPLE_NUMBERS are the global counters of the samples, by which random layers draw.
    """
    num_samples: int
    global_num_samples: int


class BatchStream(Closing):
    """This rank's portions of the samples, from number `start`, without end. One thread reads ahead.
    At most PREFETCHED_BATCHES batches wait. The stream owns the reader and closes it."""

    def __init__(self, reader: BatchReader, portions: Portions, start: int = 0) -> None:
        self._reader = reader
        self._portions = portions
        self._ready: deque[Batch] = deque()
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        # A daemon: a read that hangs (a dead network file system) must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._prefetch, args=(start,), name=f"read {reader.described}", daemon=True
        )
        self._thread.start()

    def next(self, deadline: Deadline) -> Batch:
        """The batch of the next step. Raises DeadlineExceeded if it is late (a later call may still get it), and any
        error of the reading thread after the batches that it had read."""
        with self._changed:
            assert not self._closed, "next() after close()"
            if not self._changed.wait_for(lambda: self._ready or self._failure is not None, deadline.remaining_s()):
                raise DeadlineExceeded(
                    f"{self._reader.described}: the next batch was not read in time. Is the file system "
                    "slow or gone? Copy the data to a local disk, or allow a longer wait."
                )
            if not self._ready:
                assert self._failure is not None
                raise self._failure
            batch = self._ready.popleft()
            self._changed.notify_all()
        return batch

    def close(self) -> None:
        """End the thread and close the reader, at any time. Further calls do nothing."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(_CLOSE_WAIT_S)
        if not self._thread.is_alive():
            self._reader.close()

    def _prefetch(self, start: int) -> None:
        try:
            for number in itertools.count(start):
                first_sample, count = self._portions.at(number)
                tensors = self._reader.read(first_sample, count)
                if not self._offer(Batch(number, tensors, count, self._portions.global_batch)):
                    return
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _offer(self, batch: Batch) -> bool:
        """Queue the batch once there is room; False when the stream is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < PREFETCHED_BATCHES)
            if not self._closed:
                self._ready.append(batch)
                self._changed.notify_all()
            return not self._closed


def evaluation_batches(reader: BatchReader, group: Group, num_batches: int) -> Iterator[tuple[int, Tensors]]:
    """(k, tensors) of the test batches k = rank, rank + P, ... below `num_batches`.

    Batch k is the samples [k * b, (k + 1) * b), b being the layers' batch_size, wrapping at the last
    record; every call starts at the first record. All ranks together read each batch once.
    """
    size = reader.batch_size
    for batch in range(group.rank, num_batches, group.world_size):
        yield batch, reader.read(batch * size, size)
