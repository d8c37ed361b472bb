"""Databases made for one test, and a check that no reading thread outlives it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from samovar.formats.caffe.datum import encode_datum
from samovar.formats.lmdb_file import write_lmdb

MakeDatabase = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def make_database(tmp_path: Path) -> MakeDatabase:
    """make(num_samples, shape) writes random uint8 images; record i has label i % 10 and key %08d."""

    def make(num_samples: int, shape: tuple[int, int, int] = (1, 6, 5), name: str = "images_lmdb") -> Path:
        images = np.random.default_rng(num_samples).integers(0, 256, (num_samples, *shape), np.uint8)
        records = ((b"%08d" % i, encode_datum(image, i % 10)) for i, image in enumerate(images))
        assert write_lmdb(tmp_path / name, records)
        return tmp_path / name

    return make
