"""Batches of one rank, read ahead of need.

Step s of a run uses the global samples [s * B, (s + 1) * B), B being the global batch; rank r takes its
slice of them (see `order.shares`). What a batch holds therefore depends on (seed, step, rank, world size)
alone: a stream started at step s gives what another one gives when it gets there.
"""

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.core.group import Group
from samovar.data.config import DataConfig
from samovar.data.dataset import LmdbDataset
from samovar.data.order import SAMPLE_NUMBERS, SampleOrder, sample_indices, shares
from samovar.data.transform import Transform

PREFETCHED_BATCHES = 3
_CLOSE_WAIT_S = 5.0

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's part of one global batch."""

    step: int
    tensors: Tensors
    """By top: the images float32 (num_samples, C, H, W), then the labels int64 (num_samples,).

    Beside them SAMPLE_NUMBERS: the global counters of the samples, by which random layers draw.
    """
    num_samples: int
    global_num_samples: int


class BatchReader:
    """Any run of global samples of one data layer, transformed; holds no position.

    `sample_shape` is (C, H, W) of one transformed image.
    Raises: InputError where the source, its records and the transform do not fit together.
    """

    def __init__(self, config: DataConfig, seed: int = 0, shuffled: bool = False) -> None:
        if not 1 <= len(config.tops) <= 2:
            raise InputError(
                f"{config.source}: a Data layer has {len(config.tops)} tops {list(config.tops)}; give one "
                "for the images and, if wanted, a second for the labels."
            )
        if config.batch_size < 1:
            raise InputError(f"{config.source}: batch_size is {config.batch_size}; it must be at least 1.")
        self.config = config
        self._dataset = LmdbDataset(config.source)
        try:
            self._transform = Transform(config, self._dataset.sample_shape, seed)
        except BaseException:
            self._dataset.close()
            raise
        self._order = SampleOrder(len(self._dataset), seed, shuffled)
        self.sample_shape = self._transform.output_shape

    def __len__(self) -> int:
        """The number of records."""
        return len(self._dataset)

    def read(self, first_sample: int, count: int) -> Tensors:
        """The global samples [first_sample, first_sample + count), by top.

        Raises: InputError where a record is damaged or the file no longer holds it.
        """
        images, labels = self._dataset.read(sample_indices(self._order, first_sample, count))
        values = (self._transform(images, first_sample), torch.from_numpy(labels))
        return dict(zip(self.config.tops, values, strict=False))

    def close(self) -> None:
        """Give the file back; may be called again."""
        self._dataset.close()

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BatchStream:
    """This rank's batches, from `start_step` on and without end, read ahead by one thread.

    At most PREFETCHED_BATCHES batches wait. The stream owns the reader and closes it.
    Raises: InputError where a rank would get no sample.
    """

    def __init__(self, reader: BatchReader, group: Group, global_batch: int, start_step: int = 0) -> None:
        self._reader = reader
        self._start, self._count = shares(global_batch, group.world_size)[group.rank]
        self._global_batch = global_batch
        self._ready: deque[Batch] = deque()
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        source = reader.config.source
        # A daemon: a read that hangs (a dead network file system) must not keep the process from ending.
        self._thread = threading.Thread(target=self._prefetch, args=(start_step,), name=f"read {source}", daemon=True)
        self._thread.start()

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        return self._reader.sample_shape

    def next(self, deadline: Deadline) -> Batch:
        """The batch of the next step.

        Raises: DeadlineExceeded where it is not there in time (a later call may still get it); whatever
        ended the reading thread, once the batches read before are used up.
        """
        with self._changed:
            assert not self._closed, "next() after close()"
            if not self._changed.wait_for(self._has_news, deadline.remaining_s()):
                raise DeadlineExceeded(
                    f"{self._reader.config.source}: the next batch was not read in time. Is the file system "
                    "slow or gone? Copy the data to a local disk, or allow a longer wait."
                )
            if not self._ready:
                assert self._failure is not None
                raise self._failure
            batch = self._ready.popleft()
            self._changed.notify_all()
        return batch

    def close(self) -> None:
        """End the thread and close the reader; may be called again, and with batches left."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(_CLOSE_WAIT_S)
        if not self._thread.is_alive():
            self._reader.close()

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _has_news(self) -> bool:
        return bool(self._ready) or self._failure is not None

    def _prefetch(self, start_step: int) -> None:
        try:
            for step in itertools.count(start_step):
                if not self._offer(self._read(step)):
                    return
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _read(self, step: int) -> Batch:
        first_sample = step * self._global_batch + self._start
        tensors = self._reader.read(first_sample, self._count)
        tensors[SAMPLE_NUMBERS] = torch.arange(first_sample, first_sample + self._count)
        return Batch(step, tensors, self._count, self._global_batch)

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

    Batch k is the samples [k * b, (k + 1) * b), b being the layer's batch_size, wrapping at the last
    record; every call starts at the first record. All ranks together read each batch once.
    """
    size = reader.config.batch_size
    for batch in range(group.rank, num_batches, group.world_size):
        yield batch, reader.read(batch * size, size)
