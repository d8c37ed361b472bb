"""A data set in the memory of all ranks: the same batches as from its files, for any number of workers."""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import pytest
import torch

from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.core.machine import Link, MachineModel
from samovar.data import cache
from samovar.data.cache import CacheSetup
from samovar.data.config import DataConfig, Hdf5DataConfig, ImageDataConfig, LayerConfig, TransformConfig
from samovar.data.databases import split_database
from samovar.data.order import batch_portions, permutation, shares
from samovar.data.reader import BatchReader
from samovar.data.shares import Holders
from samovar.data.stream import BatchStream
from samovar.formats.caffe.schema import message_class
from samovar.formats.lmdb_file import write_lmdb
from samovar.transports.shm import ShmTransport, create_segment
from samovar.transports.sim.world import SimConfig, simulate
from tests.unit.data.pictures import encoded, picture

Result = TypeVar("Result")
RunRanks = Callable[[Callable[[int, CacheSetup], Result], int], list[Result]]
NUM_RECORDS, BATCH = 23, 7
GLOBAL_BATCH, NUM_STEPS = 11, 5  # more than two epochs, batches across their ends
CROPPED = TransformConfig(scale=0.5, mean_values=(30.0,), crop_size=16, mirror=True)
SIZES = [(40, 30), (33, 21), (20, 20), (25, 90)]


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 2 records, several rounds of each rank."""
    monkeypatch.setattr(cache, "RUN_RECORDS", 2)
    monkeypatch.setattr(cache, "ROUND_BYTES", 4000)


def on_shm(program: Callable[[int, CacheSetup], Result], world_size: int) -> list[Result]:
    """Every rank with mappings of its own."""
    segment = create_segment(world_size)
    try:
        transports = [ShmTransport(segment, Group(rank, world_size), oversubscribed=True) for rank in range(world_size)]
        with ThreadPoolExecutor(world_size) as pool:
            runs = [
                pool.submit(program, rank, CacheSetup(transport, partial(Deadline.after, 60.0)))
                for rank, transport in enumerate(transports)
            ]
            return [run.result() for run in runs]
    finally:
        os.close(segment)


def on_sim(program: Callable[[int, CacheSetup], Result], world_size: int) -> list[Result]:
    """Simulated ranks; a read that no wait makes safe is a Race."""
    machine = MachineModel(Link(1e-6, 1e9, 1e-7))
    run = simulate(
        lambda transport: program(transport.group.rank, CacheSetup(transport, partial(transport.deadline, math.inf))),
        world_size,
        SimConfig(3, machine, max_delay_s=1e-4),
    )
    return run.results


@pytest.fixture
def datum_lmdb(tmp_path: Path) -> DataConfig:
    """Bytes, floats and compressed records side by side, all 3 x 20 x 24."""
    kinds = message_class("Datum")
    records = []
    for index in range(NUM_RECORDS):
        pixels = picture(20, 24, seed=index)
        if index % 3 == 0:
            datum = kinds(encoded=True, data=encoded(pixels, "JPEG"), label=index)
        elif index % 3 == 1:
            datum = kinds(channels=3, height=20, width=24, data=pixels.tobytes(), label=index)
        else:
            datum = kinds(channels=3, height=20, width=24, float_data=pixels.ravel() / 7, label=-index)
        records.append((b"%05d" % index, datum.SerializeToString()))
    write_lmdb(tmp_path / "datum_lmdb", records)
    transform = TransformConfig(scale=0.5, mirror=True, force_color=True)
    return DataConfig(tmp_path / "datum_lmdb", BATCH, ("data", "label"), transform, training=True)


@pytest.fixture
def image_list(tmp_path: Path) -> ImageDataConfig:
    """Files of four sizes."""
    for index in range(NUM_RECORDS):
        content = encoded(picture(*SIZES[index % len(SIZES)], seed=index), ("PNG", "JPEG")[index % 2])
        (tmp_path / f"{index}.image").write_bytes(content)
    (tmp_path / "list.txt").write_text("".join(f"{index}.image {index}\n" for index in range(NUM_RECORDS)))
    return ImageDataConfig(tmp_path / "list.txt", BATCH, ("data", "label"), CROPPED, True, tmp_path)


@pytest.fixture
def hdf5(tmp_path: Path) -> Hdf5DataConfig:
    """Two tops, in two files."""
    rows = np.arange(NUM_RECORDS * 6, dtype=np.float64).reshape(NUM_RECORDS, 2, 3) / 7
    for name, part in (("a.h5", slice(0, 9)), ("b.h5", slice(9, None))):
        with h5py.File(tmp_path / name, "w") as file:
            file["rows"] = rows[part]
            file["label"] = np.arange(NUM_RECORDS)[part]
    (tmp_path / "files.txt").write_text("a.h5\nb.h5\n")
    return Hdf5DataConfig(tmp_path / "files.txt", BATCH, ("rows", "label"))


@pytest.fixture(params=["raw", "any size", "mixed", "list", "resized list", "hdf5", "image and mask"])
def layers(request: pytest.FixtureRequest) -> Iterator[tuple[LayerConfig, ...]]:
    """Each kind of source, and two together."""
    wanted = request.getfixturevalue
    if request.param == "hdf5":
        yield (wanted("hdf5"),)
    elif request.param == "mixed":
        yield (wanted("datum_lmdb"),)
    elif request.param == "list":
        yield (wanted("image_list"),)
    elif request.param == "resized list":
        yield (replace(wanted("image_list"), new_size=(17, 18), is_color=False),)
    else:
        make = wanted("make_database")
        images = DataConfig(make(NUM_RECORDS, (3, 18, 17)), BATCH, ("data", "label"), CROPPED, training=True)
        if request.param == "raw":
            images = replace(images, transform=TransformConfig(scale=0.5, mirror=True))
        masks = DataConfig(make(NUM_RECORDS, (1, 18, 17), "masks"), BATCH, ("mask",), CROPPED, training=True)
        yield (images, masks) if request.param == "image and mask" else (images,)


def batches_of(layers: tuple[LayerConfig, ...], shuffled: bool, rank: int, world_size: int, setup: CacheSetup | None):
    """A rank's part of every step's batch."""
    first, count = shares(GLOBAL_BATCH, world_size)[rank]
    with BatchReader(layers, True, 5, shuffled) as reader:
        if setup is not None:
            reader.fill_cache(setup)
        return [reader.read(step * GLOBAL_BATCH + first, count) for step in range(NUM_STEPS)]


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        for top, tensor in other.items():
            assert torch.equal(one[top], tensor), top
            assert (one[top].dtype, one[top].stride()) == (tensor.dtype, tensor.stride()), top


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("run_ranks", [on_shm, on_sim])
def test_batches_are_those_of_the_files(
    layers: tuple[LayerConfig, ...], run_ranks: RunRanks[Any], shuffled: bool
) -> None:
    for world_size in (1, 2, 3, 5):
        found = run_ranks(
            partial(lambda size, rank, h: batches_of(layers, shuffled, rank, size, h), world_size), world_size
        )
        for rank, own in enumerate(found):
            assert_same(own, batches_of(layers, shuffled, rank, world_size, None))


def test_a_stream_reads_ahead_from_memory_after_the_files_are_gone(datum_lmdb: DataConfig) -> None:
    world_size = 2

    def program(rank: int, setup: CacheSetup) -> Any:
        reader = BatchReader([datum_lmdb], True, 5, shuffled=True)
        reader.fill_cache(setup)
        if rank == 0:
            shutil.rmtree(datum_lmdb.source)
        with BatchStream(reader, batch_portions(Group(rank, world_size), GLOBAL_BATCH)) as stream:
            return [stream.next(Deadline.after(60.0)).tensors for _ in range(NUM_STEPS)]

    wanted = [batches_of((datum_lmdb,), True, rank, world_size, None) for rank in range(world_size)]
    for found, expected in zip(on_shm(program, world_size), wanted, strict=True):
        assert_same(found, expected)


def test_every_record_is_held_once_and_what_is_fetched_is_counted(make_database: Callable[..., Path]) -> None:
    source, record_bytes = make_database(NUM_RECORDS, (1, 6, 5)), 30
    config = DataConfig(source, BATCH, ("data",), TransformConfig(), training=True)

    def program(rank: int, setup: CacheSetup) -> tuple[int, int, int]:
        with BatchReader([config], True) as reader:
            wanted = reader.bytes_to_cache
            reader.fill_cache(setup)
            reader.read(0, 7)
            return wanted, reader.cached_bytes, reader.fetched_bytes

    found = on_shm(program, 3)
    assert [total for total, _, _ in found] == [NUM_RECORDS * record_bytes] * 3
    assert [own // record_bytes for _, own, _ in found] == [8, 8, 7]  # 23 in runs of two
    # Of the records 0 to 6, ranks 0, 1, 2 hold 0 1 6, 2 3, and 4 5.
    assert [fetched // record_bytes for _, _, fetched in found] == [4, 5, 5]


@pytest.mark.parametrize("ranks", [((0,),), ((0, 1, 2),), ((0, 1), (2,)), ((1,), (0, 3, 4), (2,))])
@pytest.mark.parametrize("num_records", [0, 1, 2, 5, 12, 31])
def test_a_rank_holds_its_records_in_rising_order(num_records: int, ranks: tuple[tuple[int, ...], ...]) -> None:
    owners, places = Holders(ranks, 2).places(np.arange(num_records))
    assert len(owners) == num_records
    for number, of_share in enumerate(ranks):
        for rank in of_share:
            own = np.flatnonzero(owners == rank)
            assert places[own].tolist() == list(range(len(own)))
            assert (own // 2 % len(ranks) == number).all()


@pytest.mark.parametrize("own", [(0, 1), (1, 0, 0), (2, 0, 1), (0, 1, 0, 1)], ids=str)
@pytest.mark.parametrize("shuffled", [False, True])
def test_batches_from_shares_are_those_of_the_whole_database(
    datum_lmdb: DataConfig, own: tuple[int, ...], shuffled: bool
) -> None:
    """Rank r has share own[r]; no rank has the whole database. Every record is loaded by one rank."""
    whole = datum_lmdb.source
    folders = [written.folder for written in split_database(whole, whole.parent / "shares", max(own) + 1)]
    wanted = [batches_of((datum_lmdb,), shuffled, rank, len(own), None) for rank in range(len(own))]
    shutil.rmtree(whole)

    def program(rank: int, setup: CacheSetup) -> Any:
        layer = replace(datum_lmdb, source=folders[own[rank]])
        inside = [other for other, number in enumerate(own) if number == own[rank]]
        with BatchReader([layer], True, 5, shuffled) as reader:
            assert len(reader) == NUM_RECORDS
            reader.fill_cache(replace(setup, inside=inside))
            first, count = shares(GLOBAL_BATCH, len(own))[rank]
            batches = [reader.read(step * GLOBAL_BATCH + first, count) for step in range(NUM_STEPS)]
            return batches, reader.cached_bytes, reader.remote_bytes, reader.fetched_bytes

    found = on_shm(program, len(own))
    for (batches, _, remote, fetched), expected in zip(found, wanted, strict=True):
        assert_same(batches, expected)
        assert 0 < remote <= fetched
    num_floats = NUM_RECORDS // 3  # which have 4 bytes a value
    assert sum(held for _, held, _, _ in found) == (NUM_RECORDS + 3 * num_floats) * 3 * 20 * 24


def test_in_an_epoch_each_record_comes_once_from_another_host(
    make_database: Callable[..., Path], tmp_path: Path
) -> None:
    """Two hosts of two ranks, one epoch: what comes from other hosts is what a rank uses and its host does not hold."""
    record_bytes, num_records, global_batch = 30, 48, 12
    whole = make_database(num_records, (1, 6, 5))
    folders = [written.folder for written in split_database(whole, tmp_path / "shares", 2)]
    numbers = np.arange(num_records)

    def program(rank: int, setup: CacheSetup) -> tuple[int, int]:
        host = rank // 2
        layer = DataConfig(folders[host], global_batch, ("data", "label"), TransformConfig(), training=True)
        with BatchReader([layer], True, 3, shuffled=True) as reader:
            reader.fill_cache(replace(setup, inside=(2 * host, 2 * host + 1)))
            first, count = shares(global_batch, 4)[rank]
            order = permutation(num_records, 3, 0).reshape(-1, global_batch)[:, first : first + count].ravel()
            for step in range(num_records // global_batch):
                reader.read(step * global_batch + first, count)
            run_records = reader.share.run_records if reader.share else 0
            return reader.remote_bytes, int((numbers[order] // run_records % 2 != host).sum()) * record_bytes

    found = on_shm(program, 4)
    assert [remote for remote, _ in found] == [wanted for _, wanted in found]
    assert 0 < sum(remote for remote, _ in found) < num_records * record_bytes


def test_a_share_that_nobody_has_is_named(datum_lmdb: DataConfig) -> None:
    folders = [written.folder for written in split_database(datum_lmdb.source, datum_lmdb.source.parent / "shares", 3)]

    def program(rank: int, setup: CacheSetup) -> None:
        with BatchReader([replace(datum_lmdb, source=folders[2 * rank])], True) as reader:
            reader.fill_cache(setup)

    with pytest.raises(InputError, match="no worker has share 1 of 3; start a host with each share"):
        on_shm(program, 2)


def test_a_damaged_record_is_named_when_it_is_loaded(image_list: ImageDataConfig) -> None:
    (image_list.source.parent / "20.image").write_bytes(b"none")

    def program(_rank: int, setup: CacheSetup) -> None:
        with BatchReader([image_list], True) as reader:
            reader.fill_cache(replace(setup, deadline=partial(Deadline.after, 30.0)))

    with pytest.raises(InputError, match=r"list\.txt:21: .*20\.image: no whole image"):
        on_shm(program, 1)


def test_rounds_are_told(make_database: Callable[..., Path]) -> None:
    config = DataConfig(make_database(NUM_RECORDS, (1, 40, 50)), BATCH, ("data",), TransformConfig(), training=True)
    told: list[tuple[int, int]] = []

    def program(rank: int, setup: CacheSetup) -> None:
        with BatchReader([config], True) as reader:
            reader.fill_cache(replace(setup, told=lambda *numbers: told.append(numbers)) if rank == 0 else setup)

    on_shm(program, 2)  # 12 records of 2,000 bytes with rank 0, two a round
    assert told == [(number, 6) for number in range(1, 7)]
