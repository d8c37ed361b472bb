"""Batches read ahead: the same as read directly, for any number of workers and any first step."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.core.group import Group
from samovar.data.config import DataConfig, TransformConfig
from samovar.data.datasets import LmdbDataset
from samovar.data.order import SAMPLE_NUMBERS, SampleOrder, batch_portions, sample_indices, shares
from samovar.data.reader import BatchReader, Tensors
from samovar.data.stream import (
    PREFETCHED_BATCHES,
    Batch,
    BatchStream,
    evaluation_batches,
)
from samovar.data.transform import Transform

MakeDatabase = Callable[..., Path]
SEED = 5
SOON = 60.0


@pytest.fixture
def config(make_database: MakeDatabase) -> DataConfig:
    transform = TransformConfig(scale=0.5, mean_values=(30.0,), crop_size=4, mirror=True)
    return DataConfig(make_database(23), 7, ("data", "label"), transform, training=True)


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def take(stream: BatchStream, count: int) -> list[Batch]:
    return [stream.next(Deadline.after(SOON)) for _ in range(count)]


def directly(config: DataConfig, first_sample: int, count: int, shuffled: bool) -> tuple[torch.Tensor, ...]:
    with LmdbDataset(config.source) as dataset:
        order = SampleOrder(len(dataset), SEED, shuffled)
        images, labels = dataset.read(sample_indices(order, first_sample, count))
        return Transform(config, dataset.sample_shape, SEED)(images, first_sample), torch.from_numpy(labels)


def assert_same(found: Batch, expected: Batch) -> None:
    assert (found.number, found.num_samples) == (expected.number, expected.num_samples)
    for top, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[top], tensor)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_batches_are_the_global_batch_in_slices(config: DataConfig, world_size: int, shuffled: bool) -> None:
    global_batch, num_steps = 11, 6  # more than two epochs of 23, batches across their ends
    for rank, (start, count) in enumerate(shares(global_batch, world_size)):
        reader = BatchReader((config,), True, SEED, shuffled)
        with BatchStream(reader, batch_portions(Group(rank, world_size), global_batch)) as stream:
            assert reader.top_shapes == {"data": (7, 1, 4, 4), "label": (7,)}
            for step, batch in enumerate(take(stream, num_steps)):
                data, label = directly(config, step * global_batch + start, count, shuffled)
                assert torch.equal(batch.tensors["data"], data)
                assert torch.equal(batch.tensors["label"], label)
                assert (batch.tensors["data"].dtype, label.dtype) == (torch.float32, torch.int64)
                assert (batch.number, batch.num_samples, batch.global_num_samples) == (step, count, 11)
                first = step * global_batch + start
                assert batch.tensors[SAMPLE_NUMBERS].tolist() == list(range(first, first + count))


def test_a_stream_starts_at_any_step(config: DataConfig) -> None:
    with BatchStream(BatchReader((config,), True, SEED, True), batch_portions(Group(1, 2), 9)) as whole:
        expected = take(whole, 8)
    with BatchStream(BatchReader((config,), True, SEED, True), batch_portions(Group(1, 2), 9), start=5) as resumed:
        for found, wanted in zip(take(resumed, 3), expected[5:], strict=True):
            assert_same(found, wanted)


def test_one_top_gives_the_images_alone(config: DataConfig) -> None:
    with BatchReader([replace(config, tops=("image",))], True) as reader:
        assert list(reader.read(0, 2)) == ["image", SAMPLE_NUMBERS]


def test_a_batch_stays_as_it_is_when_the_next_ones_are_read(config: DataConfig) -> None:
    with BatchStream(BatchReader((config,), True, SEED), batch_portions(Group(0, 1), 7)) as stream:
        [first] = take(stream, 1)
        copies = {top: tensor.clone() for top, tensor in first.tensors.items()}
        take(stream, 2 * PREFETCHED_BATCHES)
    assert all(torch.equal(first.tensors[top], copy) for top, copy in copies.items())


class WatchedReader(BatchReader):
    """Tells when it is asked for its n-th batch, and can be held there."""

    def __init__(self, config: DataConfig, watched_read: int, held: bool = False) -> None:
        super().__init__((config,), True)
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.num_reads = 0
        self._watched_read = watched_read
        if not held:
            self.go_on.set()

    def read(self, first_sample: int, count: int) -> Tensors:
        self.num_reads += 1
        if self.num_reads == self._watched_read:
            self.reached.set()
            assert self.go_on.wait(SOON)
        return super().read(first_sample, count)


def test_reads_ahead_but_not_further_than_the_queue(config: DataConfig) -> None:
    reader = WatchedReader(config, PREFETCHED_BATCHES + 1)
    with BatchStream(reader, batch_portions(Group(0, 1), 7)) as stream:
        assert reader.reached.wait(SOON)  # the queue is full, one more is in hand
        take(stream, 1)
    assert reader.num_reads <= PREFETCHED_BATCHES + 2


def test_close_ends_the_thread_when_the_queue_is_full(config: DataConfig) -> None:
    reader = WatchedReader(config, PREFETCHED_BATCHES + 1)
    before = set(threading.enumerate())
    stream = BatchStream(reader, batch_portions(Group(0, 1), 7))
    assert reader.reached.wait(SOON)
    stream.close()
    stream.close()
    assert set(threading.enumerate()) <= before


def test_close_gives_the_file_back(config: DataConfig) -> None:
    before = num_descriptors()
    with BatchStream(BatchReader((config,), True), batch_portions(Group(0, 1), 7)) as stream:
        take(stream, 1)
    assert num_descriptors() == before


def test_a_batch_that_is_late_is_a_deadline_and_comes_later(config: DataConfig) -> None:
    reader = WatchedReader(config, 1, held=True)
    with BatchStream(reader, batch_portions(Group(0, 1), 7)) as stream:
        with pytest.raises(DeadlineExceeded, match="images_lmdb: the next batch was not read in time"):
            stream.next(Deadline.after(0.01))
        reader.go_on.set()
        assert [batch.number for batch in take(stream, 2)] == [0, 1]


class FailingReader(BatchReader):
    """Fails in its third batch."""

    failure = OSError("the disk is gone")

    def read(self, first_sample: int, count: int) -> Tensors:
        if first_sample >= 2 * count:
            raise self.failure
        return super().read(first_sample, count)


def test_what_ends_the_thread_is_raised_as_it_is(config: DataConfig) -> None:
    with BatchStream(FailingReader((config,), True), batch_portions(Group(0, 1), 7)) as stream:
        assert [batch.number for batch in take(stream, 2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone") as raised:
                stream.next(Deadline.after(SOON))
            assert raised.value is FailingReader.failure


def test_a_database_cut_off_while_training_is_an_input_error(config: DataConfig) -> None:
    reader = WatchedReader(config, 3, held=True)
    with BatchStream(reader, batch_portions(Group(0, 1), 7)) as stream:
        assert reader.reached.wait(SOON)
        os.truncate(config.source / "data.mdb", 0)
        reader.go_on.set()
        assert len(take(stream, 2)) == 2
        with pytest.raises(InputError, match=r"images_lmdb: data\.mdb has 0 bytes"):
            stream.next(Deadline.after(SOON))


def test_a_database_deleted_while_training_is_read_to_the_end(config: DataConfig) -> None:
    with BatchStream(BatchReader((config,), True, SEED), batch_portions(Group(0, 1), 7)) as stream:
        expected = take(stream, 8)
    with BatchStream(BatchReader((config,), True, SEED), batch_portions(Group(0, 1), 7)) as stream:
        (config.source / "data.mdb").unlink()
        for found, wanted in zip(take(stream, 8), expected, strict=True):
            assert_same(found, wanted)


def test_more_workers_than_samples_are_refused(config: DataConfig) -> None:
    with (
        BatchReader((config,), True) as reader,
        pytest.raises(InputError, match="2 samples cannot be shared by 3"),
    ):
        BatchStream(reader, batch_portions(Group(0, 3), 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tops": ()}, "0 tops"),
        ({"tops": ("a", "b", "c")}, "3 tops"),
        ({"transform": TransformConfig(crop_size=100)}, "crop_size 100"),
    ],
)
def test_a_layer_that_cannot_be_read_is_refused(config: DataConfig, change: dict[str, Any], message: str) -> None:
    before = num_descriptors()
    with pytest.raises(InputError, match=message):
        BatchReader((replace(config, **change),), True)
    assert num_descriptors() == before


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_evaluation_reads_each_batch_once_from_the_first_record(config: DataConfig, world_size: int) -> None:
    num_batches, size = 5, config.batch_size
    with BatchReader((replace(config, training=False),), False, SEED) as reader:
        for _ in range(2):
            found = dict(
                item
                for rank in range(world_size)
                for item in evaluation_batches(reader, Group(rank, world_size), num_batches)
            )
            assert sorted(found) == list(range(num_batches))
            for batch, tensors in found.items():
                records = [(batch * size + i) % 23 for i in range(size)]
                np.testing.assert_array_equal(tensors["label"], [record % 10 for record in records])
                expected = directly(replace(config, training=False), batch * size, size, False)[0]
                assert torch.equal(tensors["data"], expected)


def test_each_rank_gets_every_nth_evaluation_batch(config: DataConfig) -> None:
    with BatchReader((config,), True) as reader:
        assert [batch for batch, _ in evaluation_batches(reader, Group(1, 3), 9)] == [1, 4, 7]
